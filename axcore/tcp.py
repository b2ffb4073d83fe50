"""Addresses of processes, and ports that they listen on."""

import errno
import socket

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
