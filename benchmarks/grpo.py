"""How long a GRPO step takes, compared with TRL's.

    python benchmarks/grpo.py --torch-python VENV/bin/python [--rounds 3]

The model of the experiment `tiny` with random float32 weights, prompts of 16 tokens, groups of 8
completions of at most 64 tokens, 64 completions a step, no divergence penalty. TRL's GRPOTrainer
generates by transformers, as it does on a CPU. Both have all cores. The sides take turns, each in a
process of its own; of a step's time the median counts, and of rounds the median of ratios.

`sync` is the time in which the engine takes over the weights of a step: by default, where it copies
what the trainer scans, and for a model whose layers are trained unrolled, where it shares arrays.

`--torch-python` is the Python of the environment of `make parity`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from _record import record

HERE = Path(__file__).parent
LOAD = {"rows": 64, "group": 8, "prompt": 16, "completion": 64, "warm_up": 4, "steps": 12}


def measured(python: str, script: str, *, is_shared: bool = False) -> dict[str, Any]:
    """Return what a side measured."""
    load = json.dumps({**LOAD, "threads": os.cpu_count(), "is_shared": is_shared})
    paths = {} if python == sys.executable else {"PYTHONPATH": ""}
    done = subprocess.run(
        [python, str(HERE / script), load],
        env={**os.environ, **paths},
        capture_output=True,
        text=True,
        check=False,
    )
    results = [one for one in done.stdout.splitlines() if one.startswith("RESULT ")]
    if not results:
        raise SystemExit(f"{script} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(results[-1].removeprefix("RESULT "))
    return {
        name: statistics.median(value) if isinstance(value, list) else value
        for name, value in found.items()
    }


def sync_share(rounds: list[dict[str, Any]], side: str) -> float:
    """Return the share of a step in which weights are handed over."""
    return statistics.median(one[side]["sync_s"] / one[side]["step_s"] for one in rounds)


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch-python", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    rounds = []
    for number in range(given.rounds):
        ours = measured(sys.executable, "_grpo_axcore.py")
        rival = measured(given.torch_python, "_grpo_trl.py")
        unrolled = measured(sys.executable, "_grpo_axcore.py", is_shared=True)
        rounds.append(
            {
                "axcore": ours,
                "axcore, shared arrays": unrolled,
                "trl": rival,
                "ratio": ours["step_s"] / rival["step_s"],
            }
        )
        print(f"round {number + 1}: {json.dumps(rounds[-1])}", flush=True)
        figures = {
            "load": LOAD,
            "ratio": statistics.median(one["ratio"] for one in rounds),
            "sync_share": sync_share(rounds, "axcore"),
            "sync_share, shared arrays": sync_share(rounds, "axcore, shared arrays"),
            "rounds": rounds,
        }
        record("grpo", figures)


if __name__ == "__main__":
    main()
