"""Addresses of processes, ports that they listen on, and connections between them."""

import contextlib
import errno
import os
import socket
import struct
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from axcore.errors import ConfigError, ProcessError


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port`.

    Raises:
        ConfigError: It is not `host:port`.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(
            f"the coordinator is {address!r}; expected host:port of process 0",
            where="--coordinator",
            hint="--coordinator node-0:29400, with a port that is free there",
        )
    return host.strip("[]"), int(port)


def listen(port: int) -> socket.socket:
    """Listen on a port of all of this host's addresses; 0 is one that is free.

    Raises:
        ProcessError: Another program listens there.
    """
    try:
        # Dual stack: others may resolve the coordinator's name to either version of IP.
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    except (OSError, ValueError) as error:  # ValueError: no socket serves both versions of IP
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise _port_error(port, error) from error
    try:
        return socket.create_server(("", port))  # a host that has the older version only
    except OSError as error:
        raise _port_error(port, error) from error


def _port_error(port: int, error: Exception) -> ProcessError:
    return ProcessError(
        f"process 0 cannot listen on port {port}: {error}",
        where="--coordinator",
        hint="name another port, the same one for all processes",
    )


class ConnectionLostError(Exception):
    """The other side has gone, is silent, or does not know the secret."""


def proven(
    connected: socket.socket, secret: bytes, *, accepted: bool, limit_s: float
) -> Connection:
    """Return a connection whose two sides have proven to each other that they know a secret.

    What is said over it is neither encrypted nor signed.

    Args:
        connected: A socket, which this takes.
        secret: What both know.
        accepted: Whether the other side connected.
        limit_s: How long a read or a write may wait; it raises BlockingIOError then.

    Raises:
        ConnectionLostError: The other side does not know the secret, or says nothing.
    """
    connected.settimeout(None)
    # In the kernel, so that no read or write of a message that came in part
    # waits longer: a host that is frozen sends neither an error nor an end.
    limit = struct.pack("ll", int(limit_s), int(limit_s % 1 * 1e6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connected.setsockopt(socket.SOL_SOCKET, option, limit)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection = Connection(connected.detach())
    steps = [deliver_challenge, answer_challenge]
    try:
        for prove in steps if accepted else reversed(steps):
            prove(connection, secret)
    except (OSError, EOFError, AuthenticationError) as error:
        shut(connection)
        raise ConnectionLostError(str(error) or "it closed the connection") from error
    return connection


def shut(connection: Connection) -> None:
    """End a connection; a thread that reads from it gets an error."""
    # The descriptor is given back with the object. To close it while a thread reads from it
    # would neither wake that nor keep it from reading the file that gets its number next.
    with (
        contextlib.suppress(OSError),  # the other side was first
        socket.socket(fileno=os.dup(connection.fileno())) as same,
    ):
        same.shutdown(socket.SHUT_RDWR)
