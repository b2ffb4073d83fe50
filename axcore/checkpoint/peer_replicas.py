"""Peer replicas: a process's part of a state, copied to the memory of another host of the run.

Each process listens on a port of its own. A copy is one line of JSON, the files' bytes, and one
line back once they are complete there. A line without the process's secret is hung up on.
"""

import hmac
import json
import secrets
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import attrs
import jax

from axcore.checkpoint import store
from axcore.checkpoint.chunks import HostState, has_chunks, stored_form
from axcore.checkpoint.leaves import LeafSpec, leaf_spec, mismatches
from axcore.checkpoint.manifest import (
    MANIFEST_NAME,
    DamagedCheckpointError,
    Manifest,
    find_damage,
    read_manifest,
    record_files,
    write_manifest,
)
from axcore.config.json_files import parse_json
from axcore.distributed import all_gather_object, process_index, reachable_host

# For one part to cross the network, and far below the barrier limit of
# the gather that contains it, so that a stuck peer is reported by name.
_LIMIT_S = 120.0
_PIECE_BYTES = 1 << 20
# A first line names the files of a part, a few hundred bytes. Whoever reaches
# the port could otherwise send a line without end into memory.
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

    def peer_of(self, process: int) -> int | None:
        """Return who keeps a process's copies: one on the next host; None where there is none."""
        # Order of first appearance: all processes have the same
        # `keys`, so all find the same ring without talking.
        names = list(dict.fromkeys(self.keys))
        if len(names) == 1:
            return None
        own = self._on(self.keys[process])
        others = self._on(names[(names.index(self.keys[process]) + 1) % len(names)])
        # By position on its host, so that the copies of one host spread over all
        # processes of the next one; modulo, because hosts may have different numbers.
        return others[own.index(process) % len(others)]

    def is_first_on_host(self, process: int) -> bool:
        """Whether no process before shares its host."""
        return self._on(self.keys[process])[0] == process

    def _on(self, key: str) -> list[int]:
        return [process for process, one in enumerate(self.keys) if one == key]


class PeerExchange:
    """Connections to the other processes: parts are sent, and received on a thread of its own."""

    def __init__(self, key: str, receive: Receive) -> None:
        """Listen, and wait for all processes to do so.

        Args:
            key: Of this process's host.
            receive: What is done with each part that comes.
        """
        self._receive = receive
        # New for each exchange: a process of an earlier attempt
        # that still runs cannot write into this one's memory.
        self._secret = secrets.token_hex(16)
        # Port 0: the kernel chooses a free one, for several
        # processes on one host would collide on a fixed number.
        self._server = socket.create_server(("", 0))
        name = "meeting for snapshots"
        port = self._server.getsockname()[1]
        own: list[Any] = [key, reachable_host(), port, self._secret]
        found = all_gather_object(name, lambda: own)
        self._peers: list[tuple[str, int, str]] = [
            (host, port, one) for _, host, port, one in found
        ]
        self.hosts = Hosts([peer[0] for peer in found])
        # After the gather: a part must not arrive before all know where copies go.
        threading.Thread(target=self._serve, name="snapshots", daemon=True).start()

    def send(self, to: int, process: int, step: int, directory: Path) -> None:
        """Copy the part of a process at a step into the memory of another one's host.

        Raises:
            OSError: It did not arrive whole.
        """
        host, port, secret = self._peers[to]
        sizes = _sizes(directory)
        head = {"secret": secret, "process": process, "step": step, "sizes": sizes}
        with (
            # The connection is made for each part. Snapshots are minutes apart,
            # and a connection kept that long dies unnoticed in firewalls.
            socket.create_connection((host, port), _LIMIT_S) as connection,
            connection.makefile("rb") as answers,
        ):
            connection.sendall(json.dumps(head).encode() + b"\n")
            for name in sizes:
                with (directory / name).open("rb") as file:
                    # `sendfile` goes from the page cache to the socket without
                    # passing through Python; the GIL stays free for training.
                    connection.sendfile(file)
            # Not just a successful send: the receiver has
            # read the part back from its memory by then.
            answer = answers.readline(_LINE_BYTES).decode().strip()
        if answer != "whole":
            raise OSError(f"process {to} did not take the copy: {answer or 'it hung up'}")

    def close(self) -> None:
        """Stop listening."""
        # `close` alone does not wake the thread that is in `accept`.
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return  # closed
            # One at a time: at most one process sends its snapshot
            # here, and on the way back parts come to their owner only.
            with connection, connection.makefile("rwb") as stream:
                # A sender that dies half-way must not hold this thread for ever.
                connection.settimeout(_LIMIT_S)
                self._take(stream)

    def _take(self, stream: Any) -> None:
        try:
            head = parse_json(stream.readline(_LINE_BYTES))
            # The port is open to whoever reaches the host, and a part is written to its memory.
            # Constant time, and no answer: a stranger learns
            # neither the secret nor that there is one.
            if not hmac.compare_digest(str(head["secret"]), self._secret):
                return
            write = lambda directory: _write_files(stream, head["sizes"], directory)  # noqa: E731
            self._receive(head["process"], head["step"], write)
            answer = "whole"
        # Nothing else may escape: this thread has to serve the next part, too.
        except (OSError, ValueError, KeyError, TypeError) as error:
            answer = f"{type(error).__name__}: {error}".replace("\n", " ")
        _answer(stream, answer)


def _sizes(directory: Path) -> dict[str, int]:
    """Return the size of each file of a part by its path in it, that of the manifest last."""
    paths = [path for path in directory.rglob("*") if path.is_file()]
    paths.sort(key=lambda path: (path.name == MANIFEST_NAME, path))
    return {path.relative_to(directory).as_posix(): path.stat().st_size for path in paths}


def _write_files(stream: IO[bytes], sizes: Mapping[str, int], directory: Path) -> None:
    for name, size in sizes.items():
        path = directory / name
        # The sender has the secret, and still may not write elsewhere.
        if not path.resolve().is_relative_to(directory.resolve()):
            raise ValueError(f"{name} is not a path in a snapshot")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
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


# -- The part of one process -----------------------------------------------------------------------
#
# A step of one database, with all that the process's devices hold. The manifest comes last; without
# it there is no part.


def write_part(
    directory: Path,
    step: int,
    own: HostState,
    leaves: Mapping[str, LeafSpec],
    extra: Mapping[str, Any],
) -> None:
    """Write a part into an empty directory."""
    database = store.database_of(process_index())
    store.write(directory / database, own)
    found = Manifest(
        step=step,
        leaves=leaves,
        files=record_files(directory),
        extra=extra,
        databases=(database,),
        grids={name: leaf.grid for name, leaf in own.items()},
    )
    write_manifest(directory, found)


def part_damage(directory: Path) -> list[str]:
    """Return what is wrong with a part, one sentence each; empty where it is whole."""
    try:
        return find_damage(directory, read_manifest(directory).files)
    except (DamagedCheckpointError, OSError) as error:
        return [str(error)]


def part_fits(manifest: Manifest, wanted: Mapping[str, jax.ShapeDtypeStruct], process: int) -> bool:
    """Whether a part holds what the devices of a process are to hold, or more."""
    specs = {name: leaf_spec(leaf) for name, leaf in wanted.items()}
    return not mismatches(manifest.leaves, specs) and all(
        # Parts of an older version, which memory may still have, say nothing of chunks.
        name in manifest.grids and has_chunks(manifest.grids[name], stored_form(leaf), process)
        for name, leaf in wanted.items()
        if leaf.size
    )
