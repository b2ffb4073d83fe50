"""Steps in an object store: a real S3 server, and faults that are injected into its connections."""

import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import attrs
import jax.numpy as jnp
import numpy as np
import pytest
from guarded_run import guarded_config
from object_server import ask, new_bucket
from quick_flags import quick_environment

from axcore.checkpoint import (
    Checkpointer,
    CheckpointWarning,
    DamagedCheckpointError,
    object_store,
)
from axcore.checkpoint.lock import Holder
from axcore.checkpoint.object_store import ObjectLock, ObjectStore, open_s3
from axcore.checkpoint.storage import open_storage
from axcore.config import to_json
from axcore.errors import CheckpointError
from axcore.testing import StorageSuite

WORKER = Path(__file__).with_name("saving_worker.py")
STATE = {"w": jnp.arange(1000.0)}


@pytest.mark.parametrize("place", ["bucket/run", "?staging=/a", "bucket/run?staging=", "", "/"])
def test_a_store_without_a_bucket_or_a_staging_directory_is_an_error(place):
    with pytest.raises(CheckpointError, match="does not name a bucket and a directory") as refused:
        open_s3(place)
    assert "s3://bucket/run?staging=/local/run" in refused.value.hint


@pytest.mark.skipif(importlib.util.find_spec("gcsfs") is not None, reason="the driver is there")
def test_a_driver_that_is_not_installed_is_an_error_that_says_how_to():
    with pytest.raises(CheckpointError, match="gs://bucket/run need a driver") as refused:
        open_storage("gs://bucket/run?staging=/a")
    assert refused.value.hint == 'pip install "axcore[object-stores]"'


def stored(proxy, machine, **fields):
    """A checkpointer on one of several machines, each with a disk of its own."""
    directory = f"s3://{proxy.bucket}/run?staging={machine}"
    return Checkpointer.Config(directory=directory, **fields).build()


def save(proxy, machine, *steps, **fields):
    with stored(proxy, machine, **fields) as checkpoints:
        for step in steps:
            checkpoints.save(step, {"w": STATE["w"] * step}, {"step": step})


def check_restores(proxy, machine, step):
    restored = stored(proxy, machine).restore(STATE)
    assert (restored.step, restored.extra) == (step, {"step": step})
    assert np.array_equal(restored.state["w"], STATE["w"] * step)


def failing(proxy, kind, *methods, times=10**9):
    """Makes the next requests of these methods fail."""
    left, counting = [times], threading.Lock()  # requests come at once

    def fault(method, path):
        with counting:
            if method not in methods or not left[0]:
                return None
            left[0] -= 1
            return kind

    proxy.fault = fault
    return left


@pytest.mark.slow
def test_a_new_machine_resumes_from_the_store(proxy, tmp_path):
    save(proxy, tmp_path / "a", 1, 2, 3, keep=2)
    assert stored(proxy, tmp_path / "b").steps() == (2, 3)
    check_restores(proxy, tmp_path / "b", 3)
    save(proxy, tmp_path / "b", 4)
    check_restores(proxy, tmp_path / "c", 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "methods"),
    [("busy", ("PUT", "GET")), ("cut upload", ("PUT",)), ("cut answer", ("PUT", "GET"))],
)
def test_faults_that_pass_cost_not_even_a_warning(proxy, tmp_path, kind, methods):
    left = failing(proxy, kind, *methods, times=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(proxy, tmp_path / "a", 1)
        assert left == [0]
        failing(proxy, kind, "GET", times=2)
        check_restores(proxy, tmp_path / "b", 1)


@pytest.mark.slow
def test_a_store_that_stays_away_costs_a_warning_then_a_stop_and_no_step(
    proxy, tmp_path, monkeypatch
):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # the driver gives up sooner
    with stored(proxy, tmp_path / "a", tries=2, retry_after_s=0.1) as checkpoints:
        checkpoints.save(1, STATE, {"step": 1})
        checkpoints.mark_good(1)
        checkpoints.wait()
        failing(proxy, "busy", "PUT", "GET", "HEAD", "POST")

        def save_step_2():
            checkpoints.save(2, {"w": STATE["w"] * 2}, {"step": 2})
            checkpoints.wait()

        with (
            pytest.warns(CheckpointWarning, match="what is there after step 2 is not known: s3:"),
            pytest.warns(CheckpointWarning, match="saving step 2 failed: .*; try 2 follows"),
            pytest.raises(CheckpointError, match=r"saving step 2 failed: s3://.* cannot list"),
        ):
            save_step_2()
        proxy.fault = lambda method, path: None
    check_restores(proxy, tmp_path / "b", 1)
    save(proxy, tmp_path / "a", 3)  # copies what was not copied, too
    assert stored(proxy, tmp_path / "b").steps() == (1, 2, 3)
    assert stored(proxy, tmp_path / "b").known_good() == (1,)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_of", "is_served", "newest"),
    [
        (r"PUT .*/step_00000002-\w+/arrays/.*", False, 1),
        (r"PUT .*/step_00000002-\w+\.json", False, 1),
        (r"PUT .*/step_00000002-\w+\.json", True, 2),
        (r"POST .*delete", True, 3),
    ],
)
def test_a_process_killed_during_a_request_loses_no_step(
    proxy, server, tmp_path, request_of, is_served, newest
):
    def kill(method, path):
        if re.fullmatch(request_of, f"{method} {path}"):
            if is_served:
                return worker.kill
            worker.kill()
            return "cut upload"
        return None

    proxy.fault = kill
    directory = f"s3://{proxy.bucket}/run?staging={tmp_path / 'a'}"
    worker = subprocess.Popen([sys.executable, str(WORKER), directory, "1"], stderr=subprocess.PIPE)
    _, err = worker.communicate(timeout=300)
    assert (worker.returncode, err) == (-signal.SIGKILL, b"")
    proxy.fault = lambda method, path: None
    checkpoints = stored(proxy, tmp_path / "b")
    assert checkpoints.latest() == newest
    for step in checkpoints.steps():
        checkpoints.verify(step)
    save(proxy, tmp_path / "b", newest + 1)  # the dead one's lock and left-overs are in no way
    prefixes = {name.split("/")[3] for name in names_of(server, proxy.bucket) if "step_" in name}
    whole = {name for name in prefixes if not name.endswith(".json")}
    assert prefixes == whole | {f"{name}.json" for name in whole}


