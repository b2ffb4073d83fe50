"""How fast GRPO learns to reverse strings from rewards alone, by seed.

    python benchmarks/grpo_learns.py [--seeds 0 1 2]

The experiment `grpo-reverse`, from random weights. Of strings that are never trained on the share
that is reversed exactly counts, by likeliest tokens, before training and at each evaluation; the
time is that of the full run, compilation included.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _record import record

from axcore.config import update_config
from axcore.rollouts.experiments import grpo_reverse
from axcore.testing.tiny import trainer_on

EXACT = "reward.exact"


def measured(seed: int) -> dict[str, Any]:
    """Train once, by the command."""
    trainer = trainer_on(update_config(grpo_reverse(), {"seed": seed, "data.seed": seed}), 1)
    before = trainer.evaluate(trainer.step.evaluated_model(trainer.first_state()))
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "axcore", "train", "grpo-reverse", "--dir", str(run)]
        command += ["--set", f"seed={seed}", "--set", f"data.seed={seed}"]
        since = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds = time.perf_counter() - since
        lines = [json.loads(one) for one in (run / "metrics.jsonl").open()]
    found = {str(one["step"]): one[EXACT] for one in lines if one["split"] == "validation"}
    return {
        "exact_before": before[EXACT],
        "exact_by_step": found,
        "seconds": round(seconds, 1),
    }


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parser.parse_args()
    figures = {}
    for seed in given.seeds:
        figures[f"seed {seed}"] = measured(seed)
        print(seed, json.dumps(figures[f"seed {seed}"]), flush=True)
        record("grpo_learns", figures)


if __name__ == "__main__":
    main()
