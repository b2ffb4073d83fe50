"""Grouped products and cross-entropy on TPUs, in the cycles that libtpu schedules: ours and others.

`tpu_grouped_matmul` compared with `megablox`, and `tpu_cross_entropy` compared with the portable
one, forward and backward, compiled by libtpu for chips that are not available. Cycles of a kernel
are the bundles of each of its branches times how often its grid takes it (`_bundles.py`), over the
cores of a chip; those of XLA's own instructions are its estimates, with loops counted. Groups are
of random size, from a fixed seed. Where a schedule shows fewer cycles than a kernel's products take
at the chip's peak,
the matrix units wait in ways that it does not show: `roofline` names such kernels, whose cycles are
those of the peak. Programs with one have no `total`, and only those without are compared.
`share_of_peak` is what kernels for grouped products reach of the chip's peak in bfloat16.

    pip install "axl-tpu[aot]"
    python benchmarks/tpu_products.py                    # every target
    python benchmarks/tpu_products.py --target tpu-v5p-8

writes `results/tpu_products.json`. Nothing here has run on a chip.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from _bundles import schedule_of, scheduled_apart
from _record import record, recorded, stamped

from axcore.aot import compile_devices, find_aot_target
from axcore.aot.hlo.loops import executions
from axcore.aot.hlo.program import parse_program
from axcore.plugins import Hardware
from axcore.report.table import markdown_table

TARGETS = ("tpu-v5e-8", "tpu-v5p-8", "tpu-v6e-8")
ROWS, EXPERTS, WIDTH, HIDDEN = 16384, 8, 4096, 14336
TOKENS, VOCABULARIES = 8192, (32000, 128256)
KERNELS = {"ours": "tpu_grouped_matmul", "megablox": "megablox"}

# -- In a process for one target -----------------------------------------------------------------


def compiled(fn: Callable[..., Any], device: Any, *arrays: tuple[tuple[int, ...], str]) -> Any:
    """Return a program for one device, from shapes and dtypes."""
    import jax
    from jax.sharding import SingleDeviceSharding

    here = SingleDeviceSharding(device)
    abstract = [jax.ShapeDtypeStruct(shape, dtype, sharding=here) for shape, dtype in arrays]
    return jax.jit(fn).lower(*abstract).compile()


def xla_cycles(program: Any) -> float:
    """Return the estimated cycles of all instructions that XLA wrote, with loops counted."""
    ran = executions(parse_program(program.as_text()))
    return float(sum((one.instruction.number("estimated_cycles") or 0) * one.times for one in ran))


@attrs.frozen
class Cycles:
    """Cycles of a kernel on a chip, and whether they are no more than its products at the peak."""

    number: float
    is_roofline: bool


def kernel_cycles(
    folder: Path, kernel: str, hardware: Hardware, flops: float, steps: "Steps"
) -> Cycles:
    """Return the cycles scheduled for a kernel, or those of its products at the peak if more."""
    scheduled = schedule_of(folder, kernel).cycles(*steps) / hardware.units_per_chip
    at_peak = flops / hardware.peak_flops["bfloat16"] * (hardware.clock_hz or 0.0)
    return Cycles(max(scheduled, at_peak), is_roofline=scheduled < at_peak)


Steps = tuple[float, tuple[float, ...]]
"""Steps of a grid, and how often each branch is taken."""


def group_sizes() -> np.ndarray:
    """Return rows of each group, of random size."""
    shares = np.random.default_rng(0).dirichlet(np.full(EXPERTS, 4.0))
    ends = np.round(np.cumsum(shares) * ROWS).astype(np.int32)
    return np.diff(ends, prepend=0)


def num_visits(block: int) -> int:
    """Return how many pairs there are of a block of rows and a group with rows in it."""
    ends = np.cumsum(group_sizes())
    return int(np.sum((ends - 1) // block - (ends - group_sizes()) // block + 1))


def grouped(folder: Path, hardware: Hardware, device: Any) -> dict[str, Any]:
    """Return the figures of both grouped products."""
    import jax
    from axl_tpu.kernels.grouped_matmul.api import tpu_grouped_matmul, tpu_grouped_matmul_backward
    from axl_tpu.kernels.grouped_matmul.megablox import megablox, megablox_backward

    from axcore.ops.grouped_matmul.op import GROUPED_MATMUL_OP, GroupedMatmulInputs

    figures = {}
    for name, forward, backward, steps in (
        ("megablox", megablox, megablox_backward, megablox_steps()),
        ("ours", tpu_grouped_matmul, tpu_grouped_matmul_backward, our_steps(hardware)),
    ):
        multiply = partial(GROUPED_MATMUL_OP.custom_vjp, forward=forward, backward=backward)

        def run(x: Any, w: Any, sizes: Any, dy: Any, multiply: Any = multiply) -> Any:
            of_arrays = lambda x, w: multiply(GroupedMatmulInputs(x, w, sizes), None)  # noqa: E731
            y, pull_back = jax.vjp(of_arrays, x, w)
            return y, pull_back(dy)

        program = compiled(
            run,
            device,
            ((ROWS, WIDTH), "bfloat16"),
            ((EXPERTS, WIDTH, HIDDEN), "bfloat16"),
            ((EXPERTS,), "int32"),
            ((ROWS, HIDDEN), "bfloat16"),
        )
        flops = 2.0 * ROWS * WIDTH * HIDDEN
        parts = {
            part: kernel_cycles(folder, kernel, hardware, flops, taken)
            for part, (kernel, taken) in steps.items()
        }
        figures[name] = with_program(parts, program)
        emptied(folder)
    return figures


def megablox_steps() -> dict[str, tuple[str, Steps]]:
    """Return megablox's kernels; branches are a first part, a last part, any other; of matrices a
    first visit, each visit, a last one.
    """
    from axl_tpu.kernels.grouped_matmul.megablox import MAX_TILE, ROW_TILES

    tile, visits = MAX_TILE["bfloat16"], num_visits(ROW_TILES[0])

    def rows(summed: int, columns: int) -> Steps:
        outer, parts = visits * (columns // tile), summed // tile
        return outer * parts, (outer, outer, outer * (parts - 1))

    blocks = (WIDTH // tile) * (HIDDEN // tile)
    matrices = visits * blocks, (EXPERTS * blocks, visits * blocks, EXPERTS * blocks)
    return {
        "forward": ("jvp_jit_gmm__.", rows(WIDTH, HIDDEN)),
        "rows": ("jvp_jit_gmm___.", rows(HIDDEN, WIDTH)),
        "matrices": ("jvp_jit_tgmm", matrices),
    }


def our_steps(hardware: Hardware) -> dict[str, tuple[str, Steps]]:
    """Return our kernels; branches are a first part, a last part, any other if there are several,
    and the end; of matrices a first visit, one of a full block, one of a part, and a last one.
    """
    from axl_tpu.kernels.grouped_matmul.block_sizes import BLOCK_SIZES

    from axcore.ops import Call

    call = Call(
        op="grouped_matmul",
        shapes=(("x", (ROWS, WIDTH)), ("w", (EXPERTS, WIDTH, HIDDEN))),
        dtypes=(("x", "bfloat16"),),
    )
    block_sizes = BLOCK_SIZES.entry(call, hardware).block_sizes
    visits = num_visits(block_sizes.rows)
    listed = ROWS // block_sizes.rows + EXPERTS

    def rows(summed: int, columns: int) -> Steps:
        fitted = block_sizes.fitted(ROWS, summed, columns)
        outer, parts = columns // fitted.columns, summed // fitted.summed
        taken = [outer * visits] * (3 if parts == 1 else 4)
        if parts > 1:
            taken[2] *= parts - 1
        return outer * listed * parts, tuple(float(times) for times in taken)

    _, height, width = block_sizes.of_gradient(ROWS, WIDTH, HIDDEN)
    blocks = (WIDTH // height) * (HIDDEN // width)
    shared = 2 * (visits - ROWS // block_sizes.rows)
    taken = (EXPERTS * blocks, (visits - shared) * blocks, shared * blocks, EXPERTS * blocks)
    return {
        "forward": ("jvp_tpu_grouped_matmul_.", rows(WIDTH, HIDDEN)),
        "rows": ("jvp_tpu_grouped_matmul__.", rows(HIDDEN, WIDTH)),
        "matrices": ("tpu_grouped_matmul_matrices", (listed * blocks, taken)),
    }


def losses(folder: Path, hardware: Hardware, device: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the figures of both cross-entropies, by size of the vocabulary."""
    import jax
    from axl_tpu.kernels.cross_entropy.api import tpu_cross_entropy, tpu_cross_entropy_backward

    from axcore.ops import CrossEntropyInputs, CrossEntropySpec
    from axcore.ops.cross_entropy.kernels import cross_entropy_portable
    from axcore.ops.cross_entropy.op import cross_entropy_custom_vjp

    ours = partial(
        cross_entropy_custom_vjp, forward=tpu_cross_entropy, backward=tpu_cross_entropy_backward
    )
    for vocabulary_size in VOCABULARIES:
        figures = {}
        for name, fn in (("portable", cross_entropy_portable), ("ours", ours)):

            def run(x: Any, w: Any, targets: Any, weights: Any, fn: Any = fn) -> Any:
                def loss(x: Any, w: Any) -> Any:
                    inputs = CrossEntropyInputs(x, w, targets, weights)
                    return fn(inputs, CrossEntropySpec()).loss

                return jax.value_and_grad(loss, argnums=(0, 1))(x, w)

            program = compiled(
                run,
                device,
                ((1, TOKENS, WIDTH), "bfloat16"),
                ((WIDTH, vocabulary_size), "float32"),
                ((1, TOKENS), "int32"),
                ((1, TOKENS), "float32"),
            )
            parts = loss_cycles(folder, hardware, vocabulary_size) if name == "ours" else {}
            figures[name] = with_program(parts, program)
            emptied(folder)
        yield f"cross_entropy_{vocabulary_size}", figures