@pytest.mark.slow
def test_damage_in_the_store_is_noticed_and_passed_over(proxy, server, tmp_path):
    save(proxy, tmp_path / "a", 1, 2, 3)
    names = names_of(server, proxy.bucket)
    change(server, largest(server, [one for one in names if "step_00000003" in one]))
    lost = next(one for one in names if "step_00000002" in one and one.endswith("manifest.json"))
    assert ask(server, "DELETE", lost)[0] == 204
    with pytest.warns(CheckpointWarning) as caught:
        check_restores(proxy, tmp_path / "b", 1)
    texts = "\n".join(str(one.message) for one in caught)
    assert "its checksum differs" in texts
    assert "manifest.json is missing" in texts
    check_restores(proxy, tmp_path / "a", 3)  # the disk of the machine that wrote it is whole


@pytest.mark.slow
def test_an_index_that_is_damaged_makes_its_step_damaged(proxy, server, tmp_path):
    save(proxy, tmp_path / "a", 1)
    (index,) = (
        one
        for one in names_of(server, proxy.bucket)
        if one.endswith(".json") and one.count("/") == 3
    )
    ask(server, "PUT", index, b"{")
    with pytest.raises(DamagedCheckpointError, match="an index is damaged"):
        stored(proxy, tmp_path / "b").restore(STATE)


@pytest.mark.slow
def test_one_run_at_a_time_writes_and_a_lock_that_was_taken_is_noticed(proxy, tmp_path):
    with stored(proxy, tmp_path / "a", tries=1) as first:
        first.save(1, STATE)
        first.wait()
        with pytest.raises(CheckpointError, match=rf"pid {os.getpid()} on .* is already saving"):
            stored(proxy, tmp_path / "b").save(2, STATE)
        lock = f"/{proxy.bucket}/run/lock/00000002"
        assert ask(proxy.target, "PUT", lock, b"{}")[0] == 200
        first.save(3, STATE)
        with pytest.raises(CheckpointError, match="the lock was taken by somebody meanwhile"):
            first.wait()
        assert ask(proxy.target, "DELETE", lock)[0] == 204
    shutil.rmtree(tmp_path / "a")
    assert stored(proxy, tmp_path / "a").steps() == (1,)


@pytest.mark.slow
def test_a_holder_on_another_host_loses_the_lock_when_it_shows_no_life(proxy, monkeypatch):
    def beat():
        for count in itertools.count():
            holder = {
                **attrs.asdict(Holder(1, "elsewhere", "another", "1", "token")),
                "beat": count,
            }
            ask(proxy.target, "PUT", f"/{proxy.bucket}/lock/00000007", json.dumps(holder).encode())
            if stopped.wait(0.05):
                return

    store, stopped = ObjectStore(f"s3://{proxy.bucket}"), threading.Event()
    beats = threading.Thread(target=beat, daemon=True)
    beats.start()
    while "lock" not in store.names():
        pass
    with pytest.raises(CheckpointError, match=r"\(pid 1 on elsewhere\) is already saving here"):
        ObjectLock(store, doing="saving here")
    stopped.set()
    beats.join()
    monkeypatch.setattr(object_store, "STALE_S", 0.4)
    lock = ObjectLock(store, doing="saving here")
    assert store.names("lock") == {"00000008"}
    lock.check_is_held()
    lock.release()


@pytest.mark.slow
def test_the_command_of_the_page_trains_and_resumes_on_an_empty_disk(proxy, server, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^axcore train .*s3://.*$", page, re.MULTILINE)
    new_bucket(server, "bucket")

    (tmp_path / "small.json").write_text(to_json(guarded_config(tmp_path / "text")))

    def train(num_steps):
        small = line.replace(" tiny ", " small.json ").replace("/local", str(tmp_path))
        command = [*shlex.split(small), f"--set=max_steps={num_steps}"]
        return subprocess.run(
            [sys.executable, "-m", *command],
            cwd=tmp_path, env=quick_environment(), capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    train(2)
    shutil.rmtree(tmp_path / "tiny")
    assert "resuming at step 2 of 3 steps" in train(3)


def names_of(port, bucket):
    text = ask(port, "GET", f"/{bucket}?list-type=2&prefix=run/")[2].decode()
    return [f"/{bucket}/{part.partition('</Key>')[0]}" for part in text.split("<Key>")[1:]]


def largest(port, names):
    return max(names, key=lambda name: len(ask(port, "GET", name)[2]))


def change(port, name):
    """Flips one bit of an object."""
    content = bytearray(ask(port, "GET", name)[2])
    content[len(content) // 2] ^= 1
    assert ask(port, "PUT", name, bytes(content))[0] == 200


@pytest.mark.slow
class TestObjectStores(StorageSuite):
    plugin = "core"
    keys = ("s3",)
    test_a_writer_that_stops_anywhere_harms_no_step = None  # a minute; the kills above are real

    @pytest.fixture(autouse=True)
    def _bucket(self, proxy):
        self.bucket = proxy.bucket

    def make(self, record, folder):
        return f"{self.bucket}/{folder.name}?staging={folder / 'steps'}"
