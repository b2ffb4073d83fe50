"""`StragglerCheck`: a guard that names the process, or the device, that keeps the others waiting.

In a synchronous run every process has the same step time, that of the slowest. What differs is the
time a process spends on its own: on its host, between handing one step to the devices and having
the batch of the next. A slow device does not show there; it is found by a probe, small programs
that each device runs alone between two steps.

Processes exchange one message at each log step, from each to process 0 and back. The seconds of a
probe travel in that of the next one.
"""

import socket
import statistics
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from axcore.config import NonNegativeFloat, PositiveFloat, PositiveInt, config
from axcore.distributed import decide_together, process_index
from axcore.errors import ConfigError
from axcore.resilience.device_probe import PROGRAMS, DeviceProbe, ProbeWork
from axcore.resilience.event_log import EventLog
from axcore.trainer import Guard
from axcore.trainer.step import TrainState

if TYPE_CHECKING:
    from axcore.trainer import Trainer

# Several equal machines have next to no spread: without this
# a process that is hardly slower would be many MADs away.
_LEAST_SPREAD = 0.1
# The host's part of a step may take microseconds,
# where a scheduler's tick looks like a factor of ten.
_LEAST_SPREAD_S = 1e-3
# What the first probe of devices counts as, before any was timed: about that of eight chips. A
# start that does not live long enough to pay for a probe makes none.
_FIRST_PROBE_S = 0.1


def slower_by(
    seconds: Sequence[float],
    which: int,
    *,
    least_spread: float = _LEAST_SPREAD,
    least_spread_s: float = _LEAST_SPREAD_S,
) -> float:
    """Return by how many MADs one of several is slower than the median of all others.

    The MAD of the others counts as 10 % of their median and 1 ms at least, since few processes,
    or very equal ones, have next to none.
    """
    # Without itself: a slow process among two or three
    # would raise the median that it is compared with.
    middle = _median_of_others(seconds, which)
    mad = statistics.median(abs(one - middle) for one in _others(seconds, which))
    return (seconds[which] - middle) / max(mad, least_spread * middle, least_spread_s)


def _others(seconds: Sequence[float], which: int) -> list[float]:
    return [*seconds[:which], *seconds[which + 1 :]]


def _median_of_others(seconds: Sequence[float], which: int) -> float:
    return statistics.median(_others(seconds, which))


@attrs.define
class Stragglers:
    """How long each of several processes, or devices, has been slow.

    Args:
        mads: How many MADs slower than the others a slow one is.
        patience: After so many reports in a row it is named, once until it has recovered.
        least_spread: What the MAD counts as at least, as a part of the median.
        least_spread_s: The same in seconds.
    """

    mads: float
    patience: int
    least_spread: float = _LEAST_SPREAD
    least_spread_s: float = _LEAST_SPREAD_S
    _slow_for: dict[int, int] = attrs.field(factory=dict)

    def report(self, seconds: Sequence[float]) -> list[int]:
        """Return which are to be named now, from the seconds of each."""
        if len(seconds) < 2:
            return []
        slow = set(self._slow(seconds))
        # Those that were fast are in no dictionary: a run may have 100,000 devices.
        self._slow_for = {one: self._slow_for.get(one, 0) + 1 for one in sorted(slow)}
        # Equal to, not more than: it is named once, until it was fast again.
        return [one for one, count in self._slow_for.items() if count == self.patience]

    def _slow(self, seconds: Sequence[float]) -> Iterator[int]:
        # Without the slowest, for no median of others is below this one: what is not slow beside it
        # needs no comparison of its own, each of which takes time in proportion to the run.
        lowest = statistics.median(sorted(seconds)[:-1])
        spread = max(self.least_spread * lowest, self.least_spread_s)
        for one, own in enumerate(seconds):
            if own - lowest > self.mads * spread:
                by = slower_by(
                    seconds,
                    one,
                    least_spread=self.least_spread,
                    least_spread_s=self.least_spread_s,
                )
                if by > self.mads:
                    yield one


