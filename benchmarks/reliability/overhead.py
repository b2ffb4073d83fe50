"""R20: what watching costs a step when nothing fails: ledger, heartbeat, guards, bounded dispatch.

One compiled step of a small model runs in two loops in turn, step by step, in one process: bare,
and with all that a run adds around each step. Two figures: the processor time of what is added,
as a share of a bare step's, which other work on the machine does not change; and the median ratio
of the time of neighbouring steps, whose order alternates.

    python benchmarks/reliability/overhead.py --pairs 300

Its default form takes about 3 minutes on two cores.
"""

import argparse
import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import numpy as np
from _result import record_promise

from axcore.config import update_config
from axcore.experiments.named import experiment
from axcore.resilience.corruption import CorruptionCheck
from axcore.resilience.faults import FaultPlan, Raise
from axcore.resilience.goodput import Goodput
from axcore.resilience.stragglers import StragglerCheck
from axcore.trainer import PhaseStarted, RunStarted, StepsDone
from axcore.trainer.callbacks import Observers
from axcore.trainer.guards import Guards

CHANGES = {"data.seq_len": 128, "data.batch_size": 8, "mesh": {"data": 2}}
NUM_CORES = len(os.sched_getaffinity(0))
LOG_EVERY = 10


class Bare:
    """A loop that takes a batch and makes a step."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.program = trainer.compiler.compiled_step
        self.state = trainer.compiler.jitted_init()
        self.step = 0
        self.cpu_s = 0.0

    def one(self, batch: Any) -> float:
        """Make one step, and return its seconds."""
        started, cpu = time.perf_counter(), time.process_time()
        self.make(batch)
        jax.block_until_ready(self.state)
        self.cpu_s += time.process_time() - cpu
        return time.perf_counter() - started

    def make(self, batch: Any) -> None:
        self.state, _ = self.program(self.state, self.trainer.batch_sharding.device_put(batch))
        self.step += 1


class Watched(Bare):
    """The same with observers and guards, as a run has them around each step."""

    def __init__(self, trainer: Any, folder: Path, observers: list[Callable[[Any], None]]) -> None:
        super().__init__(trainer)
        fault = Raise(at_step=10**9)
        configs = (
            FaultPlan.Config(faults=(fault,)),
            CorruptionCheck.Config(),
            StragglerCheck.Config(),
        )
        self.guards = Guards(configs)
        self.guards.on_start(trainer, folder)
        # What a guard compiles in the background belongs to the start, and to no step.
        for thread in threading.enumerate():
            if thread.name.startswith("axcore-probe"):
                thread.join()
        self.emit = Observers(observers)
        self.emit(started_event(folder))
        self.added_cpu_s = 0.0

    def make(self, batch: Any) -> None:
        with self.added():
            self.emit(PhaseStarted("data_wait"))
            batch = self.guards.on_batch(self.step + 1, batch)
        batch = self.trainer.batch_sharding.device_put(batch)
        with self.added():
            self.emit(PhaseStarted("step"))
        self.state, metrics = self.program(self.state, batch)
        self.step += 1
        jax.block_until_ready(self.state)  # so that only what is added is counted below
        with self.added():
            metrics.is_applied.block_until_ready()
            self.state = self.guards.on_state(self.step, self.state)
            if self.step % LOG_EVERY == 0:
                self.emit(StepsDone(step=self.step, metrics={}))
                self.guards.on_metrics(self.step, {})

    @contextlib.contextmanager
    def added(self) -> Iterator[None]:
        """Count the processor time of what is within."""
        before = time.process_time()
        yield
        self.added_cpu_s += time.process_time() - before


def started_event(folder: Path) -> RunStarted:
    texts = dict.fromkeys(("hardware", "hardware_changes", "mesh", "data", "kernels", "unit"), "")
    numbers = {"step": 0, "max_steps": 1, "num_params": 1, "flops": None, "peak_flops": None}
    return RunStarted(directory=str(folder), **texts, **numbers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=300)
    arguments = parser.parse_args()
    started = time.perf_counter()
    trainer = update_config(experiment("tiny"), CHANGES).build()
    with tempfile.TemporaryDirectory() as name, jax.set_mesh(trainer.mesh):
        bare, watched = Bare(trainer), Watched(trainer, Path(name), [Goodput()])
        batch = next(iter(trainer.data.train()))
        pairs = [pair(bare, watched, batch, i) for i in range(arguments.pairs + 3)][3:]
    ratios = np.array([with_all / without for without, with_all in pairs])
    step_s = float(np.median([without for without, _ in pairs]))
    added_s = watched.added_cpu_s / watched.step
    share = added_s / (bare.cpu_s / bare.step / NUM_CORES)  # added work keeps one core busy
    record_promise(
        "R20",
        tries=arguments.pairs,
        outcome=f"{100 * share:.2f} % of a step, by processor time; pairs of steps of "
        f"{1e3 * step_s:.0f} ms: {100 * float(np.median(ratios)) - 100:+.1f} % in the median",
        seconds=time.perf_counter() - started,
        added_microseconds_a_step=1e6 * added_s,
        cpu_seconds_of_a_bare_step=bare.cpu_s / bare.step,
        quartiles=[float(np.quantile(ratios, q)) - 1 for q in (0.25, 0.75)],
        load_average_1min=os.getloadavg()[0],
    )


def pair(bare: Bare, watched: Watched, batch: Any, number: int) -> tuple[float, float]:
    """Make a step of each, in turns first, and return their seconds."""
    if number % 2:
        without = bare.one(batch)
        return without, watched.one(batch)
    with_all = watched.one(batch)
    return bare.one(batch), with_all


if __name__ == "__main__":
    main()
