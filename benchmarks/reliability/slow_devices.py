"""R25: a device that takes longer for its probe than the others is named, and nobody else.

Eight devices of this host are probed again and again: first as they are, then each time with a
random one of them that has two or three times the work to do. Last, a small model trains under
`StragglerCheck` with more frequent probes, whose time is compared with the share that they may
take.

    python benchmarks/reliability/slow_devices.py --rounds 500 --tries 100

Its default form takes about 10 minutes on two cores.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import _paths  # noqa: F401 - first
import jax
from _record import hardware
from _result import record_promise
from corruption import SMALL

from axcore.config import update_config
from axcore.experiments.named import experiment
from axcore.plugins import Hardware
from axcore.resilience.device_probe import DeviceProbe, ProbeWork, slow_down
from axcore.resilience.stragglers import SlowDevices, StragglerCheck

NO_LONGER_S = 1e-9
STEPS = 3000
SHARE = 0.1
"""More than by default, for several probes in a short run."""


class Rounds:
    """Rounds of probes of all devices, and the seconds of each round."""

    def __init__(self) -> None:
        self.devices = jax.local_devices()
        self.probe = DeviceProbe(self.devices, ProbeWork.on(Hardware.detect()))
        self.seconds: list[float] = []

    def named(self, judge: SlowDevices) -> set[int]:
        """Return whom a round names."""
        began = time.perf_counter()
        rows = {str(device): row for device, row in self.probe.seconds().items()}
        self.seconds.append(time.perf_counter() - began)
        kinds = {str(device.id): device.device_kind for device in self.devices}
        report: Mapping[str, Any] = {"host": "here", "kinds": kinds, "devices": rows}
        slow, _ = judge.judge([report])
        return {one.device for _, one, _ in slow}


def noticed(rounds: Rounds, tries: int) -> tuple[int, int]:
    """Return how many slow devices were named, and how often another one was."""
    draw, right, wrong = random.Random(0), 0, 0
    for _ in range(tries):
        device, factor = draw.choice(rounds.devices), draw.choice((2, 3))
        judge = SlowDevices(StragglerCheck.Config())
        slow_down(device, factor, 3600)
        found: set[int] = set()
        for _ in range(StragglerCheck.Config().patience):
            found |= rounds.named(judge)
        slow_down(device, 1, NO_LONGER_S)
        right += device.id in found
        wrong += len(found - {device.id})
    return right, wrong


class TimedCheck(StragglerCheck):
    """One that notes when each probe ended, and how long it took."""

    probes: ClassVar[list[tuple[float, float]]] = []

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Compare, and note a probe."""
        super().on_metrics(step, metrics)
        if self._probed:
            self.probes.append((time.perf_counter(), self._probed["probe_s"]))


def share_of_a_run(folder: Path) -> tuple[float, int]:
    """Return which share of the time between its first and last probe a run spent on them."""
    guards = (TimedCheck.Config(device_share=SHARE),)
    changes = {**SMALL, "logging.every_steps": 10, "max_steps": STEPS, "guards": guards}
    trainer = update_config(experiment("tiny"), changes).build()
    trainer.run(folder / "run", quiet=True)
    ends, costs = zip(*TimedCheck.probes, strict=True)
    # Each probe pays for the time after it, until the end of the next.
    return sum(costs[:-1]) / (ends[-1] - ends[0]), len(ends)


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500, help="in which no device is slow")
    parser.add_argument("--tries", type=int, default=100, help="with a slow device each")
    given = parser.parse_args()
    began = time.monotonic()
    rounds, quiet = Rounds(), SlowDevices(StragglerCheck.Config())
    alarms = sum(len(rounds.named(quiet)) for _ in range(given.rounds))
    probe_s = statistics.median(rounds.seconds)
    right, wrong = noticed(rounds, given.tries)
    with tempfile.TemporaryDirectory() as name:
        share, probes = share_of_a_run(Path(name))
    path = record_promise(
        "R25",
        tries=given.tries,
        outcome=f"{right} of {given.tries} slow devices named, {wrong} others; {alarms} false "
        f"alarms in {given.rounds} probes; a probe of 8 devices takes {1e3 * probe_s:.0f} ms; with "
        f"device_share={SHARE:g}, {probes} probes took {share:.3f} of a run; load average "
        f"{os.getloadavg()[0]:.0f} on {len(os.sched_getaffinity(0))} cores",
        seconds=time.monotonic() - began,
        hardware=hardware(),
        probe_s=probe_s,
        share_of_run=share,
    )
    print(path)


if __name__ == "__main__":
    main()
