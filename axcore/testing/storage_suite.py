"""`StorageSuite`: a step is there whole or not at all, whenever the one who wrote it stopped."""

import functools
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from axcore.plugins import CheckpointStorage
from axcore.registration import Record
from axcore.testing.suite import Suite

_CHANGES = frozenset({"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate"})
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_MOST = 400
"""Changes of files after which an operation counts as one that never ends."""


class CutShort(BaseException):
    """Nothing catches this: it simulates the end of a process."""


class StorageSuite(Suite):
    """Proves checkpoint storages: `class TestStorages(StorageSuite): plugin = "axl-acme"`."""

    kind: ClassVar[type[Record]] = CheckpointStorage

    def make(self, record: CheckpointStorage, folder: Path) -> str:
        """Return a place as `record.fn` takes it, all of whose files are below `folder`.

        Override where it is not a directory.
        """
        return str(folder / "steps")

    @pytest.fixture
    def place(self, record: CheckpointStorage, tmp_path: Path) -> str:
        """The place to test."""
        return self.make(record, tmp_path)

    @pytest.fixture
    def storage(self, record: CheckpointStorage, place: str) -> Any:
        """The storage to test, locked for writing."""
        opened = record.fn.resolve()(place)
        lock = opened.lock()
        yield opened
        lock.release()

    def test_opening_touches_nothing(
        self, record: CheckpointStorage, place: str, tmp_path: Path
    ) -> None:
        """A config may be looked at anywhere."""
        assert record.fn.resolve()(place).committed() == ()
        assert list(tmp_path.iterdir()) == []

    def test_a_draft_is_no_step_until_it_is_committed(self, storage: Any) -> None:
        """And is empty when it begins again."""
        _write(storage, 7)
        assert storage.committed() == ()
        storage.begin(7)
        assert list(storage.staging_directory(7).iterdir()) == []
        storage.abandon(7)
        assert not storage.staging_directory(7).exists()
        assert storage.committed() == ()

    def test_a_committed_step_holds_what_was_written(self, storage: Any) -> None:
        """In files and in folders."""
        _save(storage, 7)
        assert storage.committed() == (7,)
        assert _is_whole(storage, 7)
        assert not storage.staging_directory(7).exists()

    def test_steps_are_listed_in_order_and_deleted_alone(self, storage: Any) -> None:
        """By number, not by name."""
        for step in (2, 10, 100_000_000):
            _save(storage, step)
        assert storage.committed() == (2, 10, 100_000_000)
        storage.delete(10)
        assert storage.committed() == (2, 100_000_000)
        assert _is_whole(storage, 2)

    def test_later_steps_are_quarantined_by_an_earlier_one(self, storage: Any) -> None:
        """They are no longer steps."""
        for step in (1, 2, 3):
            _save(storage, step)
        assert storage.at_or_after(2) == (2, 3)
        _save(storage, 2)
        assert storage.committed() == (1, 2)
        assert storage.at_or_after(3) == ()

    def test_one_step_is_quarantined_alone(self, storage: Any) -> None:
        """It is a step no more."""
        for step in (1, 2, 3):
            _save(storage, step)
        storage.quarantine(2)
        assert storage.committed() == (1, 3)
        assert all(_is_whole(storage, step) for step in (1, 3))

    def test_each_quarantined_step_is_kept(self, storage: Any, tmp_path: Path) -> None:
        """A human looks at it: a step that is damaged twice leaves both."""
        texts = {b"the first of them", b"the second of them"}
        for text in sorted(texts):
            _write(storage, 2)
            (storage.staging_directory(2) / "a").write_bytes(text)
            storage.commit(2)
            storage.replicate(2)
            storage.quarantine(2)
        assert storage.committed() == ()
        kept = {file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
        assert texts <= kept, f"lost when another was quarantined: {sorted(texts - kept)}"

    def test_a_good_step_is_known_in_every_process_until_it_goes(
        self, record: CheckpointStorage, place: str, storage: Any
    ) -> None:
        """The mark belongs to the step."""
        for step in (1, 2, 3):
            _save(storage, step)
        assert storage.known_good() == ()
        for step in (1, 3, 3):
            storage.mark_good(step)
        assert record.fn.resolve()(place).known_good() == (1, 3)
        storage.delete(1)
        assert storage.known_good() == (3,)
        _save(storage, 3)
        assert storage.known_good() == ()

    def test_a_damaged_step_is_replaced_by_another_copy_or_not_at_all(self, storage: Any) -> None:
        """And no other step changes."""
        for step in (1, 2, 3):
            _save(storage, step)
        (storage.path(2) / "a").write_text("damaged")
        is_replaced = storage.replace_damaged(2)
        assert _is_whole(storage, 2) == is_replaced
        assert storage.committed() == (1, 2, 3)
        assert all(_is_whole(storage, step) for step in (1, 3))

    def test_another_process_sees_the_same(
        self, record: CheckpointStorage, place: str, storage: Any
    ) -> None:
        """What is known is in the place, not in the object, whenever that was opened."""
        early = record.fn.resolve()(place)
        assert early.committed() == ()
        _save(storage, 5)
        for other in (early, record.fn.resolve()(place)):
            assert other.committed() == (5,), "a step that was saved meanwhile is not seen"
            assert _is_whole(other, 5)

    def test_one_at_a_time_may_write(
        self, record: CheckpointStorage, place: str, storage: Any
    ) -> None:
        """Until the lock is released."""
        from axcore.errors import CheckpointError

        with pytest.raises(CheckpointError, match="already saving checkpoints"):
            record.fn.resolve()(place).lock()

    def test_a_writer_that_stops_anywhere_harms_no_step(
        self, record: CheckpointStorage, tmp_path: Path
    ) -> None:
        """At each single change of a file: what counts as a step is whole, and saving continues."""
        for changes in range(1, _MOST):
            folder = tmp_path / str(changes)
            folder.mkdir()
            place = self.make(record, folder)
            done = self._cut_short(record, place, changes)
            self._check_goes_on(record, place)
            if done:
                assert changes > 3, "nothing was ever cut short"
                return
        raise AssertionError(f"it takes more than {_MOST} changes to save and delete a step")

    def _cut_short(self, record: CheckpointStorage, place: str, changes: int) -> bool:
        """Save and delete until so many files have changed; return whether that was the end."""
        storage = record.fn.resolve()(place)
        lock = storage.lock()
        try:
            _save(storage, 1)
            with _fuse().lit(changes):
                _save(storage, 2)
                storage.delete(1)
                _save(storage, 3)
        except CutShort:
            return False
        finally:
            lock.release()
        return True

    def _check_goes_on(self, record: CheckpointStorage, place: str) -> None:
        storage = record.fn.resolve()(place)
        steps = storage.committed()
        assert steps, "every step is lost"
        lock = storage.lock()
        assert set(storage.committed()) >= set(steps)
        for step in storage.committed():
            assert _is_whole(storage, step), f"step {step} is there in part"
        _save(storage, 9)
        assert storage.committed()[-1] == 9
        lock.release()

    def test_a_state_is_saved_and_restored_bit_by_bit(
        self, record: CheckpointStorage, place: str
    ) -> None:
        """Through the checkpointer, as a run does; old steps go."""
        import jax.numpy as jnp
        import numpy as np

        from axcore.checkpoint import Checkpointer

        cfg = Checkpointer.Config(directory=f"{record.name}://{place}", keep=2)
        states = {step: {"w": jnp.arange(8.0) * step} for step in (1, 2, 3)}
        with cfg.build() as checkpoints, warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "Python 3.12.[012] starts no threads")
            for step, state in states.items():
                checkpoints.save(step, state, {"step": step})
        again = cfg.build()
        assert again.steps() == (2, 3)
        template = {"w": jnp.zeros(8)}
        for step in again.steps():
            again.verify(step)
            restored = again.restore(template, step=step)
            assert np.array_equal(restored.state["w"], states[step]["w"])
            assert restored.extra == {"step": step}


