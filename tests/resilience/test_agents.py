"""Agents of several hosts keep a run going, whichever process, host or leader is lost."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engine_run import wait_for

from axcore.launch.children import StopRequests
from axcore.launch.local import free_port
from axcore.resilience.hosts import RemoteHost
from axcore.resilience.peers import Peer, PeerLostError
from axcore.tcp import split_address

ENDLESS = 1_000_000
AGENT = Path(__file__).with_name("agent_worker.py")


class Fleet:
    """Agents on this machine, each a host of its own as far as they know."""

    def __init__(self, folder, *faults, hosts=3, wanted=2, steps=40, **policy):
        self.run, self.address = folder / "run", f"localhost:{free_port()}"
        self._folder, self._hosts = folder, hosts
        self._words = (wanted, steps, json.dumps(faults), json.dumps(policy))
        self.agents, self._all = {}, []
        for rank in range(hosts):
            self.start(rank)

    def start(self, rank):
        words = (self.run, self._hosts, rank, self.address, *self._words)
        with (self._folder / f"out{rank}").open("a") as out:
            self.agents[rank] = subprocess.Popen(
                [sys.executable, str(AGENT), *map(str, words)], stdout=out, stderr=out
            )
        self._all.append(self.agents[rank])

    def said(self, rank):
        return (self._folder / f"out{rank}").read_text()

    def kill(self, rank, number=signal.SIGKILL):
        self.agents[rank].send_signal(number)

    def events(self, name):
        path = self.run / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [one for one in map(json.loads, lines) if one["event"] == name]

    def finish(self):
        """Ends the run, and returns the agents' exit codes."""
        (self.run / "enough").touch()
        return self.codes()

    def codes(self):
        return {rank: one.wait(60) for rank, one in self.agents.items()}

    def end(self):
        for one in self._all:
            one.send_signal(signal.SIGCONT)
            one.kill()
            one.wait()

    def sizes(self):
        return [len(started["pids"]) for started in self.events("processes_started")]

    def has_done(self):
        return sorted(path.name for path in self.run.glob("done_*"))

    def wait_for_steps(self, attempts=1):
        wait_for(lambda: len(self.events("stepping")) >= attempts, "steps", lambda: self.said(0))


@pytest.fixture
def fleet(tmp_path):
    made = []

    def make(*faults, **settings):
        made.append(Fleet(tmp_path, *faults, **settings))
        return made[0]

    yield make
    made[0].end()


@pytest.mark.slow
def test_a_run_without_faults_ends_on_all_hosts_at_once(fleet):
    run = fleet(hosts=2)
    assert run.codes() == {0: 0, 1: 0}
    assert run.has_done() == ["done_0", "done_1"]
    assert len(run.events("processes_started")) == 1


