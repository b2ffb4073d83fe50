"""`MessageTree`: what process 0 says, to all processes of a run, in the order in which it says it.

Each process passes a message on to a few others, so a message costs none more than that, and comes
to the last after a number of hops that grows with the logarithm of the run's size. Errors go the
other way, to process 0. Messages are values of JSON and arrays, over TCP.
"""

import contextlib
import json
import math
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from axcore.config.json_files import parse_json
from axcore.distributed.host_collectives import all_gather_object, broadcast_object
from axcore.distributed.processes import (
    process_count,
    process_index,
    reachable_host,
    time_limits,
)
from axcore.distributed.rendezvous import missing_error
from axcore.errors import ProcessError
from axcore.tcp import ConnectionLostError, listen, proven, shut

_FAN_OUT = 4
"""Processes that one passes messages on to."""

SILENCE_S = 60.0
"""Seconds of silence after which the process that passes messages on counts as lost."""

_MAX_MESSAGE_BYTES = 1 << 30
_STILL_HERE = b""


class MessageTree:
    """The connections of one process with those next to it. All processes make theirs together.

    Args:
        name: What it is for, in errors.

    Attributes:
        index: Which process this is.
        error: Why nothing can be said or heard any more; None while all is well.
        when_lost: Is called with that error once, in a thread.

    Raises:
        ProcessError: Processes did not come in time.
    """

    def __init__(self, name: str) -> None:
        self._name, self.index = name, process_index()
        self.error: ProcessError | None = None
        self.when_lost: Callable[[ProcessError], None] = lambda _: None
        self._is_closed = False
        self._heard: queue.Queue[bytes | None] = queue.Queue()
        self._sending = threading.Lock()
        self._last_sent = time.monotonic()
        self._stopped = threading.Event()
        # Whoever reads it from jax's coordination service could have joined the run as well.
        secret = broadcast_object(f"{name}: secret", lambda: secrets.token_hex(16)).encode()
        limit_s = time_limits().barrier_s
        with listen(0) as listener:
            own = [reachable_host(), listener.getsockname()[1]]
            addresses = all_gather_object(f"{name}: addresses", lambda: own)
            self._parent: Connection | None = None
            if self.index:
                host, port = addresses[(self.index - 1) // _FAN_OUT]
                self._parent = self._connected(host, port, secret)
            self._children = self._accepted(listener, secret, limit_s)
        for child, connection in self._children.items():
            self._start(self._hear_child, child, connection)
        self._start(self._hear_parent if self.index else self._say_still_here)

    def send(self, value: Any) -> None:
        """Say something to all others; from process 0.

        Args:
            value: Of what JSON has, and of numpy's arrays; tuples come as lists.

        Raises:
            ProcessError: A process was lost.
        """
        if self.error is not None:
            raise self.error
        self._pass_on(encoded(value))
        if self.error is not None:
            raise self.error

    def messages(self) -> Iterator[Any]:
        """Yield what process 0 says, until `close` here; not in process 0.

        Raises:
            ProcessError: Nothing more can come.
        """
        while (message := self._heard.get()) is not None:
            yield decoded(message)
        if self.error is not None:
            raise self.error

    def fail(self, reason: str) -> None:
        """Let process 0 know that this one ends with an error."""
        self._fail(f"process {self.index} failed: {reason}")

    def close(self) -> None:
        """End the connections; those below are ended with them."""
        self._is_closed = True
        self._stopped.set()
        self._heard.put(None)
        for connection in (*self._children.values(), *filter(None, [self._parent])):
            shut(connection)

    # -- The connections -----------------------------------------------------------------------

    def _connected(self, host: str, port: int, secret: bytes) -> Connection:
        try:
            connected = socket.create_connection((host, port), SILENCE_S)
            connection = proven(connected, secret, accepted=False, limit_s=SILENCE_S)
            connection.send_bytes(json.dumps(self.index).encode())
        except (ConnectionLostError, OSError) as error:
            raise ProcessError(
                f"process {self.index} could not connect to {host}:{port} for {self._name!r}: "
                f"{error}",
                where=self._name,
                hint="let the hosts of the run reach each other's ports",
            ) from error
        return connection

    def _accepted(self, listener: Any, secret: bytes, limit_s: float) -> dict[int, Connection]:
        first = self.index * _FAN_OUT + 1
        wanted = set(range(first, min(first + _FAN_OUT, process_count())))
        found: dict[int, Connection] = {}
        ends = time.monotonic() + limit_s
        while missing := sorted(wanted - found.keys()):
            left = ends - time.monotonic()
            if left <= 0:
                raise missing_error(self._name, missing, process_count(), limit_s)
            listener.settimeout(left)
            # Whoever does not know the secret, or is none of those wanted, is sent away.
            with contextlib.suppress(TimeoutError, ConnectionLostError, OSError, ValueError):
                accepted, _ = listener.accept()
                connection = proven(accepted, secret, accepted=True, limit_s=SILENCE_S)
                child = int(parse_json(connection.recv_bytes(64)))
                if child in missing:
                    found[child] = connection
                else:
                    shut(connection)
        return found

    def _start(self, run: Any, *args: Any) -> None:
        # Daemons: they wait for what may never come, and no process may wait for them.
        name = f"axcore-{self._name}".replace(" ", "-")
        threading.Thread(target=run, args=args, name=name, daemon=True).start()

    def _pass_on(self, message: bytes) -> None:
        with self._sending:
            self._last_sent = time.monotonic()
            for child, connection in self._children.items():
                try:
                    connection.send_bytes(message)
                except OSError as error:
                    self._fail(f"process {child} was lost: {error}")

    def _say_still_here(self) -> None:
        """Say something while there is nothing to say, so that silence means a loss."""
        every_s = SILENCE_S / 4
        while not self._stopped.wait(every_s):
            if time.monotonic() - self._last_sent > every_s:
                self._pass_on(_STILL_HERE)

    def _hear_parent(self) -> None:
        assert self._parent is not None
        above = (self.index - 1) // _FAN_OUT
        while not self._is_closed:
            try:
                message = self._parent.recv_bytes(_MAX_MESSAGE_BYTES)
            except (OSError, EOFError) as error:
                is_silent = isinstance(error, BlockingIOError)
                why = f"said nothing for {SILENCE_S:g} s" if is_silent else "was lost"
                self._end(f"process {above} {why}")
                return
            # Passed on at once, by this thread: the one that acts on messages may take minutes.
            self._pass_on(message)
            if message != _STILL_HERE:
                self._heard.put(message)

    def _hear_child(self, child: int, connection: Connection) -> None:
        while not self._is_closed:
            try:
                self._fail(connection.recv_bytes(_MAX_MESSAGE_BYTES).decode())
                return
            except BlockingIOError:  # it speaks only when it has failed
                continue
            except (OSError, EOFError):
                self._fail(f"process {child} was lost")
                return

    def _fail(self, reason: str) -> None:
        if self._parent is not None and not self._is_closed:
            with contextlib.suppress(OSError):  # above, the loss of this one is noticed
                self._parent.send_bytes(reason.encode())
        self._end(reason)

    def _end(self, reason: str) -> None:
        if self._is_closed or self.error is not None:
            return
        self.error = ProcessError(
            f"{self._name}: {reason}", where=self._name, hint="start all processes again"
        )
        self._heard.put(None)
        self.when_lost(self.error)


# -- Messages as bytes --------------------------------------------------------------------------


def encoded(value: Any) -> bytes:
    """Return a value of JSON and arrays as bytes: never pickle, which runs what it reads."""
    arrays: list[np.ndarray] = []

    def plain(one: Any) -> Any:
        if isinstance(one, np.ndarray):
            arrays.append(np.asarray(one, order="C"))
            return {"array": len(arrays) - 1}
        if isinstance(one, np.generic):
            return one.item()
        if isinstance(one, list | tuple):
            return [plain(below) for below in one]
        if isinstance(one, dict):
            return {"dict": [[plain(key), plain(below)] for key, below in one.items()]}
        if isinstance(one, bytes):
            return {"bytes": one.hex()}
        return one

    tree = plain(value)
    shapes = [[one.dtype.name, one.shape] for one in arrays]
    head = json.dumps([tree, shapes]).encode()
    return b"".join([len(head).to_bytes(8, "little"), head, *(one.tobytes() for one in arrays)])


def decoded(message: bytes) -> Any:
    """Return what `encoded` was given, with lists in the place of tuples."""
    size = int.from_bytes(message[:8], "little")
    tree, shapes = parse_json(message[8 : 8 + size])
    arrays, begin = [], 8 + size
    for name, shape in shapes:
        dtype, count = np.dtype(name), math.prod(shape)
        arrays.append(np.frombuffer(message, dtype, count, begin).reshape(shape))
        begin += count * dtype.itemsize

    def value(one: Any) -> Any:
        if isinstance(one, list):
            return [value(below) for below in one]
        if not isinstance(one, dict):
            return one
        ((kind, held),) = one.items()
        if kind == "array":
            return arrays[held]
        if kind == "bytes":
            return bytes.fromhex(held)
        return {value(key): value(below) for key, below in held}

    return value(tree)
