"""An upload that broke continues where it was: what the store has is not sent again."""

import collections
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
from store_processes import names_of, start, told

from axcore.checkpoint import Checkpointer, manifest
from axcore.checkpoint.object_store import ObjectSteps, ObjectStore, StoreError
from axcore.checkpoint.steps import StepDirectories
from axcore.checkpoint.storage import open_storage

WORKER = Path(__file__).with_name("saving_worker.py")


@pytest.fixture
def step(tmp_path, monkeypatch):
    """The directory of a step with a file of 4 pieces and two small ones."""
    monkeypatch.setattr(manifest, "PIECE_BYTES", 100)
    folder = tmp_path / "step"
    (folder / "arrays").mkdir(parents=True)
    (folder / "arrays/large").write_bytes(bytes(range(256)) + bytes(94))
    (folder / "arrays/empty").write_bytes(b"")
    (folder / "manifest.json").write_text("{}")
    return folder


class Counted(ObjectStore):
    """A store in memory that counts writes, and refuses those whose names match."""

    def __init__(self, url):
        super().__init__(url)
        self.written, self.refused, self.unanswered = [], None, None

    def write(self, name, data):
        if self.refused and re.search(self.refused, name):
            raise StoreError(f"{name} is refused")
        self.written.append(name.partition("/")[2])
        super().write(name, data)
        if self.unanswered and re.search(self.unanswered, name):
            raise StoreError(f"{name} has no answer")


@pytest.fixture
def store():
    return Counted(f"memory://{uuid.uuid4().hex}")


PIECES = [f"arrays/large.0000{number}" for number in range(4)]


def test_another_process_continues_with_the_pieces_that_are_missing(store, step, tmp_path):
    store.refused = "00002|manifest"
    with pytest.raises(StoreError, match="is refused"):
        ObjectSteps(store).upload(7, step)
    before, store.written, store.refused = set(store.written), [], None
    steps = ObjectSteps(store)
    steps.upload(7, step)
    assert set(store.written) == {*PIECES, "arrays/empty", "manifest.json"} - before
    assert before
    assert steps.committed() == ()
    steps.publish(7)
    steps.download(7, tmp_path / "found")
    assert manifest.record_files(tmp_path / "found") == manifest.record_files(step)


def test_a_piece_that_is_there_with_other_bytes_is_sent_again(store, step):
    store.refused = "manifest"
    with pytest.raises(StoreError):
        ObjectSteps(store).upload(7, step)
    (prefix,) = store.names()
    store.refused = None
    for number, content in ((1, b"x" * 100), (2, b"short")):
        store.write(f"{prefix}/{PIECES[number]}", content)
    store.written = []
    ObjectSteps(store).upload(7, step)
    assert {*PIECES[1:3], "manifest.json"} <= set(store.written)
    assert PIECES[0] not in store.written


def test_what_a_later_commit_does_not_continue_it_removes(store, step):
    store.refused = "manifest"
    steps = ObjectSteps(store)
    with pytest.raises(StoreError):
        steps.upload(7, step)
    store.refused = None
    (step / "arrays/empty").write_bytes(b"another step")
    steps.upload(8, step)
    steps.publish(8)
    assert {name.partition("-")[0] for name in store.names()} == {"step_00000008"}


def test_a_commit_whose_answer_was_lost_is_repeated_and_quarantines_nothing(store, step):
    steps = ObjectSteps(store)
    steps.upload(7, step)
    store.unanswered = r"-\w+\.json$"
    with pytest.raises(StoreError, match="has no answer"):
        steps.commit(7)
    assert steps.committed() == (7,)
    steps.abandon(7)
    store.written, store.unanswered = [], None
    steps.upload(7, step)
    steps.commit(7)
    assert [name for name in store.written if name] == []
    assert steps.committed() == (7,)