def loss_cycles(folder: Path, hardware: Hardware, vocabulary_size: int) -> dict[str, Cycles]:
    """Return the cycles of our kernels, whose branches are all of first or last steps."""
    from axl_tpu.kernels.cross_entropy.block_sizes import BLOCK_SIZES

    from axcore.ops import Call

    call = Call(
        op="cross_entropy",
        shapes=(("x", (TOKENS, WIDTH)), ("w", (WIDTH, vocabulary_size))),
        dtypes=(("x", "bfloat16"),),
    )
    block_sizes = BLOCK_SIZES.entry(call, hardware).block_sizes.fitted(TOKENS, vocabulary_size)
    by_row, by_word = TOKENS // block_sizes.rows, -(-vocabulary_size // block_sizes.vocabulary)
    flops = 4.0 * TOKENS * WIDTH * vocabulary_size
    found = {}
    for name, kernel, ends in (
        ("forward", "jvp_tpu_cross_entropy_.", by_row),
        ("backward", "tpu_cross_entropy_backward", by_word),
    ):
        num_branches = len(schedule_of(folder, kernel).branches)
        steps = by_row * by_word, (float(ends),) * num_branches
        found[name] = kernel_cycles(folder, kernel, hardware, flops, steps)
    return found


def with_program(parts: dict[str, Cycles], program: Any) -> dict[str, Any]:
    """Return the cycles of kernels with those of XLA's instructions, and the temporaries."""
    cycles = {name: round(part.number) for name, part in parts.items()}
    cycles["xla"] = round(xla_cycles(program))
    roofline = [name for name, part in parts.items() if part.is_roofline]
    return {
        "cycles": cycles,
        "roofline": roofline,
        "total": None if roofline else sum(cycles.values()),
        "temporary_bytes": int(program.memory_analysis().temp_size_in_bytes),
    }


