"""`Agent`: the one process of axcore on each host that an engine starts; it starts the trainers.

The agent of the lowest number leads: it supervises the processes of all hosts, as a supervisor of
one machine does. The others start what it asks for, and report. If the leader is lost, the next
one leads: all processes start again from the newest checkpoint.
"""

import contextlib
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from selectors import EVENT_READ, DefaultSelector
from typing import Any, NamedTuple

import attrs

from axcore.config import evolve
from axcore.errors import AxcoreError, ProcessError
from axcore.launch.children import ProcessStart, StopRequests
from axcore.launch.job import Job
from axcore.launch.process_info import ProcessInfo
from axcore.resilience.event_log import SUPERVISOR, RunLog
from axcore.resilience.hosts import Hosts, OwnHost, SupersededError
from axcore.resilience.peers import Message, Peer, PeerLostError
from axcore.resilience.policy import STOPPED, Policy
from axcore.resilience.supervisor import Supervisor
from axcore.resilience.this_machine import LocalProcess
from axcore.tcp import listen, split_address

# How late the end of a process without a closed pipe is noticed, and a signal.
_POLL_S = 0.05
# Between attempts to reach a leader that may be about to start.
_RETRY_S = 0.2
# A host that answers no connection is off, or cut off; one that is busy still accepts.
_CONNECT_S = 5.0
# A leader looks so often for an agent that was started again and would lead.
_CLAIM_S = 2.0
_READ_BYTES = 1 << 16
# Of beats in one report: what a pipe takes in one write.
_MAX_BEATS = 4000


class _Candidate(NamedTuple):
    """An agent that leads, or may."""

    rank: int
    host: str
    port: int


