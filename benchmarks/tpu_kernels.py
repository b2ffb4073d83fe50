"""Attention on TPUs by two kernels, in the cycles that libtpu schedules for them: splash and ours.

Both are compiled by libtpu for chips that are not available, at heads of 128 in bfloat16, with four
query heads to a key head, on arrays that are not on the chip as a whole; ours by the block sizes
that axl-tpu gives it, splash by those of `SPLASH_FORMS` that take the fewest cycles: with a
backward kernel for queries and one for keys, or with a fused one, whose gradients of queries XLA
sums over blocks of keys. Cycles are the bundles of each branch of a kernel times how often its grid
takes the branch (`_bundles.py`), and for a block no fewer than its products take at the chip's
peak: what is computed, on one core, where copies are hidden under it. Those of XLA's sum (`dq_sum`)
are its own estimate. Documents are of random length, from a fixed seed, with a mean of 1024 tokens;
splash computes all blocks that causality leaves, ours those of documents alone. `share_of_peak` is
what kernels reach of the chip's peak in bfloat16 for `causal_4k`, by the products that `axcore aot`
counts.

    pip install "axl-tpu[aot]"
    python benchmarks/tpu_kernels.py                    # every target, every case
    python benchmarks/tpu_kernels.py --target tpu-v5p-8

writes `results/tpu_kernels.json`. Nothing here has run on a chip.
"""

import argparse
import itertools
import json
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

TARGETS = ("tpu-v5e-8", "tpu-v5p-8", "tpu-v6e-8")
HEADS, KEY_HEADS, WIDTH = 8, 2, 128
SPLASH_FORMS = tuple(itertools.product((512, 1024), (False, True)))
"""Tokens of a block, and whether the backward pass is fused."""
MEAN_DOCUMENT = 1024
SCOPED_VMEM = "xla_tpu_scoped_vmem_limit_kib"
SCOPED_VMEM_MIB = {"v5e": 120, "v5p": 56, "v6e": 120}
"""Nearly all that a chip has, so that arrays as a whole are not there: a step's are larger."""


@attrs.frozen
class Case:
    """One size of call."""

    rows: int
    tokens: int
    is_packed: bool


CASES = {
    "causal_4k": Case(8, 4096, False),
    "causal_32k": Case(1, 32768, False),
    "packed_4k": Case(8, 4096, True),
    "packed_32k": Case(1, 32768, True),
}

# -- In a process for one target -----------------------------------------------------------------


def call_of(case: Case) -> Any:
    """Return the inputs of a call, with real segments and abstract arrays, and its spec."""
    import jax
    import jax.numpy as jnp

    from axcore.ops import AttentionInputs, AttentionSpec

    def array(heads: int) -> Any:
        return jax.ShapeDtypeStruct((case.rows, case.tokens, heads, WIDTH), jnp.bfloat16)

    segments = documents(case) if case.is_packed else None
    keys = array(KEY_HEADS)
    inputs = AttentionInputs(array(HEADS), keys, keys, segments, segments)
    return inputs, AttentionSpec(scale=WIDTH**-0.5, right=0)


def documents(case: Case) -> np.ndarray:
    """Return segments `[rows, tokens]` of documents whose lengths are sampled from a fixed seed."""
    starts = np.random.default_rng(0).random((case.rows, case.tokens)) < 1 / MEAN_DOCUMENT
    return (1 + np.cumsum(starts, axis=1)).astype(np.int32)


def compiled(attend: Any, case: Case, hardware: Hardware, device: Any) -> Any:
    """Return the program of output and gradients."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    inputs, spec = call_of(case)
    here = SingleDeviceSharding(device)
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), inputs)

    def loss(inputs: Any) -> Any:
        return jnp.sum(attend(inputs, spec)[0].astype(jnp.float32))

    lowered = jax.jit(jax.grad(loss, allow_int=True)).lower(abstract)
    limit = SCOPED_VMEM_MIB[hardware.generation or ""] * 1024
    return lowered.compile(compiler_options={SCOPED_VMEM: limit})


def temporary_bytes(program: Any) -> int:
    return int(program.memory_analysis().temp_size_in_bytes)


def dq_sum_cycles(program: Any, case: Case, hardware: Hardware, block: int) -> float:
    """Return XLA's estimate for one core of summing gradients of queries over blocks of keys.

    No other array is as large as these gradients of all blocks.
    """
    partial_size = case.rows * HEADS * case.tokens * WIDTH * (case.tokens // block)
    cycles = [
        (one.instruction.number("estimated_cycles") or 0) * one.times
        for one in executions(parse_program(program.as_text()))
        if any(
            one.computation.by_name[name].shape.size == partial_size
            for name in one.instruction.operands
        )
    ]
    if not any(cycles):
        raise ValueError(f"nothing sums gradients of {partial_size} numbers")
    return float(hardware.units_per_chip * sum(cycles))


PRODUCTS = {"fwd": 2, "dq": 3, "dkv": 4, "bwd": 5}
"""Products of a block's queries with its keys, or of as many numbers, by kernel."""


