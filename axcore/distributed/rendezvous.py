"""The rendezvous: every process of a run reports its presence before jax joins them.

Where one is missing, jax ends all others by an abort that names nobody. So process 0 listens on the
coordinator's address first and writes down who comes; then each hears that all are there, or which
are not. A message is one line of JSON. The port is free again when the call is over.
"""

import json
import socket
import time
from collections.abc import Iterable
from typing import Any

from axcore.config.json_files import parse_json
from axcore.errors import ProcessError
from axcore.tcp import listen, split_address

NAME = "rendezvous"
# Short, since most runs are started on all hosts at
# once; the load of a refused connection is nothing.
_RETRY_S = 0.05
# A line is sent right after connecting. A port scanner that says
# nothing must not keep process 0 from accepting the others.
_HELLO_S = 5.0
_MAX_LINE_BYTES = 1 << 16


def rendezvous(coordinator: str, *, process_count: int, process_index: int, limit_s: float) -> None:
    """Return once all processes of a run are there.

    Args:
        coordinator: `host:port` of process 0.
        process_count: Processes in all.
        process_index: Which of them this is.
        limit_s: How long process 0 waits for the others, and they for it.

    Raises:
        ConfigError: `coordinator` is not an address.
        ProcessError: Some did not come within the limit, or two say what cannot both be.
    """
    host, port = split_address(coordinator)
    if process_index == 0:
        _hold(port, process_count, limit_s)
    else:
        _answer((host, port), process_count, process_index, limit_s)


def wait_for_service(coordinator: str, *, process_count: int, limit_s: float) -> None:
    """Return once process 0 serves its address again, now as jax's coordination service.

    A client of jax that comes before tries again after a second.

    Raises:
        ProcessError: It does not serve within the limit.
    """
    _connect(split_address(coordinator), process_count, limit_s).close()


# -- Process 0 -------------------------------------------------------------------------------


def _hold(port: int, process_count: int, limit_s: float) -> None:
    present: dict[int, socket.socket] = {}
    try:
        # The listening socket closes before anybody is dismissed: a process that hears "all
        # are there" may connect to jax's service next, and must not end in this socket's queue.
        with listen(port) as server:
            _collect(server, present, process_count, time.monotonic() + limit_s)
        missing = [index for index in range(1, process_count) if index not in present]
        if missing:
            raise missing_error(NAME, missing, process_count, limit_s)
        # An empty verdict means that all is well.
        _dismiss(present.values(), {})
    except ProcessError as error:
        # Those that came hear why: else each would wait for
        # its own limit and then report that process 0 left.
        _dismiss(present.values(), {"what": error.what, "hint": error.hint})
        raise


def _collect(
    server: socket.socket, present: dict[int, socket.socket], process_count: int, end: float
) -> None:
    """Fill `present` until all are there or the time is over."""
    while len(present) < process_count - 1 and (left := end - time.monotonic()) > 0:
        server.settimeout(left)
        try:
            connection, _ = server.accept()
        except TimeoutError:
            return
        connection.settimeout(_HELLO_S)
        said = _read(connection)
        if not isinstance(said.get("index"), int):
            connection.close()  # a stranger; a port is open to all
            continue
        # The connection stays open: the verdict comes through it when the last one is there.
        index = said["index"]
        _check_fits(said, present, process_count, connection)
        present[index] = connection


def _check_fits(
    said: dict[str, Any], present: dict[int, socket.socket], process_count: int, who: socket.socket
) -> None:
    index = said["index"]
    # Different counts mean a wrong launch command or a process of
    # another job on the same port; to wait for the limit would not help.
    if said.get("count") != process_count:
        what = (
            f"process {index} on {said.get('host')} is one of {said.get('count')} processes, but "
            f"process 0 is one of {process_count}"
        )
    elif index in present or not 0 < index < process_count:
        what = f"two processes of this run are number {index}; one is on {said.get('host')}"
    else:
        return
    present[-1] = who  # it hears of it, too
    raise ProcessError(
        what, where=NAME, hint="number them 0 to N-1, each once, and give all the same N"
    )


def _dismiss(connections: Iterable[socket.socket], verdict: dict[str, Any]) -> None:
    """Send all the verdict, and let them hang up first so that the port is free at once."""
    # Who closes first keeps the port in TIME_WAIT, and jax's service needs it next on this host. So
    # the others hang up first.
    held = list(connections)
    for connection in held:
        _write(connection, verdict)
    for connection in held:
        connection.settimeout(_HELLO_S)
        # Blocks until the other side has closed (an empty read) or the limit is over.
        _read(connection)
        connection.close()


# -- The others ------------------------------------------------------------------------------


def _answer(
    address: tuple[str, int], process_count: int, process_index: int, limit_s: float
) -> None:
    hello = {"index": process_index, "count": process_count, "host": socket.gethostname()}
    with _connect(address, process_count, limit_s) as connection:
        connection.settimeout(2 * limit_s + 10)  # process 0 may have begun to wait only now
        _write(connection, hello)
        # None distinguishes a connection that broke from an empty verdict.
        verdict = _read(connection, default=None)
    if verdict is None:
        raise ProcessError(
            f"process 0 at {address[0]}:{address[1]} left before all processes were there",
            where=NAME,
            hint="see what process 0 says",
        )
    if verdict:
        raise ProcessError(verdict["what"], where=NAME, hint=verdict["hint"])


def _connect(address: tuple[str, int], process_count: int, limit_s: float) -> socket.socket:
    end = time.monotonic() + limit_s
    while True:
        try:
            # Never less than one retry: a zero or negative timeout
            # means non-blocking, which fails at once with EINPROGRESS.
            return socket.create_connection(address, max(_RETRY_S, end - time.monotonic()))
        except OSError as error:
            if time.monotonic() + _RETRY_S > end:
                host, port = address
                raise missing_error(
                    NAME, [0], process_count, limit_s, f" (at {host}:{port}: {error})"
                ) from error
        time.sleep(_RETRY_S)


def missing_error(
    name: str, missing: list[int], process_count: int, limit_s: float, detail: str = ""
) -> ProcessError:
    """Return the error for processes that did not arrive at a barrier."""
    shown = ", ".join(map(str, missing[:16])) + (", ..." if len(missing) > 16 else "")
    noun = "process" if len(missing) == 1 else "processes"
    # Sixteen: with a thousand hosts missing the list says no more than its length would.
    return ProcessError(
        f"{noun} {shown} of {process_count} did not reach {name!r} within {limit_s:g} s{detail}",
        where=name,
        hint=f"see whether {noun} {shown} still runs, and what its output says; or raise the limit "
        "(--join-timeout, --barrier-timeout)",
    )


# -- Lines -----------------------------------------------------------------------------------


def _write(connection: socket.socket, message: dict[str, Any]) -> None:
    try:
        connection.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        return  # it has left; a process that waits for it reports that


def _read(connection: socket.socket, default: Any = {}) -> Any:  # noqa: B006 - never changed
    """Return one line's JSON object, or `default` where none comes."""
    try:
        with connection.makefile("rb") as lines:
            message = parse_json(lines.readline(_MAX_LINE_BYTES))
    except (OSError, ValueError):
        return default
    return message if isinstance(message, dict) else default