class Agent:
    """The agent of one host of a run."""

    def __init__(self, info: ProcessInfo, job: Job, policy: Policy, secret: bytes) -> None:
        """Start nothing yet.

        Args:
            info: Which of the launch's hosts this is, and where the first one is.
            job: What is to run, and on how many of them.
            policy: What to do about failures; the same on all hosts.
            secret: What all agents of the launch know.
        """
        self._rank = info.process_index
        self._num_hosts = info.process_count
        self._job = job
        self._policy = policy
        self._secret = secret
        self._first = _Candidate(0, *split_address(info.coordinator))
        self._candidates: list[_Candidate] = [self._first]
        self._leader: _Candidate | None = None
        self._hosts: Hosts | None = None

    def run(self) -> int:
        """Return the exit code of the run.

        Raises:
            ProcessError: No leader was found, too few hosts came, or the port is taken.
        """
        with (
            # The first one is where all look; the others may listen anywhere.
            listen(0 if self._rank else self._first.port) as self._server,
            tempfile.TemporaryDirectory(prefix="axcore-steps-") as kept_steps,
        ):
            self._own = OwnHost(kept_steps, self._first.host, self._rank)
            threading.Thread(target=self._accept, name="accept", daemon=True).start()
            while True:
                peer = self._find_leader()
                try:
                    return self._lead() if peer is None else self._follow(peer)
                except SupersededError:
                    self._report("another agent leads already; this one joins it")
                except PeerLostError as error:
                    self._report(f"the leader was lost ({error}); its processes here have ended")

    def _follow(self, peer: Peer) -> int:
        def hear_of(candidates: Sequence[Sequence[Any]]) -> None:
            self._candidates = [_Candidate(*one) for one in candidates]

        # How this host is reached from the others, should it lead.
        self._own = attrs.evolve(self._own, address=peer.own_address)
        limit_s = self._policy.host_s
        return _Follower(self._own, peer, limit_s=limit_s, pulse_s=self._pulse_s).run(hear_of)

    # -- Who leads -----------------------------------------------------------------------------

    def _find_leader(self) -> Peer | None:
        """Return a connection to the leader; None where that is this agent."""
        end = time.monotonic() + self._policy.rejoin_s
        while time.monotonic() < end:
            lower = [one for one in self._candidates if one.rank < self._rank]
            asked = [self._leader] if self._leader else []
            answers = [self._join(one) for one in dict.fromkeys([*asked, *lower])]
            for answer in answers:
                if isinstance(answer, Peer):
                    return answer
            # It leads where all before it are gone, and it is not one that only restarts: the
            # first knows nobody yet, and is called by who leads.
            knows_itself = any(one.rank == self._rank for one in self._candidates)
            if not any(answers) and knows_itself:
                return None
            time.sleep(_RETRY_S)
        raise ProcessError(
            f"no agent of {self._first.host}:{self._first.port} leads after "
            f"{self._policy.rejoin_s:g} s",
            where="--coordinator",
            hint="see what the agent of the first host says",
        )

    def _join(self, leader: _Candidate) -> Peer | bool:
        """Return a connection to a leader; else whether an agent is there that may lead."""
        try:
            peer = self._connect(leader)
            peer.send({"do": "join", "rank": self._rank, "port": self._server.getsockname()[1]})
            answer = peer.receive()
        except (OSError, PeerLostError):
            return False
        if answer["do"] == "welcome":
            self._leader = leader
            self._pulse_s = float(answer["pulse_s"])
            return peer
        peer.close()
        # It follows somebody, perhaps one that it has not yet missed.
        self._leader = _Candidate(*answer["leader"]) if answer["leader"] else None
        return True

    def _connect(self, agent: _Candidate) -> Peer:
        connected = socket.create_connection((agent.host, agent.port), timeout=_CONNECT_S)
        return Peer(connected, self._secret, accepted=False, limit_s=self._policy.host_s)

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._server.accept()
            except OSError:  # the agent has ended
                return
            # A thread each: one that says nothing must not keep others waiting.
            threading.Thread(target=self._greet, args=(connected,), daemon=True).start()

    def _greet(self, connected: socket.socket) -> None:
        try:
            peer = Peer(connected, self._secret, accepted=True, limit_s=self._policy.host_s)
            message = peer.receive()
            if message["do"] == "lead":
                if self._hosts is not None and self._hosts.supersede():
                    self._leader = _Candidate(int(message["rank"]), peer.address, message["port"])
            elif self._hosts is None:
                peer.send({"do": "elsewhere", "leader": self._leader})
            else:
                self._hosts.add(peer, message)
        except PeerLostError as error:
            # Said, since a wrong secret looks like a host that never comes.
            self._report(f"a connection was refused or lost: {error}")

    # -- Leading -------------------------------------------------------------------------------

    def _lead(self) -> int:
        if self._leader is not None:
            self._report("this agent leads now")
            log = RunLog(self._job.run_directory, SUPERVISOR)
            log.write("leader_changed", host=self._rank)
        if self._rank:
            threading.Thread(target=self._claim, name="claim", daemon=True).start()
        smallest = self._policy.shrink_to or self._job.processes
        policy = evolve(self._policy, shrink_to=smallest)
        self._hosts = hosts = Hosts(self._own, self._job, policy, self._num_hosts)
        code: int | None = ProcessError.exit_code
        try:
            code = Supervisor(hosts, self._job.run_directory, policy).run()
            return code
        except AxcoreError as error:
            code = error.exit_code
            raise
        except SupersededError:
            code = None
            raise
        finally:
            self._hosts = None
            hosts.close(code)

    def _claim(self) -> None:
        """Call the first agent, which would lead if it was started again."""
        while True:
            with contextlib.suppress(OSError, PeerLostError):
                port = self._server.getsockname()[1]
                self._connect(self._first).send({"do": "lead", "rank": self._rank, "port": port})
            time.sleep(_CLAIM_S)

    def _report(self, text: str) -> None:
        # Flushed: the agent may be killed at any moment, and its last line says why.
        print(f"[agent {self._rank}] {text}", file=sys.stderr, flush=True)


# -- Following ---------------------------------------------------------------------------------


class _Hosted:
    """A process of this host, and what its leader does not know of it yet."""

    def __init__(self, process: LocalProcess) -> None:
        self.process = process
        self.has_ended = False
        self.wants_stacks = False
        self._beats: list[str] = []
        self._unread = b""
        self._sent_stacks = ""

    def read_beats(self) -> bool:
        """Read what the process has reported; return whether it can report more."""
        try:
            data = os.read(self.process.pipe, _READ_BYTES)
        except BlockingIOError:
            return True
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            # Repeated ones say that it lives, which the newest one says for all.
            if self._beats[-1:] != [text]:
                self._beats.append(text)
        return bool(data)

    def take_beats(self) -> str:
        """Return the beats since the last time, the newest ones where they are many."""
        beats, self._beats = self._beats, []
        text = ""
        for line in reversed(beats):
            if len(text) + len(line) >= _MAX_BEATS:
                break
            text = f"{line}\n{text}"
        return text

    def new_stacks(self) -> str:
        """Return the stacks that were asked for, "" where they did not change."""
        stacks = self.process.stacks() if self.wants_stacks else ""
        is_new = stacks != self._sent_stacks
        self._sent_stacks = stacks
        return stacks if is_new else ""