@pytest.mark.parametrize("index", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_process_of_any_host_starts_again(fleet, index):
    run = fleet([index, 5, "SIGKILL", 1], hosts=2)
    assert run.codes() == {0: 0, 1: 0}
    (lost,) = run.events("process_lost")
    assert (lost["lost_process"], lost["cause"], lost["step"]) == (index, "killed", 5)


def test_a_hang_on_another_host_is_named_with_its_stacks(fleet):
    run = fleet([1, 5, "SIGSTOP", 1], hosts=2, beat_s=1.0)
    assert run.codes() == {0: 0, 1: 0}
    (hang,) = run.events("hang")
    assert (hang["lost_process"], hang["step"]) == (1, 5)
    assert "is stopped (SIGSTOP)" in hang["what"]
    assert "trigger" in (run.run / hang["stacks"] / "process_1.txt").read_text()


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
def test_a_lost_host_is_replaced_by_a_spare_one(fleet, number):
    run = fleet(hosts=3, steps=ENDLESS)
    run.wait_for_steps()
    # The run begins once two hosts are there, whichever they are.
    (host,) = [rank for rank in (1, 2) if "[1] ready" in run.said(rank)]
    run.kill(host, number)
    run.wait_for_steps(attempts=2)
    (lost,) = run.events("process_lost")
    assert f"was lost with host {host} at 127.0.0.1" in lost["what"]
    run.kill(host, signal.SIGCONT)
    codes = run.finish()
    assert (codes[0], codes[3 - host]) == (0, 0)
    assert run.has_done() == ["done_0", "done_1"]


def test_the_next_agent_leads_where_the_leader_is_lost(fleet):
    run = fleet(hosts=3, steps=ENDLESS)
    run.wait_for_steps()
    run.kill(0)
    run.wait_for_steps(attempts=2)
    assert run.finish() == {0: -9, 1: 0, 2: 0}
    assert "this agent leads now" in run.said(1)
    assert [one["host"] for one in run.events("leader_changed")] == [1]
    assert len(run.events("supervision_ended")) == 1


@pytest.mark.slow
def test_a_leader_that_starts_again_follows(fleet):
    run = fleet(hosts=3, steps=ENDLESS)
    run.wait_for_steps()
    run.kill(0)
    run.wait_for_steps(attempts=2)
    run.start(0)
    wait_for(lambda: "another agent leads already" in run.said(0), "it", lambda: run.said(0))
    assert run.finish() == {0: 0, 1: 0, 2: 0}


@pytest.mark.slow
def test_a_run_shrinks_where_no_other_host_is_there_and_grows_again(fleet):
    run = fleet(hosts=3, wanted=3, steps=ENDLESS, shrink_to=2, rejoin_s=1.0)

    def wait_for_size(size):
        wait_for(lambda: run.sizes()[-1:] == [size], f"{size} hosts", lambda: run.said(0))
        run.wait_for_steps(attempts=len(run.sizes()))

    wait_for_size(3)
    run.kill(2)
    wait_for_size(2)
    run.start(2)
    wait_for_size(3)
    assert set(run.finish().values()) == {0}
    assert len(run.events("growing")) >= 1


def test_too_few_hosts_end_the_run_with_their_numbers(fleet):
    run = fleet(hosts=3, wanted=3, steps=ENDLESS, rejoin_s=1.0)
    run.wait_for_steps()
    run.kill(2)
    assert run.codes() == {0: 9, 1: 9, 2: -9}
    assert "needs 3 hosts, and 2 are there after 1 s; missing: 2" in run.said(0)


@pytest.mark.slow
def test_a_host_whose_process_keeps_failing_is_left_out(fleet):
    faults = [[1, step, "SIGKILL", 1] for step in (3, 6, 9)]
    run = fleet(*faults, hosts=3)
    assert set(run.codes().values()) == {0}
    (left_out,) = run.events("left_out")
    assert left_out["left_out"] == 1
    assert "[1]" in run.said(2)


def test_a_stop_that_every_host_hears_of_is_one_stop(fleet):
    run = fleet(hosts=2, steps=ENDLESS)
    run.wait_for_steps()
    for rank in (0, 1):
        run.kill(rank, signal.SIGTERM)
    assert run.codes() == {0: 130, 1: 130}


def test_nothing_of_a_run_outlives_its_agents(fleet):
    run = fleet(hosts=2, steps=ENDLESS)
    run.wait_for_steps()
    (started,) = run.events("processes_started")
    for rank in (0, 1):
        run.kill(rank)
    wait_for(lambda: not any(map(is_alive, started["pids"])), "their end")


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_who_does_not_know_the_secret_is_refused(fleet):
    run = fleet(hosts=2, steps=ENDLESS)
    run.wait_for_steps()
    connected = socket.create_connection(split_address(run.address))
    with pytest.raises(PeerLostError, match="digest"):
        Peer(connected, b"something else", accepted=False, limit_s=5)
    # The other side says so a moment later.
    wait_for(lambda: "a connection was refused" in run.said(0), "it", lambda: run.said(0))


class Asked:
    """A process that notes what it is sent."""

    def __init__(self):
        self.signals = []

    def send(self, number):
        self.signals.append(number)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_request_of_hosts_and_the_first_signal_here_are_one(is_first):
    process = Asked()
    with StopRequests() as stop:
        stop.reach([process])
        asked = [stop.request, lambda: signal.raise_signal(signal.SIGTERM)]
        for ask in asked if is_first else reversed(asked):
            ask()
        stop.request()
        assert (process.signals, stop.count) == ([signal.SIGTERM], 1)
        signal.raise_signal(signal.SIGTERM)
        assert process.signals == [signal.SIGTERM, signal.SIGKILL]


@pytest.fixture
def pair():
    """Two sockets of one connection, the second of a peer that proves itself."""
    with socket.create_server(("localhost", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


def test_a_host_that_is_lost_keeps_nobody_waiting_for_its_answer(pair):
    with ThreadPoolExecutor(1) as other_side:
        other = other_side.submit(Peer, pair[1], b"the secret", accepted=True, limit_s=60)
        peer = Peer(pair[0], b"the secret", accepted=False, limit_s=60)
    host = RemoteHost(peer, 1, 29400, 60.0, lambda: None)
    other.result().close()
    began = time.monotonic()
    with pytest.raises(PeerLostError):
        host.free_port()
    assert time.monotonic() - began < 30, "long before the limit"


def test_a_message_that_comes_in_part_is_waited_for_no_longer_than_the_limit(pair):
    with ThreadPoolExecutor(1) as other_side:
        other = other_side.submit(Peer, pair[1], b"the secret", accepted=True, limit_s=0.2)
        one = Peer(pair[0], b"the secret", accepted=False, limit_s=5)
        peer = other.result()
    os.write(one.fileno(), b"\0\0\0\x40{")
    began = time.monotonic()
    with pytest.raises(PeerLostError, match="says nothing any more"):
        peer.receive()
    assert time.monotonic() - began < 2