def product_cycles(hardware: Hardware, block_q: int, block_k: int) -> float:
    """Return the cycles of one product of a block on a core, at the chip's peak."""
    per_second = hardware.peak_flops["bfloat16"] / hardware.units_per_chip
    return 2 * block_q * block_k * WIDTH / (per_second / (hardware.clock_hz or 1.0))


def splash_cycles(
    folder: Path, case: Case, hardware: Hardware, size: int, *, fused: bool
) -> dict[str, float]:
    """Return the cycles of splash's kernels; branches are a first step, a block, a last step."""
    num = case.tokens // size
    heads, key_heads = case.rows * HEADS, case.rows * KEY_HEADS
    live, kind = num * (num + 1) // 2, "_segmented" if case.is_packed else ""
    ends = {"fwd": heads * num, "dq": heads * num, "dkv": key_heads * num}
    kernels = {"fwd": "fwd", "bwd": "dkv"} if fused else {name: name for name in ends}
    return {
        name: schedule_of(folder, f"splash_mha_{kernel}{kind}")
        .no_less((1,), PRODUCTS[name] * product_cycles(hardware, size, size))
        .cycles(heads * num * num, (ends[kernel], heads * live, ends[kernel]))
        for name, kernel in kernels.items()
    }


def our_cycles(folder: Path, case: Case, hardware: Hardware) -> dict[str, float]:
    """Return the cycles of our kernels, by the visits that their grids make."""
    cycles = {}
    for name, ((block_q, block_k), num_steps, taken) in our_steps(case, hardware).items():
        middle = len(taken) // 2
        live = (middle - 1, middle) if len(taken) % 2 == 0 else (middle, middle + 1)
        floor = PRODUCTS[name] * product_cycles(hardware, block_q, block_k)
        schedule = schedule_of(folder, f"tpu_flash_attention_{name}").no_less(live, floor)
        cycles[name] = schedule.cycles(num_steps, taken)
    return cycles


Steps = tuple[tuple[int, int], int, tuple[float, ...]]
"""Queries and keys of a block, steps of a grid, and how often each branch is taken."""


def our_steps(case: Case, hardware: Hardware) -> dict[str, Steps]:
    """Return the steps of our kernels; of branches, masked and full visits are in the middle."""
    from axl_tpu.kernels.attention.block_sizes import BACKWARD_BLOCK_SIZES, BLOCK_SIZES

    from axcore.ops.attention.op import ATTENTION_OP

    inputs, spec = call_of(case)
    call = ATTENTION_OP.call(inputs, spec, lse=False)
    fwd, back = (
        table.entry(call, hardware).block_sizes for table in (BLOCK_SIZES, BACKWARD_BLOCK_SIZES)
    )
    heads, key_heads = float(case.rows * HEADS), float(case.rows * KEY_HEADS)
    block, dq_block = (fwd.block_q, fwd.block_k), (back.dq_block_q, back.dq_block_k)
    dkv_block = (back.dkv_block_q, back.dkv_block_k)
    by_keys = Walk.of(case, *dkv_block, by_keys=True)
    steps = {"fwd": (block, *Walk.of(case, *block, by_keys=False).taken(HEADS, HEADS))}
    if back.at_once:
        (num, (first, masked, whole, _)), ends = by_keys.taken(HEADS, HEADS), (heads, key_heads)
        columns = (first,) if case.is_packed else ()
        return steps | {"bwd": (dkv_block, num, (*ends, *columns, masked, whole, *ends))}
    dq = Walk.of(case, *dq_block, by_keys=False).taken(HEADS, HEADS)
    return steps | {"dq": (dq_block, *dq), "dkv": (dkv_block, *by_keys.taken(HEADS, KEY_HEADS))}


@attrs.frozen
class Walk:
    """The visits of all rows: steps of a head, and how many of them have what flags."""

    num_steps: int
    first: int
    masked: int
    whole: int

    @classmethod
    def of(cls, case: Case, block_q: int, block_k: int, *, by_keys: bool) -> "Walk":
        """Return the walk of a case, by its real segments."""
        from axl_tpu.kernels.attention.block_schedule import (
            FIRST,
            LIVE,
            MASKED,
            Blocking,
            block_schedule,
        )

        inputs, spec = call_of(case)
        cut = Blocking.of(inputs, block_q, block_k)
        walk = block_schedule(inputs, spec, cut, by_keys=by_keys)
        num_steps = int(walk.num_steps)
        codes = np.asarray(walk.codes_BP)[:, :num_steps]
        codes = np.broadcast_to(codes, (case.rows, num_steps))
        live, masked = (codes & LIVE) != 0, (codes & MASKED) != 0
        counts = (codes & FIRST) != 0, live & masked, live & ~masked
        return cls(case.rows * num_steps, *(int(np.sum(count)) for count in counts))

    def taken(self, heads: int, ends: int) -> tuple[int, tuple[float, ...]]:
        """Return the steps, and branches taken: first visits, masked, whole, and last visits."""
        first, masked, whole = ends * self.first, heads * self.masked, heads * self.whole
        return heads * self.num_steps, tuple(map(float, (first, masked, whole, first)))


