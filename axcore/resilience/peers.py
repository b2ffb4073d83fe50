"""`Peer`: a connection between the agents of two hosts, both of which know the launch's secret.

A message is one JSON object. No side waits without a limit: each says something several times
within it, and one that hears nothing for so long takes the other for lost. The secret proves who
may connect; what is said is neither encrypted nor signed.
"""

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from axcore.config.json_files import parse_json
from axcore.errors import ConfigError
from axcore.launch.process_info import SECRET_VARIABLE

_SHORTEST_SECRET = 16
# Stacks of hundreds of threads are the longest message.
_MAX_MESSAGE_BYTES = 16 << 20

Message = Mapping[str, Any]


class PeerLostError(Exception):
    """The other side has gone, is silent, or does not know the secret."""


class Peer:
    """One side of a connection.

    Attributes:
        address: The other side's host, as this one reaches it.
        own_address: This side's host, as the other one reaches it.
    """

    def __init__(
        self, connected: socket.socket, secret: bytes, *, accepted: bool, limit_s: float
    ) -> None:
        """Prove to each other that both know the secret.

        Args:
            connected: A socket, which this takes.
            secret: What both know.
            accepted: Whether the other side connected.
            limit_s: How long the other side may be silent.

        Raises:
            PeerLostError: It does not know the secret, or says nothing.
        """
        # In the kernel, so that no read or write of a message that came in part
        # waits longer: a host that is frozen sends neither an error nor an end.
        limit = struct.pack("ll", int(limit_s), int(limit_s % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connected.setsockopt(socket.SOL_SOCKET, option, limit)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.address = _plain(connected.getpeername()[0])
            self.own_address = _plain(connected.getsockname()[0])
        except OSError as error:
            connected.close()
            raise PeerLostError(str(error)) from error
        self._connection = Connection(connected.detach())
        # Several threads send: a message is written whole, or two would be mixed.
        self._sending = threading.Lock()
        steps = [deliver_challenge, answer_challenge]
        try:
            for prove in steps if accepted else reversed(steps):
                prove(self._connection, secret)
        except (OSError, EOFError, AuthenticationError) as error:
            self.close()
            raise PeerLostError(str(error) or "it closed the connection") from error

    def fileno(self) -> int:
        """Return the descriptor that is readable when a message comes."""
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Send a message.

        Raises:
            PeerLostError: The other side has gone, or reads nothing.
        """
        try:
            with self._sending:
                self._connection.send_bytes(json.dumps(message).encode())
        except OSError as error:  # also where it was closed here
            raise PeerLostError(str(error)) from error

    def receive(self) -> Message:
        """Return the next message.

        Raises:
            PeerLostError: The other side has gone, or was silent for the limit.
        """
        try:
            message = parse_json(self._connection.recv_bytes(_MAX_MESSAGE_BYTES))
        except BlockingIOError as error:
            raise PeerLostError("it says nothing any more") from error
        except (OSError, EOFError, ValueError) as error:
            raise PeerLostError(str(error) or "it closed the connection") from error
        if not isinstance(message, Mapping):
            raise PeerLostError("it sent something other than an object")
        return message

    def close(self) -> None:
        """End the connection; a thread that reads from it gets an error."""
        # The descriptor is given back with the object. To close it while a thread reads from it
        # would neither wake that nor keep it from reading the file that gets its number next.
        with (
            contextlib.suppress(OSError),  # the other side was first
            socket.socket(fileno=os.dup(self._connection.fileno())) as same,
        ):
            same.shutdown(socket.SHUT_RDWR)


def _plain(address: str) -> str:
    """Return an address of version 4 as such, where a socket of both versions wraps it."""
    return address.removeprefix("::ffff:")


def launch_secret(environment: Mapping[str, str]) -> bytes:
    """Return the secret of the launch.

    Raises:
        ConfigError: There is none, or one that is soon found by trying.
    """
    secret = environment.get(SECRET_VARIABLE, "")
    if len(secret) < _SHORTEST_SECRET:
        raise ConfigError(
            f"{SECRET_VARIABLE} has {len(secret)} characters; agents of a launch know each other "
            f"by {_SHORTEST_SECRET} or more",
            where="environment",
            hint="start agents by `axcore launch ... --supervise`, or set it to the same value on "
            "all hosts, for example that of `openssl rand -hex 16`",
        )
    return secret.encode()
