"""What happens in a run, as values that observers get; and observers that a config names.

An observer only watches: it gets one frozen event, and one that raises is switched off with a
warning, so that a broken display never ends a run. `Heartbeat` is the core's own.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import attrs

from axcore.config import immutabledict
from axcore.errors import AxcoreError, TrainingError
from axcore.module import ModelFlops
from axcore.plugins import RunObserver, plugin_host
from axcore.plugins.time_limit import CallThread, TakesTooLongError, callback_timeout_s, longer
from axcore.whole_files import write_whole


def _frozen(metrics: Mapping[str, float]) -> Mapping[str, float]:
    # Frozen: an observer in another thread may still read it when the next event comes.
    return immutabledict(metrics)


@attrs.frozen
class Event:
    """Something that happened in a run."""


@attrs.frozen
class RunStarted(Event):
    """The first step is about to run.

    `hardware_changes` says which mesh rule changed the config for the hardware, and what;
    `config_changes` is what differs from the start before, a line for each value.
    `unit` is what throughput counts. `flops`, what one of them costs the model, and `peak_flops`,
    all chips' peak in the compute dtype, are for the model FLOPs utilisation; None where not known.
    `units` has those of metrics, by name, as the task says them; `watched` are those that people
    watch besides the loss.
    `initial_weights` is a table of what was read and what is random, at the start only.
    """

    directory: str
    step: int
    max_steps: int
    num_params: int
    hardware: str
    hardware_changes: str
    mesh: str
    data: str
    kernels: str
    unit: str
    flops: ModelFlops | None
    peak_flops: float | None
    config_changes: tuple[str, ...] = ()
    initial_weights: str = ""
    units: Mapping[str, str] = immutabledict()
    watched: tuple[str, ...] = ()


Phase = Literal["start", "compile", "restore", "data_wait", "step", "evaluation", "save", "idle"]
"""What the time of a run is spent on; "save" is the part of a save that training waits for."""


@attrs.frozen
class PhaseStarted(Event):
    """Time is spent on something else from here on, until the next such event.

    There are two a step; only an observer with a true attribute `sees_phases` gets them.
    """

    label: Phase


@attrs.frozen
class RolledBack(Event):
    """The run went back from one step to an older one, to which `skips_data` gives new batches."""

    from_step: int
    step: int
    reason: str
    skips_data: bool


@attrs.frozen
class StepsDone(Event):
    """Some steps have run; the metrics are over the steps since the last such event."""

    step: int
    metrics: Mapping[str, float] = attrs.field(converter=_frozen)


@attrs.frozen
class Evaluated(Event):
    """The validation text was evaluated."""

    step: int
    metrics: Mapping[str, float] = attrs.field(converter=_frozen)


@attrs.frozen
class CheckpointSaved(Event):
    """A checkpoint is on the disk; training may be some steps past it by then."""

    step: int


@attrs.frozen
class RunFinished(Event):
    """The run ended at `step`; it is complete, or it was stopped and can be resumed.

    `stop_reason` is why a guard ended a run before its last step, which is complete then.
    """

    step: int
    is_complete: bool
    stop_reason: str = ""


Observer = Callable[[Event], None]


class Observers:
    """Passes every event to every observer, and drops those that raise."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = list(observers)

    def __call__(self, event: Event) -> None:
        """Pass an event to every observer that is still on."""
        is_phase = isinstance(event, PhaseStarted)
        # A copy, as one that raises is taken out while the list is read.
        for observer in list(self._observers):
            try:
                if not is_phase or getattr(observer, "sees_phases", False):
                    observer(event)
            # An observer is a convenience; none may end a run that costs more than all it shows.
            except Exception as error:
                self._observers.remove(observer)
                warnings.warn(
                    f"the observer {observer!r} {_told(error, event)}; it is switched off for "
                    f"the rest of the run\n  hint: {_hint(error)}",
                    stacklevel=2,
                )


def _told(error: Exception, event: Event) -> str:
    if isinstance(error, AxcoreError):
        return f"failed at {_shown(event)}: {error.what}"
    return f"raised {type(error).__name__}: {error} at {_shown(event)}"


def _hint(error: Exception) -> str:
    return getattr(error, "hint", None) or "correct it, or take it out of `observers`"


def _shown(event: Event) -> str:
    step = getattr(event, "step", None)
    return type(event).__name__ + ("" if step is None else f" of step {step}")


class _NamedObserver:
    """An observer that a plugin brings, made at the first event; one that cannot be made raises.

    It works in a thread of its own, while the run waits for it up to a time limit.
    """

    def __init__(self, record: RunObserver) -> None:
        self._record = record
        self._observer: Observer | None = None
        self._limit_s = callback_timeout_s()
        self._thread = CallThread(record.fn.target.partition(".")[0])

    @property
    def sees_phases(self) -> bool:
        """Whether the observer gets `PhaseStarted`; not before it is made."""
        return bool(getattr(self._observer, "sees_phases", False))

    def __call__(self, event: Event) -> None:
        """Hand the event on.

        Raises:
            TrainingError: The observer has not ended in time, or wants to end the process.
        """
        try:
            self._thread.within(self._limit_s, lambda: self._observe(event))
        except TakesTooLongError as place:
            raise TrainingError(
                f"it has not finished after {self._limit_s:g} s; it is at {place}",
                where=repr(self),
                hint=f"take it out of `observers`, or {longer(self._limit_s)}",
            ) from None
        except SystemExit as error:  # which would end the run without a word
            raise TrainingError(
                f"it wants to end the process: SystemExit({error.code!r})",
                where=repr(self),
                hint="take it out of `observers`; a guard can end a run",
            ) from error

    def _observe(self, event: Event) -> None:
        if self._observer is None:
            observer = self._record.call("fn", returns=object)
            if not callable(observer):
                raise self._record.wrong_return("fn", observer, "a function of an event")
            self._observer = observer
        self._observer(event)

    def __repr__(self) -> str:
        return f"{self._record.name!r} of plugin {self._record.plugin!r}"


def named_observers(names: Iterable[str]) -> tuple[Observer, ...]:
    """Return the observers of those names, for one run."""
    known = {record.name: record for record in plugin_host().records(RunObserver)}
    return tuple(_NamedObserver(known[name]) for name in names)


_HEARTBEAT_NAME = "heartbeat.json"


class Heartbeat:
    """Writes `heartbeat.json` when a run starts and at each report of its steps.

    A supervisor restarts a run whose file is older than some reports take; it is never there in
    part.
    """

    def __init__(self) -> None:
        self._directory: Path | None = None

    def __call__(self, event: Event) -> None:
        """Write the file where the event is one of those."""
        if isinstance(event, RunStarted):
            self._directory = Path(event.directory)
        if isinstance(event, RunStarted | StepsDone) and self._directory is not None:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            beat = {"step": event.step, "time": now, "pid": os.getpid()}
            write_whole(self._directory / _HEARTBEAT_NAME, f"{json.dumps(beat)}\n".encode())
