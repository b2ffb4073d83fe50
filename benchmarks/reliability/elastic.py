"""R11: the number of processes changes from 4 to 3 to 4; data and losses are those of a fixed run.

    python benchmarks/reliability/elastic.py --tries 3

Each try asks a run of several processes to stop at a random step, and resumes it with another
number of processes in the same directory. Every process keeps the rows that it trains on; together
they must be, step by step, the global batches of a run of four processes that nobody stopped.

Its default form takes about 12 minutes on two cores.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _paths  # noqa: F401 - finds what follows
import jax
import numpy as np
from _result import record_promise
from quick_flags import compile_cache
from several_processes import finish, start_all
from texts import write_text

from axcore.config import config, update_config
from axcore.trainer.guards import Guard

STEPS = 16
COUNTS = (4, 3, 4)


class KeepRows(Guard):
    """Writes the rows of each step into a file."""

    @config
    class Config(Guard.Config):
        """Names the folder."""

        folder: str

    def on_batch(self, step: int, batch: Any) -> Any:
        """Keep the rows as they are."""
        name = f"{step}_{jax.process_count()}_{jax.process_index()}.npy"
        np.save(Path(self.config.folder) / name, batch["tokens"])
        return batch


def work(address: str, count: str, index: str, scratch: str, run: str, stop_at: str) -> None:
    """Train as one process, and ask all to stop once `stop_at` steps are done."""
    from training_worker import config_of

    from axcore.distributed import TimeLimits, join_processes
    from axcore.trainer import StepsDone, stop_signals

    limits = TimeLimits(join_s=120, barrier_s=120, heartbeat_s=60)
    join_processes(address, process_count=int(count), process_index=int(index), limits=limits)
    stop_signals.AGREE_EVERY_S = 0  # so that they stop at that very step

    def stop(event: Any) -> None:
        if isinstance(event, StepsDone) and (event.step, index) == (int(stop_at), "0"):
            os.kill(os.getpid(), signal.SIGTERM)

    rows = KeepRows.Config(folder=f"{scratch}/{run}_rows")
    cfg = update_config(
        config_of(f"{scratch}/text"),
        {"data.batch_size": 12, "data.seq_len": 32, "mesh": {"data": -1}, "guards": (rows,)},
    )
    cfg.build().run(f"{scratch}/{run}", [stop], quiet=True, returns_when_stopped=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=3)
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        write_text(scratch / "text")
        train(scratch, "fixed", (STEPS,), (4,))
        found = [one_try(scratch, f"try{index}") for index in range(options.tries)]
    equal = sum(is_equal for is_equal, _ in found)
    text = (
        f"{equal} of {len(found)} runs of 4, 3, 4 processes saw the same tokens in the same order; "
        f"losses within {max(difference for _, difference in found):.1e} of the fixed run"
    )
    seconds = time.monotonic() - began
    print(text, record_promise("R11", tries=len(found), outcome=text, seconds=seconds))
    sys.exit(equal != len(found) or any(difference > 1e-5 for _, difference in found))


def one_try(scratch: Path, run: str) -> tuple[bool, float]:
    """Return whether a run that changes saw equal tokens, and how far its losses are off."""
    stops = (*sorted(random.sample(range(1, STEPS), 2)), STEPS)
    train(scratch, run, stops, COUNTS)
    wanted, found = losses(scratch / "fixed"), losses(scratch / run)
    is_equal = list(wanted) == list(found) and all(
        np.array_equal(rows(scratch, "fixed", step), rows(scratch, run, step))
        for step in range(1, STEPS + 1)
    )
    difference = max(abs(found[step] / wanted[step] - 1) for step in wanted)
    print(f"{run}: stopped at {stops}, equal: {is_equal}, {difference:.1e}", flush=True)
    return is_equal, difference


def train(scratch: Path, run: str, stops: tuple[int, ...], counts: tuple[int, ...]) -> None:
    """Train to each stop with so many processes."""
    (scratch / f"{run}_rows").mkdir()
    environment = compile_cache(scratch / "compiled")
    for stop, count in zip(stops, counts, strict=True):
        processes = start_all(
            Path(__file__), scratch, run, stop, count=count, environment=environment
        )
        ended = [finish(process, timeout_s=600) for process in processes]
        if any(one.exit_code for one in ended):
            raise RuntimeError(f"{run}, {count} processes: {ended}")


def rows(scratch: Path, run: str, step: int) -> Any:
    """Return the global batch of a step, as the processes that ran it last put it together."""
    folder = scratch / f"{run}_rows"
    newest = max(folder.glob(f"{step}_*.npy"), key=lambda path: path.stat().st_mtime)
    count = newest.name.split("_")[1]
    return np.concatenate([np.load(path) for path in sorted(folder.glob(f"{step}_{count}_*.npy"))])


def losses(directory: Path) -> dict[tuple[int, str], float]:
    """Return the loss of each logged step."""
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return {(line["step"], line["split"]): float(line["loss"]) for line in map(json.loads, lines)}


if __name__ == "__main__":
    work(*sys.argv[1:]) if len(sys.argv) == 7 else main()
