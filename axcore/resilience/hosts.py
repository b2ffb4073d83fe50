"""`Hosts`: the hosts of a run, on which its leader starts processes through their agents.

One agent of a run leads: it supervises all processes, of which those of other hosts are
`RemoteProcess`es. A message is one of these; the leader's go to the host of the process `id`.

    leader    start  signal  kill  line  stacks  forget  port  alive  end
    host      started  ended  port  stop  and its report: beats, stopped, stacks
"""

import collections
import contextlib
import itertools
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence

import attrs

from axcore.errors import ProcessError
from axcore.launch.children import HostedProcess, ProcessStart, StopRequests, describe_exit
from axcore.launch.job import Job
from axcore.launch.local import found, free_port
from axcore.launch.process_info import COORDINATOR, NUM_PROCESSES, PROCESS_ID
from axcore.resilience.compile_cache import KEPT_STEPS_VARIABLE
from axcore.resilience.peers import Message, Peer, PeerLostError
from axcore.resilience.policy import Policy
from axcore.resilience.this_machine import LocalProcess

_POLL_S = 0.05
# How many of the hosts that come next are named to all: a leader is one of a few, and
# names of all for all would grow with the square of a run's size.
_NUM_SUCCESSORS = 8
# What one Python thread takes beside its other work.
_MESSAGES_A_SECOND = 2000
_SHORTEST_PULSE_S = 0.25
# A message or two may be late on a busy host or network without being silence.
_PULSES_IN_LIMIT = 4


class SupersededError(Exception):
    """Another agent leads the run."""


def pulse_s(num_hosts: int, limit_s: float) -> float:
    """Return how often a host reports to its leader, in seconds."""
    slowest = max(_SHORTEST_PULSE_S, num_hosts / _MESSAGES_A_SECOND)
    return min(slowest, limit_s / _PULSES_IN_LIMIT)


@attrs.frozen(eq=False)
class OwnHost:
    """The host of this agent.

    Args:
        kept_steps: Where processes keep their compiled step for the next attempt.
        address: How other hosts reach it.
        rank: Its number among the hosts.
    """

    kept_steps: str
    address: str = ""
    rank: int = 0

    def start(
        self, start: ProcessStart, index: int, mark: str, *, takes_turns: bool
    ) -> LocalProcess:
        """Start a process, with the variables of the agent where it names no others."""
        own = {**os.environ, KEPT_STEPS_VARIABLE: self.kept_steps}
        started = attrs.evolve(
            start, command=found(start.command), environment={**own, **start.environment}
        )
        return LocalProcess(started, index, mark, takes_turns=takes_turns)

    def free_port(self) -> int:
        """Return a port that nobody listens on."""
        return free_port()


