"""What `axcore aot --search` compiles, what each setting needs and takes, and which it chooses.

    pip install "axl-tpu[aot]" "axl-gpu[aot]"
    python benchmarks/aot_search.py
    python benchmarks/aot_search.py --only h100

searches from the settings of each experiment's own rule, so that a search which chooses no change
says that the rule has what it finds. It writes `results/aot_search.json` after each, and then the
table of docs/aot.md (`aot_tables.py`). With `--only`, searches that do not hold the text stay as
they were recorded. What was compiled is kept, as the command keeps it. Nothing here has run on a
chip.
"""

import argparse
from typing import Any

import attrs
from _record import record, recorded, stamped
from aot_tables import write_page

from axcore.aot import Attempt, Report, ReportCache, compile_resolved, fastest, search
from axcore.experiments.named import load_resolved
from axcore.plugins import Hardware
from axcore.resilience.compile_cache import cache_folder

CASES = (
    ("llama2-7b", "tpu-v5p-512"),
    ("llama2-7b", "gpu-h100-8"),
)
"""Experiments and targets."""


def searched(experiment: str, target: str) -> dict[str, Any]:
    """Return what a search tried, in order, and what it chooses."""
    hardware = Hardware.parse(target)
    resolved = load_resolved(experiment, ("kernels.choice=fastest",), hardware=hardware)
    kept = ReportCache(cache_folder() / "reports")

    def compiled(config: Any) -> Report:
        report = compile_resolved(attrs.evolve(resolved, config=config), experiment, kept=kept)
        print(f"  fits: {report.fits}, {report.time and report.time.step_s} s", flush=True)
        return report

    def announce(changes: str) -> None:
        print(f"{experiment} on {target}, {changes}", flush=True)

    attempts = search(resolved.config, hardware, compiled, announce=announce)
    best = fastest(attempts)
    return {
        "chosen": None if best is None else list(best.changes),
        "attempts": [_shown(one) for one in attempts],
    }


def _shown(attempt: Attempt) -> dict[str, Any]:
    report = attempt.report
    memory = report.memory if report else None
    return {
        "changes": list(attempt.changes),
        "fits": attempt.fits,
        "needed_gib": round(memory.peak_bytes / 2**30, 1) if memory else None,
        "capacity_gib": round((memory.capacity_bytes or 0) / 2**30, 1) if memory else None,
        "predicted_step_s": report.time.step_s if report and report.time else None,
        "compile_s": report.compile_s if report else None,
        "reason": attempt.reason,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="searches whose name holds this text")
    wanted = parser.parse_args().only
    figures = recorded("aot_search") if wanted else {}
    for experiment, target in CASES:
        name = f"{experiment} on {target}"
        if wanted is None or any(text in name for text in wanted):
            figures[name] = stamped(searched(experiment, target), target)
            names = [" on ".join(case) for case in CASES]
            in_order = {one: figures[one] for one in names if one in figures}
            record("aot_search", in_order, command="python benchmarks/aot_search.py")
    print(f"written to benchmarks/results/aot_search.json and {write_page()}")


if __name__ == "__main__":
    main()