def emptied(folder: Path) -> None:
    """Remove what the compiler wrote to a folder."""
    for path in folder.iterdir():
        path.unlink()


def measure(target: str, folder: Path) -> dict[str, Any]:
    """Return the figures of one target, in the process that compiles for it."""
    from axcore.ops import KernelPolicy, use_policy

    hardware = Hardware.parse(target)
    device = compile_devices(find_aot_target(hardware), hardware)[0]
    with use_policy(KernelPolicy(hardware=hardware)):
        products = grouped(folder, hardware, device)
        return {
            "share_of_peak": shares_of_peak(products, hardware),
            "grouped_matmul": products,
            **dict(losses(folder, hardware, device)),
        }


def shares_of_peak(figures: dict[str, Any], hardware: Hardware) -> dict[str, float]:
    """Return what share of the peak grouped products reach, forward and backward."""
    at_peak = 2.0 * ROWS * WIDTH * HIDDEN / hardware.peak_flops["bfloat16"]
    at_peak *= hardware.clock_hz or 0.0
    return {
        f"{role}/{KERNELS[who]}": round(
            len(parts) * at_peak / sum(one["cycles"][x] for x in parts), 3
        )
        for who, one in figures.items()
        for role, parts in (
            ("grouped_matmul", ("forward",)),
            ("grouped_matmul_backward", ("rows", "matrices")),
        )
    }


# -- In the process that asks them all -----------------------------------------------------------


def table(figures: dict[str, Any]) -> str:
    """Return the cycles of all targets as Markdown, in millions."""
    rows = [
        (call, target.split("-")[1], who, _millions(one))
        for target, calls in figures.items()
        for call, programs in calls.items()
        if call not in ("share_of_peak", "made")
        for who, one in programs.items()
    ]
    return markdown_table(("call", "chip", "by", "million cycles"), rows)


def _millions(one: dict[str, Any]) -> str:
    text = f"{sum(one['cycles'].values()) / 1e6:.1f}"
    if not one["roofline"]:
        return text
    return f"at least {text}: {' and '.join(one['roofline'])} at the chip's peak"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    targets = arguments.target or TARGETS
    if arguments.folder:
        print(json.dumps(measure(targets[0], arguments.folder)))
    else:
        figures = recorded("tpu_products")
        for target in targets:
            figures[target] = stamped(scheduled_apart(__file__, target), target)
            path = record("tpu_products", figures)
        print(f"{table(figures)}\n{path}")