def measured_splash(
    folder: Path, case: Case, hardware: Hardware, device: Any
) -> list[dict[str, Any]]:
    """Return splash's figures by each form, that of the fewest cycles first."""
    from axl_tpu.kernels.attention.splash import BLOCK_SIZES, SplashBlockSizes, splash_attention

    found = []
    for size, fused in SPLASH_FORMS:
        with BLOCK_SIZES.forced(SplashBlockSizes(size, fused_backward=fused)):
            program = compiled(splash_attention, case, hardware, device)
        cycles = splash_cycles(folder, case, hardware, size, fused=fused)
        if fused:
            cycles["dq_sum"] = dq_sum_cycles(program, case, hardware, size)
        found.append(
            {
                "block": size,
                "fused_backward": fused,
                "cycles": cycles,
                "temporary_bytes": temporary_bytes(program),
            }
        )
        forget(folder)
    return sorted(found, key=lambda one: sum(one["cycles"].values()))


def forget(folder: Path) -> None:
    """Remove the schedules of what was compiled so far."""
    for path in folder.iterdir():
        path.unlink()


def measure(target: str, folder: Path) -> dict[str, Any]:
    """Return the figures of one target, in the process that compiles for it."""
    from axl_tpu.kernels.attention.api import tpu_flash_attention, tpu_flash_attention_backward

    from axcore.ops import KernelPolicy, use_policy
    from axcore.ops.attention.op import attention_custom_vjp

    def ours(inputs: Any, spec: Any) -> Any:
        return attention_custom_vjp(
            inputs, spec, forward=tpu_flash_attention, backward=tpu_flash_attention_backward
        )

    hardware = Hardware.parse(target)
    device = compile_devices(find_aot_target(hardware), hardware)[0]
    figures: dict[str, Any] = {}
    for name, case in CASES.items():
        with use_policy(KernelPolicy(hardware=hardware)):
            forms = measured_splash(folder, case, hardware, device)
            our_bytes = temporary_bytes(compiled(ours, case, hardware, device))
        our = {"cycles": our_cycles(folder, case, hardware), "temporary_bytes": our_bytes}
        figures[name] = {
            "splash": forms[0],
            "splash_in_other_forms": forms[1:],
            "ours": our,
            "ours_over_splash": ratios(our, forms),
        }
        forget(folder)
    return {"share_of_peak": shares_of_peak(figures["causal_4k"], hardware), **figures}


def shares_of_peak(figures: dict[str, Any], hardware: Hardware) -> dict[str, float]:
    """Return what share of the peak both kernels reach for `causal_4k`, forward and backward."""
    case = CASES["causal_4k"]
    visible = product_cycles(hardware, case.tokens, case.tokens) * case.rows * HEADS / 2
    shares = {}
    for name, one in (
        ("splash_attention", figures["splash"]),
        ("tpu_flash_attention", figures["ours"]),
    ):
        cycles = {part: one["cycles"][part] for part in PRODUCTS if part in one["cycles"]}
        back = [part for part in cycles if part != "fwd"]
        for role, parts in (("attention", ["fwd"]), ("attention_backward", back)):
            made = visible * sum(PRODUCTS[part] for part in parts)
            shares[f"{role}/{name}"] = round(made / sum(cycles[part] for part in parts), 3)
    return shares


def ratios(ours: dict[str, Any], forms: list[dict[str, Any]]) -> dict[str, float]:
    """Return our cycles over those of splash's best form; the sum of a fused one's gradients of
    queries is counted, and left out as if it cost nothing.
    """
    return {
        name: round(part(ours) / min(map(part, forms)), 3)
        for name, part in (
            ("forward", lambda one: one["cycles"]["fwd"]),
            ("backward", backward_cycles),
            ("backward_without_dq_sum", lambda one: backward_cycles(one, "dq_sum")),
        )
    }


def backward_cycles(one: dict[str, Any], *left_out: str) -> float:
    """Return the cycles of a backward pass."""
    cycles = one["cycles"].items()
    return float(sum(number for name, number in cycles if name not in ("fwd", *left_out)))


# -- In the process that asks them all -----------------------------------------------------------


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    targets = arguments.target or TARGETS
    if arguments.folder:
        print(json.dumps(measure(targets[0], arguments.folder)))
    else:
        figures = {one: stamped(scheduled_apart(__file__, one), one) for one in targets}
        print(record("tpu_kernels", recorded("tpu_kernels") | figures))
