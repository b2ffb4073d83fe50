"""What happens in a run, as values that observers get.

An observer only watches: it gets one frozen event, and one that raises is switched off with a
warning, so that a broken display never ends a run.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import attrs

from axcore.config import immutabledict
from axcore.errors import AxcoreError
from axcore.module import ModelFlops


def _frozen(metrics: Mapping[str, float]) -> Mapping[str, float]:
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
    `units` has those of metrics, by name, as the task says them.
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
        for observer in list(self._observers):
            try:
                if not is_phase or getattr(observer, "sees_phases", False):
                    observer(event)
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
