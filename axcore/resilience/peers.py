"""`Peer`: a connection between the agents of two hosts, both of which know the launch's secret.

A message is one JSON object. No side waits without a limit: each says something several times
within it, and one that hears nothing for so long takes the other for lost. The secret proves who
may connect; what is said is neither encrypted nor signed.
"""

import json
import socket
import threading
from collections.abc import Mapping
from typing import Any

from axcore.config.json_files import parse_json
from axcore.errors import ConfigError
from axcore.launch.process_info import SECRET_VARIABLE
from axcore.tcp import ConnectionLostError, proven, shut

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
        try:
            self.address = _plain(connected.getpeername()[0])
            self.own_address = _plain(connected.getsockname()[0])
        except OSError as error:
            connected.close()
            raise PeerLostError(str(error)) from error
        # Several threads send: a message is written whole, or two would be mixed.
        self._sending = threading.Lock()
        try:
            self._connection = proven(connected, secret, accepted=accepted, limit_s=limit_s)
        except ConnectionLostError as error:
            raise PeerLostError(str(error)) from error

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
        shut(self._connection)


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
