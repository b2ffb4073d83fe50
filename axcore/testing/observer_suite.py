"""`ObserverSuite`: an observer takes every event of a run, and changes nothing of it."""

from pathlib import Path
from typing import Any, ClassVar

import pytest

from axcore.plugins import RunObserver
from axcore.registration import Record
from axcore.testing.suite import Suite


class ObserverSuite(Suite):
    """Proves observers: `class TestObservers(ObserverSuite): plugin = "axl-acme"`."""

    kind: ClassVar[type[Record]] = RunObserver

    def make(self, record: RunObserver) -> Any:
        """Return an observer of one run."""
        return record.fn.resolve()()

    def events(self, folder: Path) -> tuple[Any, ...]:
        """Return the events of a run with every kind of them, in their order."""
        from axcore.trainer.callbacks import events

        return (
            events.RunStarted(
                directory=str(folder),
                step=0,
                max_steps=2,
                num_params=10,
                hardware="cpu-1",
                hardware_changes="",
                mesh="",
                data="a little text",
                kernels="",
                unit="tokens",
                flops=None,
                peak_flops=None,
            ),
            events.PhaseStarted(label="compile"),
            events.StepsDone(step=1, metrics={"loss": 2.0}),
            events.StepsDone(step=2, metrics={"loss": float("nan")}),
            events.Evaluated(step=1, metrics={"loss": 1.5}),
            events.Evaluated(step=2, metrics={"loss": float("inf")}),
            events.CheckpointSaved(step=2),
            events.RolledBack(from_step=2, step=1, reason="loss is nan", skips_data=True),
            events.RunFinished(step=2, is_complete=False, stop_reason="asked to"),
        )

    def test_observer_takes_every_event(
        self, record: RunObserver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Numbers that are not finite are among them; one that raises is switched off."""
        monkeypatch.chdir(tmp_path)
        observer = self.make(record)
        for event in self.events(tmp_path):
            try:
                observer(event)
            except Exception as error:
                raise AssertionError(
                    f"{record.key} raised {type(error).__name__} at {event}: {error}"
                ) from error

    def test_observers_of_two_runs_are_two(self, record: RunObserver, tmp_path: Path) -> None:
        """Run of one process would mix their events otherwise."""
        observer, other = self.make(record), self.make(record)
        assert observer is not other, f"runs would share one {record.key}"
        before = _state(other)
        for event in self.events(tmp_path):
            observer(event)
        shared = [name for name, value in _state(other).items() if before.get(name) != value]
        assert not shared, f"events of one run change {', '.join(shared)} of another's {record.key}"

    def test_observer_writes_into_no_other_folder_than_its_run(
        self, record: RunObserver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Run that are started in the same folder would mix their files."""
        run, here = tmp_path / "run", tmp_path / "here"
        for folder in (run, here):
            folder.mkdir()
        monkeypatch.chdir(here)
        observer = self.make(record)
        for event in self.events(run):
            observer(event)
        left = sorted(file.name for file in here.iterdir())
        assert not left, f"{record.key} leaves {left} in the folder that the run is started in"

    def test_observer_changes_no_event(self, record: RunObserver, tmp_path: Path) -> None:
        """Others see the same one after it."""
        observer = self.make(record)
        for event, untouched in zip(self.events(tmp_path), self.events(tmp_path), strict=True):
            before = repr(untouched)
            observer(event)
            assert repr(event) == before, f"{record.key} changes {type(event).__name__}"


def _state(observer: Any) -> dict[str, str]:
    """Return what an observer and its class hold, as text."""
    held = {**vars(type(observer)), **getattr(observer, "__dict__", {})}
    return {
        name: repr(value)
        for name, value in held.items()
        if not name.startswith("__") and not callable(value) and not hasattr(value, "__get__")
    }
