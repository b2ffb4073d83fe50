"""One process at a time; a lock left behind is distinguished from one that is held."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from engine_run import wait_for

from axcore.checkpoint import lock as lock_module
from axcore.checkpoint.lock import FileLock
from axcore.errors import CheckpointError

WORKER = Path(__file__).with_name("locking_worker.py")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "writer.lock"


@pytest.fixture
def start(path):
    """A function that starts processes which wait for the word to take the lock."""
    started = []

    def start(count=1):
        for _ in range(count):
            one = subprocess.Popen(
                [sys.executable, str(WORKER), str(path)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            started.append(one)
        assert [one.stdout.readline() for one in started[-count:]] == ["ready\n"] * count
        return started[-count:]

    yield start
    for one in started:
        one.kill()
        one.communicate()


def go(*workers):
    for one in workers:
        one.stdin.write("\n")
        one.stdin.flush()
    return [one.stdout.readline().strip() for one in workers]


def write_holder(path, **changes):
    holder = {"pid": 7, "host": "other", "boot": "b", "started": "1", "token": "t", **changes}
    path.write_text(json.dumps(holder))


def take(path):
    FileLock(path, doing="saving").release()


def test_of_eight_processes_one_wins_and_the_others_name_it(path, start):
    for _ in range(2):
        workers = start(8)
        answers = go(*workers)
        winner = workers[answers.index("won")]
        others = [answer for answer in answers if answer != "won"]
        host = socket.gethostname()
        expected = f"another live process (pid {winner.pid} on {host}) is already saving"
        assert others == [expected] * 7
        winner.kill()
        winner.wait()
        take(path)  # what was killed holds nothing


def test_a_stopped_holder_still_holds(path, start):
    (holder,) = start()
    assert go(holder) == ["won"]
    os.kill(holder.pid, signal.SIGSTOP)
    with pytest.raises(CheckpointError, match=rf"\(pid {holder.pid} on .*\) is already saving"):
        take(path)


def test_somebody_who_only_looks_whether_it_is_held_does_not_hold_it(path):
    with path.open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        timer = threading.Timer(0.3, lambda: fcntl.flock(looking, fcntl.LOCK_UN))
        timer.start()
        take(path)
        timer.join()


def test_a_holder_that_ended_in_good_order_leaves_no_name(path, start):
    (holder,) = start()
    go(holder)
    holder.communicate()
    FileLock(path, doing="saving").release()
    assert path.read_text() == ""


def test_a_lock_from_before_a_reboot_is_free_at_once(path):
    write_holder(path, host=socket.gethostname())
    started = time.monotonic()
    take(path)
    assert time.monotonic() - started < 50


def test_a_holder_on_another_host_that_shows_life_is_named(path, monkeypatch):
    monkeypatch.setattr(lock_module, "STALE_S", 20.0)
    write_holder(path, host="node-7")
    is_over = threading.Event()

    def beat():
        while not is_over.wait(0.05):
            os.utime(path)

    beats = threading.Thread(target=beat)
    beats.start()
    with pytest.raises(CheckpointError, match=r"another live process \(pid 7 on node-7\) is alr"):
        take(path)
    is_over.set()
    beats.join()
    assert "node-7" in path.read_text()


def test_a_holder_on_another_host_that_shows_no_life_has_lost_it(path, monkeypatch):
    monkeypatch.setattr(lock_module, "STALE_S", 0.4)
    write_holder(path)
    started = time.monotonic()
    take(path)
    assert time.monotonic() - started >= 0.4


def test_a_holder_touches_its_file(path, monkeypatch):
    monkeypatch.setattr(lock_module, "BEAT_S", 0.05)
    lock = FileLock(path, doing="saving")
    before = path.stat().st_mtime_ns
    wait_for(lambda: path.stat().st_mtime_ns > before, "a touch")
    lock.release()
    time.sleep(0.2)  # the last touch may be on its way
    after = path.stat().st_mtime_ns
    time.sleep(0.2)
    assert path.stat().st_mtime_ns == after


def test_a_holder_that_was_taken_for_dead_learns_of_it(path):
    lock = FileLock(path, doing="saving")
    lock.check_is_held()
    write_holder(path, host="node-7")
    with pytest.raises(OSError, match="the lock was taken by pid 7 on node-7 meanwhile"):
        lock.check_is_held()
    lock.release()
    assert "node-7" in path.read_text(), "the lock of another was given up"


@pytest.mark.parametrize("text", ["", "pid 12 on somewhere\n", "\0\xff", "{}", "[1]"])
def test_what_else_stands_in_the_file_holds_nothing(path, text):
    path.write_text(text)
    take(path)
