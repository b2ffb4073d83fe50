"""How many of the digits that `digits-flow` draws are recognised as what they were to be.

    python benchmarks/digits_flow.py [--seeds 0 1] [--runs FOLDER]

A classifier is trained by `axcore train digits`, then a DiT for each seed by `axcore train
digits-flow`; with --runs, runs are kept in a folder, and resumed or taken as they are. Each DiT
draws 50 of each digit, with and without guidance. `recognised` is the share that the classifier
says is the class that was asked for; `spread` is how much pictures of a class differ, the standard
deviation of a pixel, compared with pictures of the data.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from _record import record
from axl_vision.generate import generate_images

from axcore.module import functional
from axcore.runs import Run, load_run

CLASSES, OF_EACH = 10, 50
GUIDANCE = (1.0, 2.0)


def trained(experiment: str, folder: Path, *overrides: str) -> tuple[Run, float]:
    """Return a run that is trained by the command, and how long that took."""
    command = [sys.executable, "-m", "axcore", "train", experiment, "--dir", str(folder)]
    since = time.perf_counter()
    subprocess.run([*command, *overrides], check=True, stdout=subprocess.DEVNULL)
    return load_run(folder), time.perf_counter() - since


def rows_of(run: Run) -> tuple[Any, Any]:
    """Return the pictures that were held out, and their classes."""
    batches = list(run.trainer.data.validation())
    real = np.concatenate([one["row_weights"] for one in batches]) > 0
    images, labels = (np.concatenate([one[name] for one in batches]) for name in ("image", "label"))
    return images[real], labels[real]


def spread(images: Any, labels: Any) -> float:
    """Return the mean over classes of how much a pixel differs within the class."""
    by_class = (images[labels == one].astype(np.float32) for one in range(CLASSES))
    return float(np.mean([np.std(one, axis=0).mean() for one in by_class]))


def main() -> None:
    """Train, draw, classify and record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--runs", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = given.runs or Path(folder)
        reader, _ = trained("digits", runs / "digits")
        classify = jax.jit(lambda images: functional(reader.model, reader.state, images)[0])
        images, labels = rows_of(reader)
        held_out = np.argmax(classify(images), axis=1) == labels
        figures: dict[str, Any] = {
            "held_out": {"pictures": len(labels), "recognised": round(float(held_out.mean()), 4)}
        }
        of_data = spread(images, labels)
        wanted = np.tile(np.arange(CLASSES), OF_EACH)
        for seed in given.seeds:
            own = ("--set", f"seed={seed}", "--set", f"data.seed={seed}")
            run, seconds = trained("digits-flow", runs / f"digits-flow-{seed}", *own)
            row = figures[f"seed {seed}"] = {"seconds_of_training": round(seconds, 1)}
            for guidance in GUIDANCE:
                drawn = generate_images(
                    run.model, run.state, wanted.tolist(), seed=seed, guidance=guidance
                )
                right = np.argmax(classify(drawn), axis=1) == wanted
                by_class = right.reshape(OF_EACH, CLASSES).mean(axis=0)
                row[f"guidance {guidance:g}"] = {
                    "recognised": round(float(right.mean()), 4),
                    "least_of_a_class": round(float(by_class.min()), 4),
                    "spread": round(spread(drawn, wanted) / of_data, 3),
                }
            print(seed, row, flush=True)
        record("digits_flow", figures)


if __name__ == "__main__":
    main()
