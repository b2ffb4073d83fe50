"""Observers that a config names: found by name, made when the run has something to tell."""

from collections.abc import Iterable

from axcore.plugins import RunObserver, plugin_host
from axcore.trainer.events import Event, Observer


class NamedObserver:
    """An observer that a plugin brings, made at the first event; one that cannot be made raises."""

    def __init__(self, record: RunObserver) -> None:
        self._record = record
        self._observer: Observer | None = None

    def __call__(self, event: Event) -> None:
        """Hands the event on."""
        if self._observer is None:
            self._observer = self._record.fn.resolve()()
        self._observer(event)

    def __repr__(self) -> str:
        return f"{self._record.name!r} of plugin {self._record.plugin!r}"


def named_observers(names: Iterable[str]) -> tuple[Observer, ...]:
    """Returns the observers of those names, for one run."""
    known = {record.name: record for record in plugin_host().records(RunObserver)}
    return tuple(NamedObserver(known[name]) for name in names)