def _write(storage: Any, step: int) -> None:
    storage.begin(step)
    folder = storage.staging_directory(step) / "inner"
    folder.mkdir()
    (storage.staging_directory(step) / "a").write_text(f"a of {step}")
    (folder / "b").write_text(f"b of {step}" * 100)


def _save(storage: Any, step: int) -> None:
    _write(storage, step)
    storage.commit(step)
    storage.replicate(step)


def _is_whole(storage: Any, step: int) -> bool:
    storage.prepare(step)
    path = storage.path(step)
    files = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
    return (
        files == {"a", "inner/b"}
        and (path / "a").read_text() == f"a of {step}"
        and (path / "inner/b").read_text() == f"b of {step}" * 100
    )


class _Fuse:
    """Counts changes of files while it is lit, and raises before the last that it allows."""

    def __init__(self) -> None:
        self._left = 0
        self._thread = 0

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Get every change of a file from Python before it is made."""
        if not self._left or threading.get_ident() != self._thread:
            return
        if event in _CHANGES or _is_opened_to_write(event, arguments):
            self._left -= 1
            if self._left == 0:
                raise CutShort

    @contextmanager
    def lit(self, changes: int) -> Iterator[None]:
        """Count until so many changes were asked for, or the context ends."""
        self._left, self._thread = changes, threading.get_ident()
        try:
            yield
        finally:
            self._left = 0


def _is_opened_to_write(event: str, arguments: tuple[Any, ...]) -> bool:
    return event == "open" and bool(arguments[2] & _WRITING)


@functools.cache
def _fuse() -> _Fuse:
    """Return the one fuse there is: Python keeps an audit hook for good."""
    fuse = _Fuse()
    sys.addaudithook(fuse.hook)
    return fuse
