"""What `axcore kernels tune` does: times every candidate of a kernel's block sizes on this machine.

A time is that of a call with its gradients, compiled, the least of several runs. Candidates that
the compiler refuses are shown with its reason and take no part.
"""

import datetime
import platform
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click
import jax
import jax.numpy as jnp

from axcore.config import suggest_names
from axcore.errors import AxcoreError, KernelError
from axcore.ops import BlockSizeTable, KernelPolicy, use_policy
from axcore.ops.plan import read_rows, sizes_of, write_rows
from axcore.plugins import Hardware, Kernel, plugin_host
from axcore.report.table import columns
from axcore.testing.contracts import Case, contract_of, functions_of

_HEADS = ("CALL", "BLOCK SIZES", "MS", "")


@attrs.frozen(kw_only=True)
class _Timing:
    """One candidate for one call; `seconds` is None where the compiler refused it."""

    block_sizes: Any
    is_default: bool
    seconds: float | None
    refusal: str | None = None


def tune_kernel(
    key: str, *, names: Sequence[str], dtype: str, repeats: int, out: Path | None
) -> None:
    """Times the candidates, prints them, and writes the best into the kernel's table.

    Raises:
        KernelError: There is no such kernel, it has no table or does not run here, it takes none of
            the calls, or none of the candidates compiles.
    """
    kernel = _kernel(key)
    hardware = Hardware.detect()
    table = _table(kernel, hardware)
    cases = _cases(kernel, names, dtype)
    click.echo(f"{kernel.key} of {kernel.plugin} on {hardware.name}, {dtype}")
    found = [_tuned(kernel, table, case, dtype, repeats, hardware) for case in cases]
    file = out or table.file()
    rows = {_address(row): row for row in (*read_rows(file), *found)}
    try:
        write_rows(file, rows.values())
    except OSError as error:
        raise KernelError(
            f"the table {file} cannot be written: {error}",
            hint="write it elsewhere by --out FILE, and put it next to the kernel",
        ) from error
    click.echo(f"wrote {file}")


def _kernel(key: str) -> Kernel:
    known = {kernel.key: kernel for kernel in plugin_host().records(Kernel)}
    if key not in known:
        raise KernelError(f"there is no kernel {key!r}; {suggest_names(key, known)}")
    return known[key]


def _table(kernel: Kernel, hardware: Hardware) -> BlockSizeTable[Any]:
    if kernel.block_sizes is None:
        with_tables = [
            one.key for one in plugin_host().records(Kernel) if one.block_sizes is not None
        ]
        raise KernelError(
            f"{kernel.key} has no block sizes to choose from.",
            hint=f"tune one that has: {', '.join(sorted(with_tables))}",
        )
    reason = kernel.unsupported_hardware_reason(hardware)
    if reason is not None:
        raise KernelError(
            f"{kernel.key} cannot be timed on {hardware.name}: {reason}.",
            hint="run this on a machine with the chip",
        )
    table: BlockSizeTable[Any] = kernel.block_sizes.resolve()
    return table


def _cases(kernel: Kernel, names: Sequence[str], dtype: str) -> list[Case]:
    """Return the calls that models make and the kernel takes, or those of them that are named."""
    cases = {case.name: case for case in contract_of(kernel.op).model_cases}
    for name in names:
        if name not in cases:
            raise KernelError(f"{kernel.op} has no case {name!r}; {suggest_names(name, cases)}")
    wanted = [case for name, case in cases.items() if name in (names or cases)]
    unsupported_reason = (
        kernel.unsupported_reason.resolve()
        if kernel.unsupported_reason is not None
        else lambda call: None
    )
    reasons = {case.name: unsupported_reason(case.abstract_call(dtype)) for case in wanted}
    taken = [case for case in wanted if reasons[case.name] is None]
    if not taken:
        refusals = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise KernelError(
            f"{kernel.key} takes none of the calls to time in {dtype}: "
            f"{refusals or f'the contract of {kernel.op} has no model_cases'}."
        )
    for name, reason in reasons.items():
        if reason is not None:
            click.echo(f"{name} is not timed: {reason}")
    return taken


