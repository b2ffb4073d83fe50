"""A signal asks to stop; where the main thread never comes back to Python, it ends the process."""

import os
import signal
import subprocess
import sys
import time

import pytest

from axcore.trainer import stop_signals
from axcore.trainer.stop_signals import StopSignals

WAITING = """
import ctypes, sys
from axcore.trainer import stop_signals
stop_signals.WAITING_S = stop_signals._REPEATED_S = 0.1
with stop_signals.StopSignals(may_end=lambda: {may_end}):
    print("waiting", flush=True)
    mutex = ctypes.create_string_buffer(64)
    while True:  # the second time it waits for ever, whatever signals come
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


@pytest.fixture
def waiting():
    """Starts a process that waits in a call outside of Python, as one does for devices."""
    started = []

    def start(may_end):
        command = [sys.executable, "-c", WAITING.format(may_end=may_end)]
        one = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(one)
        assert one.stdout.readline() == "waiting\n"
        return one

    yield start
    for one in started:
        with one:
            one.kill()


@pytest.mark.slow
def test_a_second_signal_ends_a_process_that_waits_outside_of_python(waiting):
    process = waiting(may_end=False)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    assert "SIGTERM ends the run while it waits for devices" in process.stderr.read()


@pytest.mark.slow
def test_the_first_signal_does_where_nothing_would_be_lost(waiting):
    process = waiting(may_end=True)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130


def test_a_signal_that_is_handled_ends_nothing(monkeypatch):
    monkeypatch.setattr(stop_signals, "WAITING_S", 0.05)
    handlers = [signal.getsignal(one) for one in stop_signals._SIGNALS]
    with StopSignals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        assert stop.requested is signal.SIGTERM
    assert handlers == [signal.getsignal(one) for one in stop_signals._SIGNALS]


def test_a_sigterm_that_came_two_ways_is_one_request_and_a_later_one_is_the_second(monkeypatch):
    second = []
    before = signal.signal(signal.SIGTERM, lambda *_: second.append(True))
    try:
        with StopSignals() as stop:
            for _ in range(2):
                signal.raise_signal(signal.SIGTERM)
            assert (stop.requested, second) == (signal.SIGTERM, [])
            monkeypatch.setattr(stop_signals, "_REPEATED_S", 0.0)
            signal.raise_signal(signal.SIGTERM)
            assert second == [True]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_terminal_that_closes_asks_to_stop_however_often_it_says_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` has the suite ignore it
    try:
        with StopSignals() as stop:
            for _ in range(3):
                signal.raise_signal(signal.SIGHUP)
            assert stop.requested is signal.SIGTERM
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_hangup_that_the_process_ignores_stays_ignored():
    """`nohup` has it ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.requested is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_several_processes_ask_one_another_about_once_a_second(monkeypatch):
    asked = []

    def decide(name, make, decision):
        asked.append(make())
        return decision([make(), (False, 10.0)])

    monkeypatch.setattr(stop_signals, "process_count", lambda: 2)
    monkeypatch.setattr(stop_signals, "decide_together", decide)
    signals = stop_signals.StopSignals()
    monkeypatch.setattr(signals, "_pace", lambda step: 50.0)
    signals._asked_last = (1, 0.0)
    assert not any(signals.should_stop(step) for step in range(1, 41))
    assert len(asked) == 4  # each ten steps, as the slower process makes in a second
    signals.requested = signal.SIGTERM
    assert [signals.should_stop(step) for step in (41, 42)] == [True, False]


@pytest.mark.parametrize(("count", "steps"), [(2, 5), (1024, 5), (4096, 20)])
def test_more_processes_ask_less_often(count, steps):
    assert stop_signals._stop_or_go_on([(False, 5.0)] * count) == (False, steps)
