"""The hosts of a run, and copies of directories from one's memory to another's, over the network.

Each process listens on a port of its own. A copy is one line of JSON, the files' bytes, and one
line back once they are whole there; a line that does not know the process's secret is hung up on.
"""

import hmac
import json
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import attrs

from axcore.checkpoint.state_parts import PART_FILES
from axcore.config.json_files import parse_json
from axcore.distributed import all_gather_object, reachable_host

_LIMIT_S = 120.0
_PIECE_BYTES = 1 << 20
_LINE_BYTES = 1 << 16

Receive = Callable[[int, int, Callable[[Path], None]], None]
"""Takes in the part of a process at a step; gets a function that writes it into a directory."""


@attrs.frozen
class Hosts:
    """Which processes of a run share a host's memory.

    Args:
        keys: Of each process, that of its host.
    """

    keys: Sequence[str]

    def neighbour_of(self, process: int) -> int | None:
        """Returns who keeps a process's copies: one on the next host; None where there is none."""
        names = list(dict.fromkeys(self.keys))
        if len(names) == 1:
            return None
        own = self._on(self.keys[process])
        others = self._on(names[(names.index(self.keys[process]) + 1) % len(names)])
        return others[own.index(process) % len(others)]

    def is_first_on_host(self, process: int) -> bool:
        """Whether no process before shares its host."""
        return self._on(self.keys[process])[0] == process

    def _on(self, key: str) -> list[int]:
        return [process for process, one in enumerate(self.keys) if one == key]


class Exchange:
    """Sends parts to other processes, and takes theirs in on a thread of its own."""

    def __init__(self, key: str, receive: Receive) -> None:
        """Listens, and waits for all processes to do so.

        Args:
            key: Of this process's host.
            receive: What is done with each part that comes.
        """
        self._receive = receive
        self._secret = secrets.token_hex(16)
        self._server = socket.create_server(("", 0))
        name = "meeting for snapshots"
        port = self._server.getsockname()[1]
        own: list[Any] = [key, reachable_host(), port, self._secret]
        found = all_gather_object(name, lambda: own)
        self._peers: list[tuple[str, int, str]] = [
            (host, port, one) for _, host, port, one in found
        ]
        self.hosts = Hosts([peer[0] for peer in found])
        threading.Thread(target=self._serve, name="snapshots", daemon=True).start()

    def send(self, to: int, process: int, step: int, directory: Path) -> None:
        """Copies the part of a process at a step into the memory of another one's host.

        Raises:
            OSError: It did not arrive whole.
        """
        host, port, secret = self._peers[to]
        paths = [directory / name for name in PART_FILES]
        sizes = [path.stat().st_size for path in paths]
        head = {"secret": secret, "process": process, "step": step, "sizes": sizes}
        with (
            socket.create_connection((host, port), _LIMIT_S) as connection,
            connection.makefile("rb") as answers,
        ):
            connection.sendall(json.dumps(head).encode() + b"\n")
            for path in paths:
                with path.open("rb") as file:
                    connection.sendfile(file)
            answer = answers.readline(_LINE_BYTES).decode().strip()
        if answer != "whole":
            raise OSError(f"process {to} did not take the copy: {answer or 'it hung up'}")

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return  # closed
            with connection, connection.makefile("rwb") as stream:
                connection.settimeout(_LIMIT_S)
                self._take(stream)

    def _take(self, stream: Any) -> None:
        try:
            head = parse_json(stream.readline(_LINE_BYTES))
            if not hmac.compare_digest(str(head["secret"]), self._secret):
                return
            write = lambda directory: _write_files(stream, head["sizes"], directory)  # noqa: E731
            self._receive(head["process"], head["step"], write)
            answer = "whole"
        except (OSError, ValueError, KeyError, TypeError) as error:
            answer = f"{type(error).__name__}: {error}".replace("\n", " ")
        _answer(stream, answer)


def _write_files(stream: IO[bytes], sizes: Sequence[int], directory: Path) -> None:
    for name, size in zip(PART_FILES, sizes, strict=True):
        with (directory / name).open("wb") as file:
            left = size
            while left:
                data = stream.read(min(left, _PIECE_BYTES))
                if not data:
                    raise ConnectionError(f"{name} was cut off, {left} bytes before its end")
                left -= file.write(data)


def _answer(stream: Any, text: str) -> None:
    try:
        stream.write(text.encode() + b"\n")
        stream.flush()
    except OSError:
        return  # the sender has left; it has its own error
