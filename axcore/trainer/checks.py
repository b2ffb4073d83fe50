"""What a trainer checks before it starts: numbers that do not go together, and unknown names."""

import math
from collections.abc import Iterator
from typing import Any

from jax.sharding import Mesh

from axcore.config import REQUIRED, name_the_known
from axcore.data import Tokenizer
from axcore.errors import ConfigError, ShardingError
from axcore.parallel import partition_spec
from axcore.plugins import Kernel, MetricWriter, Op, Record, RunObserver, plugin_host

_COUNTS = ("max_steps", "num_micro_batches", "log_every_steps", "eval_every_steps")


def check_numbers(cfg: Any) -> None:
    """Checks the counts of a trainer's config; those that nobody set yet are left alone.

    Raises:
        ConfigError: A count is below 1, or the micro-batches do not divide the batch.
    """
    problems = [
        f"{name} is {getattr(cfg, name)}; expected 1 or more"
        for name in _COUNTS
        if getattr(cfg, name) is not REQUIRED and getattr(cfg, name) < 1
    ]
    if problems:
        raise ConfigError("\n".join(problems))
    batch_size = REQUIRED if cfg.data is REQUIRED else cfg.data.batch_size
    if batch_size is REQUIRED or batch_size % cfg.num_micro_batches == 0:
        return
    fitting = max(n for n in range(1, cfg.num_micro_batches) if batch_size % n == 0)
    raise ConfigError(
        f"a batch of {batch_size} rows does not divide into {cfg.num_micro_batches} micro-batches",
        where="num_micro_batches",
        mend=f"--set num_micro_batches={fitting}, or --set data.batch_size="
        f"{math.ceil(batch_size / cfg.num_micro_batches) * cfg.num_micro_batches}",
    )


def check_batch_divides(cfg: Any, mesh: Mesh) -> None:
    """Checks that a batch can be split over the mesh.

    Raises:
        ShardingError: Its rows, or the tokens of a row, do not divide over their mesh axes.
    """
    spec = partition_spec(("batch", "time"), cfg.activation_rules, mesh, where="activation_rules")
    sizes = {"batch_size": cfg.data.batch_size, "seq_len": cfg.data.seq_len}
    for (name, size), entry in zip(sizes.items(), spec, strict=True):
        axes = (entry,) if isinstance(entry, str) else entry or ()
        ways = math.prod(mesh.shape[axis] for axis in axes)
        if size % ways:
            raise ShardingError(
                f"{name} is {size}, which does not divide over {ways} devices "
                f"({' x '.join(f'{axis} {mesh.shape[axis]}' for axis in axes)})",
                where=f"data.{name}",
                mend=f"--set data.{name}={math.ceil(size / ways) * ways}, or use another mesh",
            )


def check_vocabulary(model: Any, tokenizer: Tokenizer) -> None:
    """Checks that a model's config has room for every token.

    Raises:
        ConfigError: It has fewer than the tokenizer.
    """
    size = getattr(model, "vocab_size", None)
    if size is not None and size < tokenizer.vocab_size:
        raise ConfigError(
            f"vocab_size is {size}, but the tokenizer has {tokenizer.vocab_size} tokens",
            where="model.vocab_size",
            mend=f"--set model.vocab_size={tokenizer.vocab_size}",
        )


def check_kernel_names(cfg: Any) -> None:
    """Checks that pinned and allowed kernels exist, so that no pin is passed over in silence.

    Raises:
        ConfigError: Listing every name that is unknown.
    """
    problems = list(_unknown_kernels(cfg))
    if problems:
        raise ConfigError("\n".join(problems), mend="`axcore kernels` lists what is installed")


def check_watchers(cfg: Any) -> None:
    """Checks that the metric writers and observers of a config exist, once each.

    Raises:
        ConfigError: Listing every name that is unknown or repeated.
    """
    writers = _wrong_names(cfg, "writers", MetricWriter)
    problems = [*writers, *_wrong_names(cfg, "observers", RunObserver)]
    if problems:
        raise ConfigError("\n".join(problems), mend="`axcore plugins -v` lists what is installed")


def _wrong_names(cfg: Any, field: str, kind: type[Record]) -> Iterator[str]:
    """Yields a line for every name of a field that no record has, or that stands twice."""
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
