"""The suite of storages finds those that leave half a step, or lose one."""

import os
import shutil

import pytest

from axcore.checkpoint.steps import StepDirectories
from axcore.plugins import CheckpointStorage, Ref
from axcore.testing import StorageSuite


class CopiesInPlace(StepDirectories):
    """Commits file by file, under the step's own name."""

    def commit(self, step):
        shutil.copytree(self.staging_directory(step), self.path(step))
        self.abandon(step)


class DeletesFirst(StepDirectories):
    """Makes room before the new step is there."""

    def commit(self, step):
        for old in self.committed():
            self.delete(old)
        super().commit(step)


class DeletesInPlace(StepDirectories):
    """Deletes file by file, under the step's own name."""

    def delete(self, step):
        shutil.rmtree(self.path(step))


@pytest.mark.parametrize(
    ("storage", "found"),
    [
        (CopiesInPlace, "is there in part"),
        (DeletesFirst, "every step is lost"),
        (DeletesInPlace, "is there in part"),
    ],
)
def test_a_storage_that_is_not_atomic_is_found(monkeypatch, tmp_path, storage, found):
    record = CheckpointStorage(name="bad", fn=Ref("bad:open"), summary="")
    monkeypatch.setattr(Ref, "resolve", lambda _: lambda place: storage(tmp_path.joinpath(place)))
    with pytest.raises(AssertionError, match=found):
        StorageSuite().test_a_writer_that_stops_anywhere_harms_no_step(record, tmp_path)


class ListsOnce(StepDirectories):
    """What another process saves later is not seen."""

    seen = None

    def committed(self):
        if self._lock is not None or self.seen is None:
            self.seen = super().committed()
        return self.seen


class KeepsOneAside(StepDirectories):
    """Of a step that is quarantined twice the first is lost."""

    def quarantine(self, step):
        target = self.root / f"{step}.quarantined"
        shutil.rmtree(target, ignore_errors=True)
        os.rename(self.path(step), target)


def test_a_storage_that_lists_once_is_found(monkeypatch, tmp_path):
    record = CheckpointStorage(name="bad", fn=Ref("bad:open"), summary="")
    monkeypatch.setattr(Ref, "resolve", lambda _: lambda place: ListsOnce(tmp_path.joinpath(place)))
    storage = record.fn.resolve()("steps")
    storage.lock()
    with pytest.raises(AssertionError, match="saved meanwhile is not seen"):
        StorageSuite().test_another_process_sees_the_same(record, "steps", storage)


def test_a_storage_that_keeps_one_step_aside_is_found(tmp_path):
    storage = KeepsOneAside(tmp_path / "steps")
    storage.lock()
    with pytest.raises(AssertionError, match="lost when another was quarantined"):
        StorageSuite().test_each_quarantined_step_is_kept(storage, tmp_path)
