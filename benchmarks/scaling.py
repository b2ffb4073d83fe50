"""Weak scaling on paper: one train step, compiled for ever larger slices at equal rows a chip.

    pip install "axl-tpu[aot]"
    python benchmarks/scaling.py
    python benchmarks/scaling.py --experiment llama2-7b --rows 4 --target tpu-v5p-512

prints the predicted step of each slice, what of it waits for collectives, and its speed for each
chip beside that on the smallest slice. It writes `results/scaling.json`. It is what the compiled
programs say: a prediction leaves out hosts that are late and links that fail, which is what costs
most in slices of thousands.
"""

import argparse
from typing import Any

from _record import record

from axcore.aot import compile_resolved
from axcore.cli.experiment import load_resolved
from axcore.plugins import Hardware

TARGETS = ("tpu-v5p-512", "tpu-v5p-2048", "tpu-v5p-8192")


def measured(experiment: str, target: str, rows: int) -> dict[str, Any]:
    """Returns the figures of one slice."""
    hardware = Hardware.parse(target)
    overrides = ("kernel_choice=fastest", f"data.batch_size={rows * hardware.chips}")
    report = compile_resolved(load_resolved(experiment, overrides, hardware=hardware), experiment)
    assert report.memory is not None, report.refusal
    time = report.time
    assert time is not None
    assert time.step_s is not None, "part of the step has no time"
    assert time.collectives_s is not None, "a collective has no time"
    assert time.mfu is not None, "the model FLOPs are not known"
    return {
        "chips": report.chips,
        "mesh": report.mesh,
        "batch": report.batch,
        "needs_gib": round(report.memory.peak_bytes / 2**30, 2),
        "predicted_step_s": round(time.step_s, 4),
        "waits_s": round(time.collectives_s, 4),
        "predicted_mfu": round(time.mfu, 4),
        "compile_s": round(report.compile_s, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiment", default="llama2-7b")
    parser.add_argument("--target", action="append", help="slices, the smallest first")
    parser.add_argument("--rows", type=int, default=4, help="rows of a chip")
    given = parser.parse_args()
    slices: dict[str, Any] = {}
    smallest_s = None
    print(f"{'target':14} {'chips':>6} {'step':>8} {'waits':>8} {'MFU':>7} {'efficiency':>11}")
    for target in given.target or TARGETS:
        one = slices[target] = measured(given.experiment, target, given.rows)
        smallest_s = smallest_s or one["predicted_step_s"]
        one["efficiency"] = round(smallest_s / one["predicted_step_s"], 4)
        print(
            f"{target:14} {one['chips']:6} {one['predicted_step_s']:8.3f} {one['waits_s']:8.3f} "
            f"{one['predicted_mfu']:7.1%} {one['efficiency']:11.1%}",
            flush=True,
        )
        figures = {"experiment": given.experiment, "rows_a_chip": given.rows, "slices": slices}
        record("scaling", figures)


if __name__ == "__main__":
    main()
