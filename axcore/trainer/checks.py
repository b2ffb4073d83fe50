"""Checks of a trainer's config that run before anything is compiled or written."""

import importlib.util
import math
from collections.abc import Iterator
from typing import Any

import jax

from axcore.config import did_you_mean, find_config, suggest_names
from axcore.errors import ConfigError, KernelError, ShardingError
from axcore.extras import EXTRAS
from axcore.layers import Dot
from axcore.module import BatchSpec, ParamSpec
from axcore.parallel import (
    ACTIVATION_RULES,
    MESH_AXES,
    PARAM_RULES,
    param_shardings,
    unused_mesh_axes,
)
from axcore.plugins import (
    Hardware,
    Kernel,
    MetricWriter,
    Op,
    QuantizationScheme,
    Record,
    RunObserver,
    plugin_host,
)
from axcore.plugins.time_limit import callback_timeout_s
from axcore.trainer.shardings import BatchSharding, optimizer_shardings


def check_micro_batches(cfg: Any, batch: BatchSpec) -> None:
    """Check that a batch can be run in a config's micro-batches.

    Raises:
        ConfigError: Its rows do not divide into so many.
    """
    rows, count = batch.num_rows, cfg.num_micro_batches
    if rows % count == 0:
        return
    # The next smaller number that works, to be copied from the hint.
    fitting = max(n for n in range(1, count) if rows % n == 0)
    raise ConfigError(
        f"a batch of {rows} rows does not divide into {count} micro-batches",
        where="num_micro_batches",
        hint=f"--set num_micro_batches={fitting}, or --set data.batch_size="
        f"{math.ceil(rows / count) * count}",
    )


def check_gradient_norms(cfg: Any) -> None:
    """Check that the norms of gradients by module are measured at steps that are logged.

    Raises:
        ConfigError: They would be measured at others.
    """
    every, log = cfg.logging.gradient_norms_every_steps, cfg.logging.every_steps
    # `every` 0 is a multiple of all.
    if every % log:
        raise ConfigError(
            f"{every} is not a multiple of logging.every_steps, {log}: no log line has the norms",
            where="logging.gradient_norms_every_steps",
            hint=f"--set logging.gradient_norms_every_steps={math.ceil(every / log) * log}",
        )


def check_kernel_names(cfg: Any) -> None:
    """Check that pinned and allowed kernels exist, so that no pin is passed over in silence.

    Raises:
        ConfigError: Listing every name that is unknown.
    """
    problems = list(_unknown_kernels(cfg))
    if problems:
        raise ConfigError("\n".join(problems), hint="`axcore kernels` lists what is installed")


def check_writers_and_observers(cfg: Any) -> None:
    """Check that the metric writers and observers of a config exist, once each.

    Raises:
        ConfigError: Listing every name that is unknown or repeated.
    """
    writers = _wrong_names(cfg.logging, "writers", MetricWriter)
    problems = [*writers, *_wrong_names(cfg.logging, "observers", RunObserver)]
    if problems:
        raise ConfigError("\n".join(problems), hint="`axcore plugins -v` lists what is installed")