class RemoteProcess:
    """A process on another host, as its agent reports it."""

    def __init__(self, host: "RemoteHost", number: int, index: int) -> None:
        self.index = index
        self.error_tail: collections.deque[str] = collections.deque()
        # A pipe, as a process of this machine has: whoever waits for beats waits for descriptors.
        self.pipe, self._beats = os.pipe()
        for end in (self.pipe, self._beats):
            os.set_blocking(end, False)
        self.is_stopped = False
        self._host = host
        self._number = number
        self._stacks = ""
        self._pid = 0
        self._piping = threading.Lock()
        self._end: int | None = None
        self._was_lost = False
        self._has_started, self._has_ended = threading.Event(), threading.Event()

    @property
    def pid(self) -> int:
        """The process on its host; 0 where the host was lost before it said so."""
        self._has_started.wait(self._host.limit_s)
        return self._pid

    def exit_code(self) -> int | None:
        """Return how it ended, minus the signal where that ended it; None while it lives."""
        return self._end

    def describe_end(self) -> str:
        """Return how it ended as people read it, without its name."""
        if self._was_lost:
            return f"was lost with {self._host} ({self._host.lost_because})"
        return describe_exit(self._end or 0)

    def wait(self, timeout_s: float) -> bool:
        """Return whether it ends within the time."""
        return self._has_ended.wait(timeout_s)

    def send(self, number: int) -> None:
        """Send a signal to the process, if it lives."""
        self._host.send({"do": "signal", "id": self._number, "signal": number})

    def send_line(self, line: str) -> None:
        """Write a line to where a standby worker reads what it is to do."""
        self._host.send({"do": "line", "id": self._number, "line": line})

    def ask_for_stacks(self) -> None:
        """Ask the process for its stacks; one that is stopped is woken to answer."""
        self._stacks = ""
        self._host.send({"do": "stacks", "id": self._number})

    def stacks(self) -> str:
        """Return the stacks that the process wrote so far."""
        return self._stacks

    def kill(self) -> None:
        """Kill the process and all that it started, also where itself has ended."""
        self._host.send({"do": "kill", "id": self._number})

    def end(self) -> None:
        """Kill the process and all that it started, and wait for its end."""
        self.kill()
        # Its host is lost after as long without a word, which ends the process here.
        self.wait(self._host.limit_s)

    def close(self) -> None:
        """Give the descriptors back, here and there."""
        self._host.forget(self._number)
        # Or a report that is just taken in would be written to the file that gets this number next.
        with self._piping:
            for end in (self.pipe, self._beats):
                os.close(end)
            self._beats = -1

    # -- What its agent reports, on the thread that listens to it ----------------------------------

    def note_start(self, pid: int) -> None:
        """Note that it runs."""
        self._pid = pid
        self._has_started.set()

    def note_beats(self, lines: str) -> None:
        """Pass beats on."""
        # Full lines of less than PIPE_BUF, which are written in one piece or not at all. Nobody
        # reads the beats of a standby worker before its turn, and then the newest ones count.
        with self._piping, contextlib.suppress(BlockingIOError):
            if self._beats >= 0:
                os.write(self._beats, lines.encode())

    def note_stacks(self, text: str) -> None:
        """Note what it wrote of its stacks so far."""
        self._stacks = text

    def note_end(self, code: int, error_tail: Sequence[str] = ()) -> None:
        """Note how it ended, unless that is known."""
        if self._end is None:
            self.error_tail.extend(error_tail)
            self._end = code
            self._has_started.set()
            self._has_ended.set()

    def note_loss(self) -> None:
        """Note that its host was lost, and the process with it unless it had ended."""
        self._was_lost = self._end is None
        self.note_end(-signal.SIGKILL)


