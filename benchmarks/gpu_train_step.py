"""A train step of a Llama-3-8B-shaped model on one GPU: axcore in several ways, and PyTorch's.

    python benchmarks/gpu_train_step.py CASE                    # axcore_minimal, torch_cudnn, ...
    python benchmarks/gpu_train_step.py CASE --layers 8 --rows 1 --tokens 4096
    python benchmarks/gpu_train_step.py --dry-run               # traces toys of ours, anywhere

adds a case to `results/gpu_CHIP_train_step.json`: step time, tokens a second, memory, or
why it failed; and what the cases say together: MFU, the best in float8 by the best in bfloat16,
and ours by the fastest of PyTorch. Every call is a process of its own, so that no case holds
memory of another. Layers and rows are those that suit the memory of the card, unless they are
given: figures of another size are not kept. Without a GPU it says so, writes nothing and exits
with 1.

MFU is of the peak in bfloat16, in float8 too. What is recomputed is in a case's name: PyTorch
recomputes what `torch.compile` finds cheap, `minimal` every value but products.
"""

import argparse
import importlib.util
import os
import sys
from collections.abc import Mapping
from typing import Any

import attrs

os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.94")

from _gpu import Figures, failure, recorded, results_name
from _record import record, sources

OURS = {"attention": "gpu_flash_attention", "attention_backward": "gpu_flash_attention"}
CUDNN = {"attention": "cudnn_attention"}


@attrs.frozen(kw_only=True)
class Axcore:
    """A step by axcore.

    Args:
        remat: What layers keep for the backward pass, by a preset of `axcore.layers`.
        dtype: What linear layers multiply in: `bfloat16`, `fp8_current` or `fp8_delayed`.
        kernels: Pinned, by op.
        unroll: Layers in one step of the loop over them; 0 for all.
    """

    remat: str = "minimal"
    dtype: str = "bfloat16"
    kernels: Mapping[str, str] = CUDNN
    unroll: int = 1


@attrs.frozen(kw_only=True)
class Torch:
    """A step by PyTorch: `torch.compile`, AdamW fused, nothing checkpointed.

    Args:
        attention: A backend of `scaled_dot_product_attention`.
        repeats_heads: Whether keys and values are repeated for each query head, where a backend
            does not take fewer of them.
        is_tuned: Whether products are tuned, which takes minutes to compile.
    """

    attention: str
    repeats_heads: bool = False
    is_tuned: bool = False


CASES: Mapping[str, Axcore | Torch] = {
    "axcore_minimal": Axcore(),
    "torch_cudnn": Torch(attention="CUDNN_ATTENTION"),
    "axcore_fp8_delayed": Axcore(dtype="fp8_delayed"),
    "torch_flash": Torch(attention="FLASH_ATTENTION"),
    "axcore_own_attention": Axcore(kernels=OURS),
    "axcore_none": Axcore(remat="none"),
    "axcore_fp8_current": Axcore(dtype="fp8_current"),
    "torch_cudnn_repeated": Torch(attention="CUDNN_ATTENTION", repeats_heads=True),
    "axcore_unrolled": Axcore(unroll=0),
    "axcore_save_gate": Axcore(remat="save_gate"),
    "axcore_own_loss": Axcore(kernels={**CUDNN, "cross_entropy": "gpu_cross_entropy"}),
    "axcore_fp8_none": Axcore(dtype="fp8_delayed", remat="none"),
    "torch_cudnn_tuned": Torch(attention="CUDNN_ATTENTION", is_tuned=True),
}
"""By name, those that say most first."""


@attrs.frozen
class Size:
    """How much is computed in a step: layers, rows, and tokens of each row."""

    layers: int
    rows: int
    tokens: int = 8192


SIZES = {120: Size(12, 3), 70: Size(6, 2), 0: Size(2, 1)}
"""By the least memory of a card in GiB: what fits, also where nothing is recomputed."""


def size_for(memory_gib: float, args: argparse.Namespace) -> Size:
    """Return the size for a card, with what was asked for by hand."""
    size = next(size for least, size in SIZES.items() if memory_gib >= least)
    given = {name: getattr(args, name) for name in ("layers", "rows", "tokens")}
    return attrs.evolve(size, **{name: one for name, one in given.items() if one is not None})


def measure(name: str, args: argparse.Namespace) -> int:
    """Measure a case, adds it to the results, and return the code to exit with."""
    case = CASES[name]
    half: Any
    reason = None
    if isinstance(case, Axcore):
        import _train_step_axcore as half
    elif importlib.util.find_spec("torch") is None:
        reason = "torch: it is not installed"
    else:
        import _train_step_torch as half
    if (reason := reason or half.missing_reason()) is not None:
        print(f"this benchmark has not run; it lacks {reason}", file=sys.stderr)
        return 1
    gpu, memory_gib = half.card()
    size = size_for(memory_gib, args)
    try:
        found: Figures = half.measure(case, size)
    except Exception as error:  # out of memory, or no kernel: what it is, is the figure
        found = failure(error)
    file = results_name("train_step", gpu)
    figures = recorded(file, gpu=gpu, model="llama3-8b", size=attrs.asdict(size))
    figures["cases"] = {**figures.get("cases", {}), name: {**found, **sources()}}
    figures["best"] = best(figures["cases"])
    record(file, figures)
    print(name, found.get("failed", found.get("step_s")), figures["best"], flush=True)
    return 1 if "failed" in found else 0


def best(cases: Mapping[str, Figures]) -> Figures:
    """Return what the cases that ran say together, as far as there are enough of them."""
    wide, narrow, torch = (
        min((one for one in ran if one is not None), default=None)
        for ran in (
            [_step_s(cases, name, "bfloat16") for name in cases],
            [_step_s(cases, name, "fp8_delayed", "fp8_current") for name in cases],
            [_step_s(cases, name, None) for name in cases],
        )
    )
    peaks = [one["flops"] / one["peak_flops"] for one in cases.values() if one.get("peak_flops")]
    found: Figures = {}
    if peaks:
        steps = {"axcore": wide, "axcore_fp8": narrow, "torch": torch}
        found["mfu"] = {name: round(peaks[0] / one, 4) for name, one in steps.items() if one}
    if wide and narrow:
        found["fp8_speedup"] = round(wide / narrow, 4)
    if wide and torch:
        found["speedup_over_torch"] = round(torch / wide, 4)
    return found


def _step_s(cases: Mapping[str, Figures], name: str, *dtypes: str | None) -> float | None:
    """Return a case's time where its products are of such a dtype; PyTorch's is None."""
    dtype = getattr(CASES.get(name), "dtype", None)
    return cases[name].get("step_s") if dtype in dtypes else None


def main() -> int:
    """Measure one case, or trace ours."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=CASES, nargs="?", default="axcore_minimal")
    parser.add_argument("--layers", type=int, help="as many as suit the card where left out")
    parser.add_argument("--rows", type=int, help="likewise")
    parser.add_argument("--tokens", type=int, help="of a row, 8192 where left out")
    parser.add_argument("--dry-run", action="store_true", help="measure nothing, trace a toy")
    args = parser.parse_args()
    if not args.dry_run:
        return measure(args.case, args)
    case: Any = CASES[args.case]
    if isinstance(case, Axcore):
        from _train_step_axcore import trace_toy

        trace_toy(case)
    print(f"{args.case} can start" + ", as far as PyTorch is not needed" * isinstance(case, Torch))
    return 0


if __name__ == "__main__":
    sys.exit(main())