def check_libraries(cfg: Any) -> None:
    """Check that what a config's writers and observers need is installed, before data is read.

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
        library = record.library if record.key in getattr(cfg.logging, field) else ""
        # `find_spec` does not import it: a board's library takes seconds, and may start threads.
        if library and importlib.util.find_spec(library) is None:
            package = f'"axcore[{EXTRAS[library]}]"' if library in EXTRAS else library
            raise ConfigError(
                f"the {record.kind} {record.key!r} needs {library}, which is not installed",
                where=f"logging.{field}",
                hint=f"pip install {package}",
            )


def _wrong_names(cfg: Any, field: str, kind: type[Record]) -> Iterator[str]:
    """Yield a line for every name of a field that no record has, or that is there twice."""
    names: tuple[str, ...] = getattr(cfg, field)
    known = {record.key for record in plugin_host().records(kind)}
    for name in dict.fromkeys(names):
        if name not in known:
            yield f"logging.{field}: unknown {kind.kind} {name!r}; {suggest_names(name, known)}"
        elif names.count(name) > 1:
            yield f"logging.{field} names {name!r} {names.count(name)} times"


def _unknown_kernels(cfg: Any) -> Iterator[str]:
    ops = {op.name for op in plugin_host().records(Op)}
    kernels = plugin_host().records(Kernel)
    for op, name in cfg.kernels.pins.items():
        of_op = {kernel.name for kernel in kernels if kernel.op == op}
        if op not in ops:
            yield f"kernels.pins: unknown op {op!r}; {suggest_names(op, ops)}"
        elif name not in of_op:
            near = suggest_names(name, of_op)
            yield f"kernels.pins[{op!r}]: unknown kernel {name!r}; {near}"
    known = {kernel.name for kernel in kernels}
    for name in cfg.kernels.allow:
        if name not in known:
            yield f"kernels.allow: unknown kernel {name!r}; {suggest_names(name, known)}"


_USES = {
    "pipeline": "a stack of stages: replace_config(cfg, ScannedLayers, Pipeline.Config("
    "num_micro_batches=8))",
    "expert": "a rule that splits something over it, such as `batch`, or experts",
    "seq": "sharding.activation_rules['time'] = ('seq',)",
}


def check_sharding_rules(cfg: Any, specs: Any, batch: BatchSpec) -> None:
    """Check the names in a trainer's two tables of rules.

    Raises:
        ShardingError: A rule names a mesh axis that does not exist, or is for a logical axis that
            is neither a usual one nor one of a parameter; for activations, whose axes layers may
            name as they like, only if it is spelt almost like one that is known.
    """
    leaves = jax.tree.leaves(specs, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
    had = {axis for spec in leaves for axis in spec.axes if axis is not None}
    for field in ("param_rules", "optimizer_rules", "activation_rules"):
        for axis, names in (getattr(cfg.sharding, field) or {}).items():
            for name in names:
                if name not in MESH_AXES:
                    raise ShardingError(
                        f"the rule for {axis!r} names the mesh axis {name!r}, which does not exist",
                        where=f"sharding.{field}",
                        hint=suggest_names(name, MESH_AXES),
                    )
        # Activations' axes are names that layers choose; those of
        # parameters are known, so a rule for another one is a typo.
        for axis in () if field == "activation_rules" else getattr(cfg.sharding, field) or ():
            if axis not in had and axis not in PARAM_RULES:
                raise ShardingError(
                    f"there is a rule for the logical axis {axis!r}, which no parameter has",
                    where=f"sharding.{field}",
                    hint=suggest_names(axis, sorted(had)),
                )
    known = sorted({*ACTIVATION_RULES, *had, *batch.axis_sizes()})
    for axis in cfg.sharding.activation_rules:
        # A name of a layer's own is fine; one that is almost
        # a usual one is a typo that would split nothing.
        near = did_you_mean(axis, known, max_names=1)
        if axis not in known and near is not None:
            raise ShardingError(
                f"there is a rule for the logical axis {axis!r}, which is not a usual one",
                where="sharding.activation_rules",
                hint=f"{near} a layer's own axis needs a name less like it",
            )


def check_mesh_is_used(cfg: Any, batch: BatchSharding, specs: Any) -> None:
    """Check that every axis of a mesh splits a parameter or the batch.

    Raises:
        ShardingError: One does not, or a parameter does not divide over the mesh.
    """
    mesh = batch.mesh
    params = param_shardings(specs, cfg.sharding.param_rules, mesh)
    optimizer = optimizer_shardings(cfg, specs, mesh)
    # An axis that splits nothing is not wrong by itself, but always a
    # mistake: its devices repeat each other's work, and the bill is the same.
    for name in unused_mesh_axes((params, optimizer, batch.shardings), mesh):
        use = _USES.get(name, "a rule that splits something over it")
        raise ShardingError(
            f"mesh axis {name} of size {mesh.shape[name]} splits neither a parameter nor the "
            "batch, so that its devices would all do the same work",
            where="mesh",
            hint=f"leave it out of the mesh; or use it by {use}",
        )


def check_quantization_schemes(cfg: Any, hardware: Hardware) -> None:
    """Check that every scheme that a trainer's config contains can run on some hardware.

    A scheme whose op is pinned is left to the pinned kernel's own word.

    Raises:
        KernelError: Naming the layers of each scheme that cannot, and why.
    """
    schemes = plugin_host().records(QuantizationScheme)
    problems = {
        scheme.name: reason
        for scheme in schemes
        # A pinned kernel has its own check, and may emulate what the hardware lacks.
        if scheme.op not in cfg.kernels.pins
        and (reason := scheme.unsupported_hardware_reason(hardware)) is not None
    }
    refused = {one.config.resolve(): one for one in schemes if one.name in problems}
    paths: dict[str, list[str]] = {}
    for found in find_config(cfg.model, Dot):  # rules for other hardware may hold others
        if type(found.node) in refused:
            name = refused[type(found.node)].name
            paths.setdefault(name, []).append(f"model.{found.path}")
    if not paths:
        return
    fitting = [scheme.name for scheme in schemes if scheme.name not in problems]
    raise KernelError(
        "\n".join(
            f"{name} computes {_listed(where)}, and cannot run on {hardware.name}: {problems[name]}"
            for name, where in paths.items()
        ),
        where="model",
        hint=f"leave it out, or take {' or '.join(fitting) or 'other hardware'}; to compute the "
        "same numbers slowly: --set 'kernels.pins[\"quantized_dot\"]=emulated'",
    )


def _listed(paths: list[str]) -> str:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{paths[0]}{more}"
