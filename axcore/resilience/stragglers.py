"""`StragglerCheck`: a guard that names the process that keeps the others waiting.

In a synchronous run every process has the same step time, that of the slowest. What differs is the
time a process spends on its own: on its host, between handing one step to the devices and having
the batch of the next. A slow chip does not show there.
"""

import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from axcore.config import PositiveFloat, PositiveInt, config
from axcore.distributed import all_gather_object, is_process_zero, process_index
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


def slower_by(seconds: Sequence[float], process: int) -> float:
    """Return by how many MADs a process is slower than the median of all others.

    The MAD of the others counts as 10 % of their median and 1 ms at least, since few processes,
    or very equal ones, have next to none.
    """
    # Without itself: a slow process among two or three
    # would raise the median that it is compared with.
    others = [*seconds[:process], *seconds[process + 1 :]]
    middle = statistics.median(others)
    mad = statistics.median(abs(one - middle) for one in others)
    return (seconds[process] - middle) / max(mad, _LEAST_SPREAD * middle, _LEAST_SPREAD_S)


@attrs.define
class Stragglers:
    """How long each process has been slow.

    Args:
        mads: How many MADs slower than the others a slow process is.
        patience: After so many reports in a row it is named, once until it has recovered.
    """

    mads: float
    patience: int
    _slow_for: dict[int, int] = attrs.field(factory=dict)

    def report(self, seconds: Sequence[float]) -> list[int]:
        """Return the processes to be named now, from each one's seconds."""
        if len(seconds) < 2:
            return []
        for process in range(len(seconds)):
            is_slow = slower_by(seconds, process) > self.mads
            self._slow_for[process] = self._slow_for.get(process, 0) + 1 if is_slow else 0
        # Equal to, not more than: it is named once, until it was fast again.
        return [process for process, count in self._slow_for.items() if count == self.patience]


class StragglerCheck(Guard):
    """A comparison of processes at each log step; put it last: it sees the cost of other guards."""

    @config
    class Config(Guard.Config):
        """What a straggler is.

        Args:
            mads: How many median absolute deviations slower than the others.
            patience: For how many log steps in a row.
        """

        mads: PositiveFloat = 6.0
        patience: PositiveInt = 3

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self._stragglers = Stragglers(cfg.mads, cfg.patience)
        self._own: list[float] = []
        self._since: float | None = None

    def on_start(self, trainer: "Trainer", directory: Path) -> None:
        """Open the event log."""
        self._log = EventLog(directory, process_index())

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
        """Compare the processes, and name those that have been slow for long enough."""
        # The median: a garbage collection or a checkpoint
        # in one step of the window is not a straggler.
        own = statistics.median(self._own) if self._own else 0.0
        self._own.clear()
        # By all processes at the same step, as each guard is called at the same log lines.
        seconds = all_gather_object("comparing step times", lambda: own)
        for process in self._stragglers.report(seconds):
            if is_process_zero():
                self._name(step, process, seconds)
        self._since = time.perf_counter()  # the others were waited for

    def _name(self, step: int, process: int, seconds: Sequence[float]) -> None:
        others = statistics.median([*seconds[:process], *seconds[process + 1 :]])
        values = {"own_s": round(seconds[process], 4), "others_s": round(others, 4)}
        self._log.write("straggler", step=step, straggler=process, **values)
        warnings.warn(
            f"step {step}: process {process} keeps the others waiting: it spends "
            f"{seconds[process]:.3g} s a step on its host, the others {others:.3g} s",
            stacklevel=2,
        )