class RemoteHost:
    """Another host of the run, through its agent.

    Attributes:
        rank: Its number among the hosts.
        address: How others reach it.
        port: Where its agent listens.
        limit_s: How long it may say nothing.
        is_lost: Whether it has gone.
        lost_because: How that was seen.
    """

    def __init__(
        self, peer: Peer, rank: int, port: int, limit_s: float, on_stop: Callable[[], None]
    ) -> None:
        self.rank, self.address, self.port, self.limit_s = rank, peer.address, port, limit_s
        self.is_lost, self.lost_because = False, ""
        self._peer = peer
        self._on_stop = on_stop
        self._processes: dict[int, RemoteProcess] = {}
        self._numbers = itertools.count()
        self._ports: queue.SimpleQueue[int] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name=f"host {rank}", daemon=True).start()

    def __str__(self) -> str:
        return f"host {self.rank} at {self.address}"

    def start(
        self, start: ProcessStart, index: int, mark: str, *, takes_turns: bool
    ) -> HostedProcess:
        """Start a process there; it is not waited for."""
        number = next(self._numbers)
        process = self._processes[number] = RemoteProcess(self, number, index)
        self.send(
            {
                "do": "start",
                "id": number,
                "index": index,
                "mark": mark,
                "takes_turns": takes_turns,
                "command": start.command,
                "environment": dict(start.environment),
            }
        )
        if self.is_lost:
            process.note_loss()
        return process

    def free_port(self) -> int:
        """Return a port that nobody listens on there.

        Raises:
            PeerLostError: The host was lost meanwhile.
        """
        self.send({"do": "port"})
        with contextlib.suppress(queue.Empty):
            port = self._ports.get(timeout=self.limit_s)
            if not self.is_lost:
                return port
        self.lose("it did not answer")
        raise PeerLostError(self.lost_because)

    def send(self, message: Message) -> None:
        """Say something to the host; nothing where it is lost."""
        try:
            self._peer.send(message)
        except PeerLostError as error:
            self.lose(str(error))

    def forget(self, number: int) -> None:
        """Forget a process that has ended."""
        self._processes.pop(number, None)
        self.send({"do": "forget", "id": number})

    def lose(self, reason: str) -> None:
        """Take the host for lost, with all its processes."""
        if not self.is_lost:
            self.is_lost, self.lost_because = True, reason
            self._peer.close()
            self._ports.put(0)  # nobody waits for an answer any more
            for process in list(self._processes.values()):
                process.note_loss()

    def _listen(self) -> None:
        try:
            while True:
                self._take(self._peer.receive())
        except (PeerLostError, KeyError, TypeError, ValueError) as error:
            self.lose(str(error) if isinstance(error, PeerLostError) else repr(error))

    def _take(self, message: Message) -> None:
        if message["do"] == "port":
            self._ports.put(int(message["port"]))
        elif message["do"] == "stop":
            self._on_stop()
        elif message["do"] == "started":
            self._tell(message["id"], lambda one: one.note_start(message["pid"]))
        elif message["do"] == "ended":
            code, tail = message["code"], message["error_tail"]
            self._tell(message["id"], lambda one: one.note_end(code, tail))
        elif message["do"] == "report":
            self._take_report(message)

    def _take_report(self, report: Message) -> None:
        for number, process in list(self._processes.items()):
            process.is_stopped = number in report["stopped"]
        for number, lines in report["beats"].items():
            self._tell(int(number), lambda one, lines=lines: one.note_beats(lines))  # type: ignore[misc]
        for number, text in report["stacks"].items():
            self._tell(int(number), lambda one, text=text: one.note_stacks(text))  # type: ignore[misc]

    def _tell(self, number: int, note: Callable[[RemoteProcess], None]) -> None:
        # It may have been forgotten while its last report was on the way.
        process = self._processes.get(number)
        if process is not None:
            note(process)


