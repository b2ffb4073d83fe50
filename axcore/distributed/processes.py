"""The processes of a run: joining them, who is who, and leaving."""

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import attrs
import jax

from axcore._jax_compat import (
    distributed_state,
    end_coordinated_waits,
    join_coordination,
    keep_programs_of_every_process,
    leave_coordination,
)
from axcore.distributed.rendezvous import rendezvous, wait_for_service
from axcore.errors import ProcessError
from axcore.tcp import split_address

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class TimeLimits:
    """How long processes wait for one another, in seconds.

    Args:
        join_s: For all to be there at the start.
        barrier_s: At a barrier without its own limit.
        heartbeat_s: After which a process that says nothing any more ends the run.
    """

    # Minutes, since machines of one job come up at different times and may pull an image first.
    join_s: float = 300
    # The longest honest wait: one process compiles or reads
    # a checkpoint while the others are at the barrier.
    barrier_s: float = 1800
    # jax's default. Shorter ones end runs on a host that
    # swaps or is stopped by its hypervisor for a minute.
    heartbeat_s: float = 100


_limits = TimeLimits()
_forgotten_on_leaving: list[Callable[[], None]] = []


def join_processes(
    coordinator: str,
    *,
    process_count: int,
    process_index: int,
    limits: TimeLimits = _limits,
    is_hosted: bool = False,
) -> None:
    """Make this process one of several; call it before anything asks jax for devices.

    Args:
        coordinator: `host:port` of process 0, which all others reach.
        process_count: Processes in all; with 1 nothing happens.
        process_index: Which of them this is, from 0.
        limits: How long they wait for one another.
        is_hosted: Whether a supervisor serves `coordinator`, and not process 0. The loss of a
            process is an error in the others then, which `leave_processes` lets join again.

    Raises:
        ConfigError: `coordinator` is not an address.
        ProcessError: Not all came in time, or two have the same number.
    """
    global _limits
    _limits = limits
    if process_count == 1:
        return
    if is_hosted:
        try:
            # No rendezvous here: the supervisor's service runs before any
            # process starts, and it knows from the exit codes who is missing.
            join_coordination(coordinator, process_count, process_index, round(limits.join_s))
        except jax.errors.JaxRuntimeError as error:
            raise ProcessError(
                f"not all processes came: {str(error).splitlines()[0]}",
                where=coordinator,
                hint="see what the other processes say",
            ) from error
        # jax's compilation cache is written by process 0 alone, and on CPU the programs
        # of the others have other keys: they would compile again at each start.
        keep_programs_of_every_process()
        return
    numbers = {"process_count": process_count, "process_index": process_index}
    # jax ends all processes by an abort where one is missing; the rendezvous names it instead.
    rendezvous(coordinator, **numbers, limit_s=limits.join_s)
    # Process 0 serves the port again a moment later, and jax's client retries after a second only.
    if process_index:
        wait_for_service(coordinator, process_count=process_count, limit_s=limits.join_s)
    jax.distributed.initialize(
        coordinator,
        num_processes=process_count,
        process_id=process_index,
        # Or jax reads Slurm's and Kubernetes' variables once more, and may number otherwise.
        cluster_detection_method="deactivate",
        initialization_timeout=round(limits.join_s),
        heartbeat_timeout_seconds=round(limits.heartbeat_s),
    )
    keep_programs_of_every_process()


def leave_processes() -> None:
    """Leave a run that lost a process; all arrays and programs are gone.

    No thread may wait for another process any more.
    """
    # Before the client goes: what is forgotten may hold it.
    for forget in _forgotten_on_leaving:
        forget()
    leave_coordination()


def end_waits() -> None:
    """End every wait for another process with an error; the run can only be left then."""
    end_coordinated_waits()


def on_leaving(forget: Callable[[], None]) -> None:
    """Have a function called when this process leaves its run, to forget what it knew of it."""
    _forgotten_on_leaving.append(forget)


def process_count() -> int:
    """Return how many processes this run has, without starting jax where they were joined.

    Raises:
        ProcessError: jax shows several processes, and nobody joined them.
    """
    # Asked before `jax.process_count()`, which starts the
    # devices: flags and platform are fixed after that.
    if _joined() is not None:
        return int(distributed_state().num_processes)
    if jax.process_count() > 1:
        raise ProcessError(
            f"jax shows {jax.process_count()} processes that were never joined",
            where="jax.process_count()",
            hint="name --coordinator, --num-processes and --process-id; in a script, call "
            "axcore.distributed.join_processes before anything else",
        )
    return 1


def process_index() -> int:
    """Return which of them this one is, from 0."""
    return 0 if _joined() is None else int(distributed_state().process_id)


def is_process_zero() -> bool:
    """Whether this is process 0, the one that writes and speaks."""
    return process_index() == 0


def shard_for_process(items: list[T]) -> list[T]:
    """Return this process's part of some work: every item is exactly one process's."""
    # By stride, not by blocks: the lists are sorted by name or
    # size, so neighbours are alike and blocks would be uneven.
    return items[process_index() :: process_count()]


def exit_process(exit_code: int) -> NoReturn:
    """End this process; one of several does not wait for the others, which it would hold up."""
    if _joined() is not None:
        # jax's exit handler waits at a barrier for all processes. A dead one would hold this one
        # there for the heartbeat limit, and then abort it with another exit code than ours.
        # `_exit` runs no handlers and flushes nothing.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
    sys.exit(exit_code)


def reachable_host() -> str:
    """Return the address at which the other processes of the run reach this one's host."""
    if _joined() is None:
        return "localhost"
    # The way to the coordinator is in a network that all processes share; the
    # host's own name may resolve to 127.0.1.1 (Debian) or to nothing (containers).
    host, port = split_address(distributed_state().coordinator_address)
    if is_process_zero():
        return host
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    # A datagram socket sends nothing when it connects, but chooses the interface that leads there.
    with socket.socket(family, socket.SOCK_DGRAM) as towards:
        towards.connect(address)
        return str(towards.getsockname()[0])


def time_limits() -> TimeLimits:
    """Return how long processes of this run wait for one another."""
    return _limits


def coordination_client() -> Any:
    """Return the client of jax's coordination service.

    Differs: jax has no public way to it; Orbax takes this one, too.
    """
    # Asked at every call, never kept: leaving and joining again makes another client.
    client = _joined()
    assert client is not None, "a run of several processes was joined"
    return client


def _joined() -> Any:
    """Return the client, None where this process joined nobody."""
    return distributed_state().client


# Libraries of collectives, gloo for one, report a lost peer in these
# words, inside a JaxRuntimeError that has no code of its own for it.
_SIGNS = ("Connection reset by peer", "Connection closed by peer", "Broken pipe")
"""How the error of a collective ends where a peer has left."""


@contextlib.contextmanager
def naming_lost_processes() -> Iterator[None]:
    """Make the error of a collective that lost a peer one that says so.

    Raises:
        ProcessError: Another process of the run was lost.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        # The class says nothing: an out-of-memory error is a
        # JaxRuntimeError as well, and must not be called a lost process.
        if process_count() == 1 or not any(sign in str(error) for sign in _SIGNS):
            raise
        raise ProcessError(
            f"another process of the run was lost in a step: {str(error).splitlines()[0]}",
            where="a collective",
            hint="see what the other processes say, and start the run again; it resumes",
        ) from error
