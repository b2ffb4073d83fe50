"""A train step of a Llama-3-8B-shaped model on one GPU: axcore in bfloat16 and float8, and PyTorch.

    python benchmarks/gpu_train_step.py                       # as many layers as fit all three
    python benchmarks/gpu_train_step.py --layers 8 --tokens 4096
    python benchmarks/gpu_train_step.py --kernels cross_entropy=gpu_cross_entropy
    python benchmarks/gpu_train_step.py --dry-run             # trace toys of ours, anywhere

writes `results/gpu_train_step.json`: step times, MFU, and ours over PyTorch's (below 1 is better).
All rivals run in the same call, one after another, each in a process of its own, so that none
holds memory of another. Without a GPU or torch it says so, writes nothing and exits with 1.

MFU is of the peak in bfloat16, in float8 too. Nothing is recomputed in backward, by any rival.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

RIVALS = ("axcore_bfloat16", "axcore_float8", "torch_bfloat16")
ALL_MEMORY = {"XLA_PYTHON_CLIENT_PREALLOCATE": "true", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.94"}
LAYERS = (32, 24, 20, 16, 12, 10, 8, 6, 4, 2)
"""What is tried until a number of layers fits."""


def measure(rival: str, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of one rival, in this process."""
    size = {"layers": args.layers, "rows": args.rows, "tokens": args.tokens}
    framework, _, dtype = rival.partition("_")
    if framework == "torch":
        import _train_step_torch

        return _train_step_torch.measure(size)
    import _train_step_axcore

    kernels = dict(one.split("=", 1) for one in args.kernels)
    return _train_step_axcore.measure(size, dtype, kernels=kernels)


def measure_apart(rival: str, layers: int, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of one rival, in a process of its own, or why there are none."""
    options = [f"--{name}={getattr(args, name)}" for name in ("rows", "tokens")]
    kernels = [f"--kernels={one}" for one in args.kernels]
    command = [sys.executable, __file__, f"--rival={rival}", f"--layers={layers}"]
    done = subprocess.run(
        [*command, *options, *kernels],
        env={**os.environ, **ALL_MEMORY},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return figures
    return {"failed": (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]}


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Returns all rivals at the largest number of layers at which none failed.

    Raises:
        SystemExit: They fail at every number; the reasons are in the message.
    """
    reasons = []
    for layers in (args.layers,) if args.layers else LAYERS:
        figures = {}
        for rival in RIVALS:
            print(f"{rival}: {layers} layers", file=sys.stderr, flush=True)
            figures[rival] = measure_apart(rival, layers, args)
            if "failed" in figures[rival]:
                reasons.append(f"{rival}, {layers} layers: {figures[rival]['failed']}")
                print(reasons[-1], file=sys.stderr, flush=True)
                break
        else:
            return {"layers": layers, "did_not_fit": reasons, **summary(figures)}
    raise SystemExit("nothing was measured:\n" + "\n".join(reasons))


def summary(figures: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns figures with PyTorch's MFU, by the same FLOPs, and the ratios of step times."""
    ours, torch = figures["axcore_bfloat16"], figures["torch_bfloat16"]
    if ours["mfu_of_bfloat16_peak"] is not None:
        share = ours["mfu_of_bfloat16_peak"] * ours["step_s"] / torch["step_s"]
        torch["mfu_of_bfloat16_peak"] = share
    ratios = {
        name: round(figures[name]["step_s"] / torch["step_s"], 4)
        for name in ("axcore_bfloat16", "axcore_float8")
    }
    return {"rivals": figures, "step_time_over_torch": ratios}


def main() -> None:
    """Compares, and records; or measures one rival for the process that compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=0, help="as many as fit where left out")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=8192, help="of a row")
    parser.add_argument("--kernels", action="append", default=[], metavar="OP=NAME")
    parser.add_argument("--dry-run", action="store_true", help="measure nothing, trace our halves")
    parser.add_argument("--rival", choices=RIVALS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.dry_run:
        import _train_step_axcore

        _train_step_axcore.trace_toys()
        print("both of our halves can start")
        return
    if args.rival:
        print(json.dumps(measure(args.rival, args)))
        return
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # it is the rivals that need memory
    from _gpu import gpu, stop_where_something_is_missing

    stop_where_something_is_missing(("torch",))
    from _record import record

    sizes = {"rows": args.rows, "tokens": args.tokens, "model": "llama3-8b"}
    print(record(Path(__file__).stem, {**gpu(), **sizes, **compare(args)}))


if __name__ == "__main__":
    main()