class Hosts:
    """Where the processes of a run are placed: one on each host, the lowest numbers first.

    Hosts that have nothing to do wait to replace others.
    """

    def __init__(self, own: OwnHost, job: Job, policy: Policy, num_hosts: int) -> None:
        """Know of this host only.

        Args:
            own: The host of this agent.
            job: What is to run, on how many hosts.
            policy: How long to wait for hosts, and with how few to continue.
            num_hosts: How many the launch started.
        """
        self._own = own
        self._job = job
        self._policy = policy
        self._num_hosts = num_hosts
        self._remote: dict[int, RemoteHost] = {}
        self._excluded: set[int] = set()
        self._placed: Sequence[OwnHost | RemoteHost] = ()
        self._stop: StopRequests | None = None
        self._is_superseded = False
        self._joining = threading.Lock()
        self._is_over = threading.Event()
        threading.Thread(target=self._pulse, name="pulse", daemon=True).start()

    def add(self, peer: Peer, message: Message) -> None:
        """Take in a host whose agent joined, in the place of one with its number."""
        rank, limit_s = int(message["rank"]), self._policy.host_s
        host = RemoteHost(peer, rank, int(message["port"]), limit_s, self._request_stop)
        with self._joining:
            before = self._remote.get(rank)
            self._remote[rank] = host
        # Its old connection may end later, or never: the host was restarted.
        if before is not None:
            before.lose("its agent started again")
        host.send({"do": "welcome", "pulse_s": pulse_s(self._num_hosts, limit_s)})

    def close(self, exit_code: int | None) -> None:
        """Let all agents end with an exit code; None leaves them to another leader."""
        self._is_over.set()
        for host in self._living():
            if exit_code is None:
                host.lose("another agent leads")
            else:
                host.send({"do": "end", "code": exit_code})

    def supersede(self) -> bool:
        """Give way to another leader, unless processes were started; return whether it does."""
        self._is_superseded = not self._placed
        return self._is_superseded

    # -- What a supervisor asks --------------------------------------------------------------------

    def starts(self, stop: StopRequests) -> Sequence[ProcessStart]:
        """Return what each process of the next attempt is started with, once its host is there.

        Raises:
            ProcessError: Too few hosts came in time.
            SupersededError: Another agent leads.
        """
        self._stop = stop
        while True:
            placed = self._await_hosts(stop)
            if stop.count:
                return ()
            # A supervisor that serves coordination serves it on its own host.
            serving = self._own if self._policy.in_process else placed[0]
            # It may be lost in between, and then another host is the first.
            with contextlib.suppress(PeerLostError):
                port = serving.free_port()
                break
        self._placed = placed
        host = f"[{serving.address}]" if ":" in serving.address else serving.address
        address = f"{host}:{port}"
        return [
            ProcessStart(
                command=self._job.command,
                # All three, also of a single process: what the engine said to the agent of
                # its place among hosts is not the process's place among processes.
                environment={
                    COORDINATOR: address,
                    NUM_PROCESSES: str(len(placed)),
                    PROCESS_ID: str(index),
                },
                can_wait=self._job.command[:2] == ("axcore", "train"),
                host=host,
            )
            for index, host in enumerate(placed)
        ]

    def leave_out(self, process: int) -> None:
        """Use the host of a process of the last attempt no more."""
        self._excluded.add(self._placed[process].rank)

    def num_usable(self) -> int:
        """Return on how many hosts processes could be started now."""
        return len(self._usable())

    def can_grow(self) -> bool:
        """Whether hosts came while the run has fewer than it wants."""
        return len(self._placed) < min(self._job.processes, len(self._usable()))

    def _await_hosts(self, stop: StopRequests) -> Sequence[OwnHost | RemoteHost]:
        wanted = self._job.processes
        smallest = self._policy.shrink_to or wanted
        end = time.monotonic() + self._policy.rejoin_s
        while not stop.count:
            if self._is_superseded:
                raise SupersededError
            usable = self._usable()
            # None is waited for that may not be used.
            are_all_here = len(usable) == self._num_hosts - len(self._excluded)
            is_late = time.monotonic() >= end
            if len(usable) >= (smallest if are_all_here or is_late else wanted):
                return usable[:wanted]
            if is_late or are_all_here:
                raise self._too_few(usable, smallest)
            time.sleep(_POLL_S)
        return ()

    def _too_few(self, usable: Sequence[OwnHost | RemoteHost], smallest: int) -> ProcessError:
        here = {host.rank for host in usable}
        missing = [str(rank) for rank in range(self._num_hosts) if rank not in here]
        return ProcessError(
            f"the run needs {smallest} hosts, and {len(usable)} are there after "
            f"{self._policy.rejoin_s:g} s; missing: {', '.join(missing)}",
            where="hosts",
            hint="see what the engine says about them; --policy shrink_to=N continues with N, "
            "--spare-hosts starts some more",
        )

    def _usable(self) -> list[OwnHost | RemoteHost]:
        every: dict[int, OwnHost | RemoteHost] = {host.rank: host for host in self._living()}
        every[self._own.rank] = self._own
        return [every[rank] for rank in sorted(every) if rank not in self._excluded]

    def _living(self) -> list[RemoteHost]:
        with self._joining:
            return [host for host in self._remote.values() if not host.is_lost]

    def _request_stop(self) -> None:
        # Each host of a job gets the engine's signal; together they ask once.
        if self._stop is not None:
            self._stop.request()

    def _pulse(self) -> None:
        """Say to all hosts that this one lives, and who would lead after it."""
        interval_s = pulse_s(self._num_hosts, self._policy.host_s)
        while not self._is_over.wait(interval_s):
            living = sorted(self._living(), key=lambda host: host.rank)
            next_ones = [[one.rank, one.address, one.port] for one in living[:_NUM_SUCCESSORS]]
            for host in living:
                host.send({"do": "alive", "successors": next_ones})
