"""Observers that a config names: found by name, made when the run has something to report."""

from collections.abc import Iterable

from axcore.plugins import RunObserver, plugin_host
from axcore.trainer.callbacks.events import Event, Observer


class NamedObserver:
    """An observer that a plugin brings, made at the first event; one that cannot be made raises."""

    def __init__(self, record: RunObserver) -> None:
        self._record = record
        self._observer: Observer | None = None

    @property
    def sees_phases(self) -> bool:
        """Whether the observer gets `PhaseStarted`; not before it is made."""
        return bool(getattr(self._observer, "sees_phases", False))

    def __call__(self, event: Event) -> None:
        """Hands the event on."""
        if self._observer is None:
            observer = self._record.call("fn", returns=object)
            if not callable(observer):
                raise self._record.wrong_return("fn", observer, "a function of an event")
            self._observer = observer
        self._observer(event)

    def __repr__(self) -> str:
        return f"{self._record.name!r} of plugin {self._record.plugin!r}"


def named_observers(names: Iterable[str]) -> tuple[Observer, ...]:
    """Returns the observers of those names, for one run."""
    known = {record.name: record for record in plugin_host().records(RunObserver)}
    return tuple(NamedObserver(known[name]) for name in names)