def test_content_that_was_quarantined_is_a_step_of_its_own_when_it_is_saved_again(store, step):
    steps = ObjectSteps(store)
    for _ in range(2):
        steps.upload(7, step)
        steps.commit(7)
        steps.quarantine(7)
    steps.upload(7, step)
    steps.commit(7)
    assert steps.committed() == (7,)
    assert len([name for name in store.names() if name.endswith(".quarantined")]) == 2


def test_a_large_file_that_is_one_object_is_read(store, step, tmp_path):
    steps = ObjectSteps(store)
    steps.upload(7, step)
    steps.publish(7)
    prefix = steps.prefix(7)
    for name in PIECES:
        store.delete(f"{prefix}/{name}")
    store.write(f"{prefix}/arrays/large", (step / "arrays/large").read_bytes())
    steps.download(7, tmp_path / "found")
    assert manifest.record_files(tmp_path / "found") == manifest.record_files(step)


@pytest.mark.parametrize(("lost", "size"), [(PIECES[0], None), (PIECES[2], 200)])
def test_a_lost_piece_is_found_by_the_size_of_its_file(store, step, tmp_path, lost, size):
    steps = ObjectSteps(store)
    steps.upload(7, step)
    steps.publish(7)
    store.delete(f"{steps.prefix(7)}/{lost}")
    steps.download(7, tmp_path / "found")
    file = tmp_path / "found/arrays/large"
    assert (file.stat().st_size if file.exists() else None) == size


# -- With a server ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["busy", "cut upload"])
def test_processes_whose_upload_broke_send_only_the_rest(proxy, tmp_path, kind):
    """A piece of process 1 fails until its driver gives up, and looks what is there."""
    sent, failed, gave_up = collections.Counter(), set(), threading.Event()
    counting = threading.Lock()

    def fault(method, path):
        if failed and "prefix=run/step_00000001-" in path.replace("%2F", "/"):
            gave_up.set()
        if method != "PUT" or "/arrays/" not in path:
            return None
        with counting:
            is_chosen = re.search(r"/process_1/d/\w+\.00004$", path)
            if is_chosen and not gave_up.is_set():
                failed.add(path)
                return kind
            sent[path] += 1
            return None

    proxy.fault = fault
    task = {"piece bytes": 8192}
    found = told(start(proxy, tmp_path / "a", 1, more={"AWS_MAX_ATTEMPTS": "1"}, **task))
    assert [(one["error"], one["steps"], one["left"]) for one in found] == [(None, [1], [])] * 2
    assert "try 2 follows" in found[0]["warnings"][0]
    assert failed
    assert set(sent.values()) == {1}
    assert {path.lstrip("/").partition("/")[2] for path in sent} == {
        name for name in names_of(proxy) if "/arrays/" in name
    }


@pytest.mark.slow
def test_a_run_that_was_killed_while_it_uploaded_sends_only_the_rest(proxy, tmp_path):
    def kill(method, path):
        if method == "PUT" and re.search(r"/step_00000002-\w+/manifest.json", path):
            time.sleep(1)  # what is on its way arrives
            worker.kill()
            return "cut upload"
        return None

    proxy.fault = kill
    directory = f"s3://{proxy.bucket}/run?staging={tmp_path / 'a'}"
    worker = subprocess.Popen([sys.executable, str(WORKER), directory, "1"])
    assert worker.wait(timeout=300) == -signal.SIGKILL
    there = [name for name in names_of(proxy) if "/step_00000002-" in name]
    assert [name for name in there if "/arrays/" in name]
    sent = []
    proxy.fault = lambda method, path: sent.append(path) if method == "PUT" else None
    local = StepDirectories(tmp_path / "a")
    assert local.committed()[-1] == 2
    open_storage(directory).lock().release()  # uploads what was not
    of_step_2 = {path.partition("/run/")[2] for path in sent if "/step_00000002-" in path}
    assert any(path.endswith("/manifest.json") for path in of_step_2)
    assert not of_step_2 & {name.removeprefix("run/") for name in there}
    shutil.rmtree(tmp_path / "a")
    again = Checkpointer.Config().build(directory=directory)
    again.verify(2)