def _tuned(
    kernel: Kernel,
    table: BlockSizeTable[Any],
    case: Case,
    dtype: str,
    repeats: int,
    hardware: Hardware,
) -> dict[str, Any]:
    """Return the entry of the best candidate for a call, and prints them all."""
    call = case.abstract_call(dtype)
    default = table.default(call, hardware)
    candidates = dict.fromkeys((default, *table.candidates(call, hardware)))
    with use_policy(KernelPolicy(hardware=hardware)):
        timings = [
            attrs.evolve(
                _timed(kernel, table, case, dtype, repeats, block_sizes),
                is_default=block_sizes == default,
            )
            for block_sizes in candidates
        ]
    click.echo(columns(_HEADS, [_cells(case, timing) for timing in timings]))
    ran = [timing for timing in timings if timing.seconds is not None]
    if not ran:
        raise KernelError(f"{kernel.key}: no candidate for {case.name} compiles; see above.")
    best = min(ran, key=lambda timing: timing.seconds or 0.0)
    return {
        "chip": hardware.chip,
        "bucket": dict(table.bucket(call)),
        "block_sizes": sizes_of(best.block_sizes),
        "seconds": best.seconds,
        "default": {"block_sizes": sizes_of(default), "seconds": _seconds_of(default, timings)},
        "call": str(call),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {"jax": jax.__version__, "python": platform.python_version()},
        "device": jax.devices()[0].device_kind,
    }


def _timed(
    kernel: Kernel,
    table: BlockSizeTable[Any],
    case: Case,
    dtype: str,
    repeats: int,
    block_sizes: Any,
) -> _Timing:
    inputs, spec = case.make(dtype)
    contract = contract_of(kernel.op)
    run = attrs.evolve(contract, forward=partial(_zeros_of, contract.forward)).function(
        kernel, functions_of(kernel)
    )

    def loss(inputs: Any) -> Any:
        outputs = jax.tree.leaves(case.run(run, inputs, spec))
        return sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in outputs)

    with table.forced(block_sizes):
        try:
            step = jax.jit(jax.value_and_grad(loss, allow_int=True)).lower(inputs).compile()
            jax.block_until_ready(step(inputs))  # type: ignore[no-untyped-call]
        except AxcoreError:
            raise
        except Exception as error:  # what compilers raise has no type in common
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:80]}"
            return _Timing(block_sizes=block_sizes, is_default=False, seconds=None, refusal=reason)
    return _Timing(
        block_sizes=block_sizes,
        is_default=False,
        seconds=min(_seconds(step, inputs) for _ in range(repeats)),
    )


def _zeros_of(forward: Any, inputs: Any, spec: Any) -> Any:
    """Return zeros in the place of a forward kernel's outputs, so that backward is timed alone."""
    outputs = jax.eval_shape(lambda inputs: forward(inputs, spec), inputs)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), outputs)


def _seconds(step: Any, inputs: Any) -> float:
    start = time.perf_counter()
    jax.block_until_ready(step(inputs))  # type: ignore[no-untyped-call]
    return time.perf_counter() - start


def _seconds_of(block_sizes: Any, timings: Sequence[_Timing]) -> float | None:
    return next(timing.seconds for timing in timings if timing.block_sizes == block_sizes)


def _cells(case: Case, timing: _Timing) -> tuple[str, ...]:
    sizes = ", ".join(f"{name} {size}" for name, size in sizes_of(timing.block_sizes).items())
    time_ms = "refused" if timing.seconds is None else f"{timing.seconds * 1e3:.3f}"
    return case.name, sizes, time_ms, timing.refusal or ("default" if timing.is_default else "")


def _address(row: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
    return row["chip"], tuple(sorted(row["bucket"].items()))