class _Follower:
    """What an agent does for its leader.

    All processes start in the main thread: they die with the thread that started them.
    """

    def __init__(self, own: OwnHost, peer: Peer, *, limit_s: float, pulse_s: float) -> None:
        self._own = own
        self._peer = peer
        self._limit_s = limit_s
        self._pulse_s = pulse_s
        self._hosted: dict[int, _Hosted] = {}
        self._selector = DefaultSelector()

    def run(self, hear_of: Callable[[Sequence[Sequence[Any]]], None]) -> int:
        """Return the exit code of the run.

        Args:
            hear_of: Called with who would lead next, as often as the leader says it.

        Raises:
            PeerLostError: The leader was lost.
        """
        self._selector.register(self._peer, EVENT_READ)
        num_passed_on = 0
        heard = reported = time.monotonic()
        with StopRequests() as stop, contextlib.closing(self):
            while True:
                for key, _ in self._selector.select(_POLL_S):
                    if key.data is not None:
                        self._read(key.data)
                        continue
                    message = self._peer.receive()
                    heard = time.monotonic()
                    if message["do"] == "end":
                        return int(message["code"])
                    if message["do"] == "alive":
                        hear_of(message["successors"])
                    else:
                        self._obey(message)
                self._note_ends()
                now = time.monotonic()
                if now - heard > self._limit_s:
                    raise PeerLostError("it says nothing any more")
                if now - reported > self._pulse_s:
                    reported = now
                    self._report()
                if stop.count > num_passed_on:
                    num_passed_on = stop.count
                    # The leader asks all processes; a second signal ends those of this host.
                    if stop.count > 1:
                        return STOPPED
                    self._peer.send({"do": "stop"})

    def close(self) -> None:
        """End all processes, and the connection."""
        self._peer.close()
        for hosted in self._hosted.values():
            hosted.process.kill()  # all at once, before any is waited for
        for hosted in self._hosted.values():
            hosted.process.end()
            hosted.process.close()
        self._selector.close()

    def _obey(self, message: Message) -> None:
        if message["do"] == "port":
            self._peer.send({"do": "port", "port": self._own.free_port()})
            return
        if message["do"] == "start":
            self._start(message)
            return
        hosted = self._hosted.get(message["id"])
        if hosted is None:  # its end and this message crossed
            return
        if message["do"] == "signal":
            hosted.process.send(message["signal"])
        elif message["do"] == "kill":
            hosted.process.kill()
        elif message["do"] == "line":
            hosted.process.send_line(message["line"])
        elif message["do"] == "stacks":
            hosted.wants_stacks = True
            hosted.process.ask_for_stacks()
        elif message["do"] == "forget":
            self._hosted.pop(message["id"])
            self._silence(hosted)
            hosted.process.end()
            hosted.process.close()

    def _start(self, message: Message) -> None:
        start = ProcessStart(
            command=tuple(message["command"]), environment=dict(message["environment"])
        )
        mark, takes_turns = message["mark"], message["takes_turns"]
        process = self._own.start(start, message["index"], mark, takes_turns=takes_turns)
        hosted = self._hosted[message["id"]] = _Hosted(process)
        self._selector.register(process.pipe, EVENT_READ, hosted)
        self._peer.send({"do": "started", "id": message["id"], "pid": process.pid})

    def _read(self, hosted: _Hosted) -> None:
        if not hosted.read_beats():
            self._silence(hosted)

    def _silence(self, hosted: _Hosted) -> None:
        # A closed pipe is always readable: left registered, it would make the loop spin.
        with contextlib.suppress(KeyError):
            self._selector.unregister(hosted.process.pipe)

    def _note_ends(self) -> None:
        for number, hosted in self._hosted.items():
            code = hosted.process.exit_code()
            if code is None or hosted.has_ended:
                continue
            hosted.has_ended = True
            hosted.process.end()  # its last lines are read
            hosted.read_beats()
            # Its last beats come first: they say at which step it ended.
            self._report()
            tail = list(hosted.process.error_tail)
            self._peer.send({"do": "ended", "id": number, "code": code, "error_tail": tail})

    def _report(self) -> None:
        living = {n: one for n, one in self._hosted.items() if one.process.exit_code() is None}
        self._peer.send(
            {
                "do": "report",
                "beats": {n: text for n, one in self._hosted.items() if (text := one.take_beats())},
                "stopped": [n for n, one in living.items() if one.process.is_stopped],
                "stacks": {n: text for n, one in living.items() if (text := one.new_stacks())},
            }
        )