@attrs.frozen
class ProbedDevice:
    """A device's seconds for one program of the probe, and whose it is."""

    process: int
    host: str
    device: int
    kind: str
    seconds: float


class StragglerCheck(Guard):
    """A comparison of processes at each log step; put it last: it sees the cost of other guards.

    At some log steps, devices are compared as well.
    """

    @config
    class Config(Guard.Config):
        """What a straggler is.

        Args:
            mads: How many median absolute deviations slower than the others.
            patience: For how many log steps, or probes, in a row.
            device_ratio: How many times as long as the others of its kind a slow device takes at
                least for the same program.
            device_share: Which share of the run's time probes of devices may take; 0 for none.
        """

        mads: PositiveFloat = 6.0
        patience: PositiveInt = 3
        device_ratio: PositiveFloat = 1.15
        device_share: NonNegativeFloat = 0.001

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self._stragglers = Stragglers(cfg.mads, cfg.patience)
        self._own: list[float] = []
        self._since: float | None = None
        self._slow_devices = SlowDevices(cfg)
        self._probe: Future[DeviceProbe] | None = None
        self._probed: dict[str, Any] = {}
        self._due_at = 0.0
        self._measured: Mapping[str, float] = {}

    def check(self, trainer: "Trainer") -> None:
        """Check that a slow device is slower than others.

        Raises:
            ConfigError: It need not be.
        """
        if self.config.device_ratio <= 1:
            raise ConfigError(
                f"device_ratio is {self.config.device_ratio:g}, so equal devices would be slow",
                where="guards",
                hint="set device_ratio to 1.15, or another number above 1",
            )

    def on_start(self, trainer: "Trainer", directory: Path) -> None:
        """Open the event log, and begin to compile the probe."""
        self._log = EventLog(directory, process_index())
        if self.config.device_share:
            self._due_at = time.monotonic() + _FIRST_PROBE_S / self.config.device_share
            devices = trainer.mesh.local_devices
            self._kinds = {device.id: device.device_kind for device in devices}
            # In a thread, since nobody waits for it: the first probe comes when all have it. It
            # runs nothing on the devices, where its order among the steps would matter.
            with_one = ThreadPoolExecutor(1, thread_name_prefix="axcore-probe")
            self._probe = with_one.submit(DeviceProbe, devices, ProbeWork.on(trainer.hardware))
            with_one.shutdown(wait=False)

    def on_batch(self, step: int, batch: Any) -> Any:
        """End the time that this process spent on its own."""
        if self._since is not None:
            self._own.append(time.perf_counter() - self._since)
        # Between the dispatch of a step and its batch a process does what is its own;
        # inside a step all are as slow as the slowest, so step times say nothing.
        return batch

    def on_state(self, step: int, state: TrainState) -> TrainState:
        """Begin it, when a step was handed to the devices."""
        self._since = time.perf_counter()
        return state

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Compare the processes, and name those that have been slow for long enough.

        Probe the devices, too, if process 0 says that this is due.
        """
        # The median: a garbage collection or a checkpoint
        # in one step of the window is not a straggler.
        own = statistics.median(self._own) if self._own else 0.0
        self._own.clear()
        is_ready = self._probe is not None and self._probe.done()
        report = {"own_s": own, "is_ready": is_ready, **self._probed}
        # By all processes at the same step, as each guard is called at the same log lines.
        is_due = decide_together(
            "comparing step times", lambda: report, lambda reports: self._judge(step, reports)
        )
        self._probed = {}
        if is_due and self._probe is not None:
            began = time.perf_counter()
            # The metrics of a log line were waited for, so the devices have nothing else to do.
            seconds = {str(one): row for one, row in self._probe.result().seconds().items()}
            self._probed = {
                "host": socket.gethostname(),
                "kinds": {str(one): kind for one, kind in self._kinds.items()},
                "devices": seconds,
                "probe_s": time.perf_counter() - began,
            }
        self._since = time.perf_counter()  # the others were waited for

    def measured(self, step: int, state: TrainState) -> Mapping[str, float]:
        """Return how the slowest device compares, once for each probe."""
        measured, self._measured = self._measured, {}
        return measured

    def _judge(self, step: int, reports: Sequence[Mapping[str, Any]]) -> bool:
        """Name whoever is slow; return whether devices are to be probed now. Process 0 alone."""
        seconds = [one["own_s"] for one in reports]
        for process in self._stragglers.report(seconds):
            self._name(step, process, seconds)
        if all("devices" in one for one in reports):
            self._judge_devices(step, reports)
        return all(one["is_ready"] for one in reports) and time.monotonic() >= self._due_at

    def _judge_devices(self, step: int, reports: Sequence[Mapping[str, Any]]) -> None:
        # All wait for the process whose probe took longest.
        cost_s = max(one["probe_s"] for one in reports)
        self._due_at = time.monotonic() + cost_s / self.config.device_share
        slow, self._measured = self._slow_devices.judge(reports)
        for program, one, others_s in slow:
            ratio = one.seconds / others_s
            self._log.write(
                "slow_device",
                step=step,
                straggler=one.process,
                host=one.host,
                device=one.device,
                kind=one.kind,
                program=program,
                own_s=one.seconds,
                others_s=others_s,
                ratio=round(ratio, 3),
            )
            warnings.warn(
                f"step {step}: device {one.device} ({one.kind}) of process {one.process} on "
                f"{one.host} is slow: alone it takes {1e3 * one.seconds:.3g} ms for the probe of "
                f"{program}, the others {1e3 * others_s:.3g} ms",
                stacklevel=2,
            )

    def _name(self, step: int, process: int, seconds: Sequence[float]) -> None:
        others = _median_of_others(seconds, process)
        values = {"own_s": round(seconds[process], 4), "others_s": round(others, 4)}
        self._log.write("straggler", step=step, straggler=process, **values)
        warnings.warn(
            f"step {step}: process {process} keeps the others waiting: it spends "
            f"{seconds[process]:.3g} s a step on its host, the others {others:.3g} s",
            stacklevel=2,
        )


class SlowDevices:
    """How long devices have been slow, by their kind and the program of the probe."""

    def __init__(self, cfg: StragglerCheck.Config) -> None:
        self._cfg = cfg
        self._stragglers: dict[tuple[str, str], Stragglers] = {}

    def judge(
        self, reports: Sequence[Mapping[str, Any]]
    ) -> tuple[list[tuple[str, ProbedDevice, float]], dict[str, float]]:
        """Return whom to name, with the program and the others' seconds; and what to log."""
        slow: list[tuple[str, ProbedDevice, float]] = []
        measured: dict[str, float] = {}
        for (kind, program), rows in _by_kind(reports).items():
            if len(rows) < 2:
                continue
            seconds = [one.seconds for one in rows]
            slowest = max(range(len(rows)), key=seconds.__getitem__)
            ratio = seconds[slowest] / _median_of_others(seconds, slowest)
            name = f"slowest_device/{program}"
            measured[name] = max(ratio, measured.get(name, 0.0))
            for which in self._of(kind, program).report(seconds):
                slow.append((program, rows[which], _median_of_others(seconds, which)))
        return slow, measured

    def _of(self, kind: str, program: str) -> Stragglers:
        cfg = self._cfg
        # With this spread, so many MADs are the least ratio: among devices that are
        # all alike, no smaller one is a straggler.
        spread = (cfg.device_ratio - 1) / cfg.mads
        new = Stragglers(cfg.mads, cfg.patience, spread, least_spread_s=0.0)
        return self._stragglers.setdefault((kind, program), new)


def _by_kind(
    reports: Sequence[Mapping[str, Any]],
) -> dict[tuple[str, str], list[ProbedDevice]]:
    """Return what was probed by kind of device and program, in the order of processes."""
    found: dict[tuple[str, str], list[ProbedDevice]] = {}
    for process, report in enumerate(reports):
        for device, row in report["devices"].items():
            kind = report["kinds"][device]
            for program, seconds in zip(PROGRAMS, row, strict=True):
                one = ProbedDevice(process, report["host"], int(device), kind, seconds)
                found.setdefault((kind, program), []).append(one)
    return found
