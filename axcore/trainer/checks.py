"""What a trainer checks before it starts: numbers that do not go together, and unknown names."""

import importlib.util
import math
from collections.abc import Iterator
from typing import Any

from axcore.config import name_the_known
from axcore.errors import ConfigError
from axcore.extras import EXTRAS
from axcore.module import BatchSpec
from axcore.plugins import Kernel, MetricWriter, Op, Record, RunObserver, plugin_host
from axcore.plugins.time_limit import callback_timeout_s


def check_micro_batches(cfg: Any, batch: BatchSpec) -> None:
    """Checks that a batch can be run in a config's micro-batches.

    Raises:
        ConfigError: Its rows do not divide into so many.
    """
    rows, count = batch.num_rows, cfg.num_micro_batches
    if rows % count == 0:
        return
    fitting = max(n for n in range(1, count) if rows % n == 0)
    raise ConfigError(
        f"a batch of {rows} rows does not divide into {count} micro-batches",
        where="num_micro_batches",
        hint=f"--set num_micro_batches={fitting}, or --set data.batch_size="
        f"{math.ceil(rows / count) * count}",
    )


def check_gradient_norms(cfg: Any) -> None:
    """Checks that the norms of gradients by module are measured at steps that are logged.

    Raises:
        ConfigError: They would be measured at others.
    """
    every, log = cfg.gradient_norms_every_steps, cfg.log_every_steps
    if every % log:
        raise ConfigError(
            f"{every} is no multiple of log_every_steps, {log}: no line has a place for the norms",
            where="gradient_norms_every_steps",
            hint=f"--set gradient_norms_every_steps={math.ceil(every / log) * log}",
        )


def check_kernel_names(cfg: Any) -> None:
    """Checks that pinned and allowed kernels exist, so that no pin is passed over in silence.

    Raises:
        ConfigError: Listing every name that is unknown.
    """
    problems = list(_unknown_kernels(cfg))
    if problems:
        raise ConfigError("\n".join(problems), hint="`axcore kernels` lists what is installed")


def check_writers_and_observers(cfg: Any) -> None:
    """Checks that the metric writers and observers of a config exist, once each.

    Raises:
        ConfigError: Listing every name that is unknown or repeated.
    """
    writers = _wrong_names(cfg, "writers", MetricWriter)
    problems = [*writers, *_wrong_names(cfg, "observers", RunObserver)]
    if problems:
        raise ConfigError("\n".join(problems), hint="`axcore plugins -v` lists what is installed")


def check_libraries(cfg: Any) -> None:
    """Checks that what a config's writers and observers need is installed, before data is read.

    Raises:
        ConfigError: A library is missing.
        PluginError: Their time limit is not a number above 0.
    """
    callback_timeout_s()
    host = plugin_host()
    records: list[MetricWriter | RunObserver] = [
        *host.records(MetricWriter),
        *host.records(RunObserver),
    ]
    for record in records:
        field = "writers" if isinstance(record, MetricWriter) else "observers"
        library = record.library if record.key in getattr(cfg, field) else ""
        if library and importlib.util.find_spec(library) is None:
            package = f'"axcore[{EXTRAS[library]}]"' if library in EXTRAS else library
            raise ConfigError(
                f"the {record.kind} {record.key!r} needs {library}, which is not installed",
                where=field,
                hint=f"pip install {package}",
            )


def _wrong_names(cfg: Any, field: str, kind: type[Record]) -> Iterator[str]:
    """Yields a line for every name of a field that no record has, or that is there twice."""
    names: tuple[str, ...] = getattr(cfg, field)
    known = {record.key for record in plugin_host().records(kind)}
    for name in dict.fromkeys(names):
        if name not in known:
            yield f"{field} names {name!r}, which is no {kind.kind}; {name_the_known(name, known)}"
        elif names.count(name) > 1:
            yield f"{field} names {name!r} {names.count(name)} times"


def _unknown_kernels(cfg: Any) -> Iterator[str]:
    ops = {op.name for op in plugin_host().records(Op)}
    kernels = plugin_host().records(Kernel)
    for op, name in cfg.kernels.items():
        of_op = {kernel.name for kernel in kernels if kernel.op == op}
        if op not in ops:
            yield f"kernels names the op {op!r}, which does not exist; {name_the_known(op, ops)}"
        elif name not in of_op:
            yield f"kernels[{op!r}] is {name!r}, which is no kernel of it; " + name_the_known(
                name, of_op
            )
    known = {kernel.name for kernel in kernels}
    for name in cfg.allow_kernels:
        if name not in known:
            yield f"allow_kernels names {name!r}, which is no kernel; {name_the_known(name, known)}"
