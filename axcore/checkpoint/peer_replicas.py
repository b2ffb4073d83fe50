"""Peer replicas: a process's part of a state, copied to the memory of another host of the run.

Each process listens on a port of its own. A copy is one line of JSON, the files' bytes, and one
line back once they are complete there. A line without the process's secret is hung up on.
"""

import hmac
import json
import math
import secrets
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import attrs
import jax
import numpy as np

from axcore.checkpoint.leaves import LeafSpec, leaf_spec, mismatches
from axcore.checkpoint.manifest import (
    MANIFEST_NAME,
    DamagedCheckpointError,
    Manifest,
    find_damage,
    list_files,
    read_manifest,
    record_files,
    write_manifest,
)
from axcore.config.json_files import parse_json
from axcore.distributed import all_gather_object, reachable_host

# For one part to cross the network, and far below the barrier limit of
# the gather that contains it, so that a stuck peer is reported by name.
_LIMIT_S = 120.0
_PIECE_BYTES = 1 << 20
# A first line is a few hundred bytes. Whoever reaches the
# port could otherwise send a line without end into memory.
_LINE_BYTES = 1 << 16


_SHARDS_NAME = "shards.bin"
PART_FILES = (_SHARDS_NAME, MANIFEST_NAME)
"""The files of a part, in the order in which they are written and copied."""

# XLA's CPU client takes a buffer without a copy when it is aligned to 64 bytes.
_ALIGNED_BYTES = 64

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
        paths = [directory / name for name in PART_FILES]
        sizes = [path.stat().st_size for path in paths]
        head = {"secret": secret, "process": process, "step": step, "sizes": sizes}
        with (
            # The connection is made for each part. Snapshots are minutes apart,
            # and a connection kept that long dies unnoticed in firewalls.
            socket.create_connection((host, port), _LIMIT_S) as connection,
            connection.makefile("rb") as answers,
        ):
            connection.sendall(json.dumps(head).encode() + b"\n")
            for path in paths:
                with path.open("rb") as file:
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


# -- The part of one process -----------------------------------------------------------------------
#
# The shards of a process's devices are in one file, one after the other, so that a part is written
# and read at the speed of memory. The manifest comes last; without it there is not part.


HostShards = dict[str, dict[str, np.ndarray]]
"""By leaf and place; the place of a shard is its range in each dimension, as "0:4,8:16"."""


def host_shards(arrays: Mapping[str, jax.Array]) -> HostShards:
    """Return copies in host memory of what this process's devices hold, replicas once."""
    found = {
        name: {
            _shard_range(shard.index, array.shape): shard.data for shard in array.addressable_shards
        }
        for name, array in arrays.items()
    }
    # All copies are started before the first is waited for, so that they
    # overlap; one by one, each would cost a round trip to the device.
    for by_place in found.values():
        for data in by_place.values():
            data.copy_to_host_async()
    return {
        name: {place: np.asarray(data) for place, data in by_place.items()}
        # On CPU this may be a view of the device's buffer. It contains a reference, which keeps jax
        # from reusing that buffer while the part is written.
        for name, by_place in found.items()
    }


def _shard_range(index: tuple[slice, ...], shape: tuple[int, ...]) -> str:
    """Return the place of a shard that has an index into an array."""
    ends = (one.indices(size)[:2] for one, size in zip(index, shape, strict=True))
    return ",".join(f"{begin}:{end}" for begin, end in ends)


def write_part(
    directory: Path,
    step: int,
    shards: HostShards,
    leaves: Mapping[str, LeafSpec],
    extra: Mapping[str, Any],
) -> None:
    """Write a part into an empty directory."""
    offsets: dict[str, dict[str, int]] = {name: {} for name in shards}
    with (directory / _SHARDS_NAME).open("wb") as file:
        for name, by_place in shards.items():
            for place, data in by_place.items():
                # Aligned, so that a shard is a view of the file's bytes, without a copy.
                file.write(bytes(-file.tell() % _ALIGNED_BYTES))
                offsets[name][place] = file.tell()
                # bfloat16 and the float8 types are not types of buffers
                # of Python; as bytes every dtype can be written.
                file.write(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)
    files = record_files(directory, list_files(directory))
    # Offsets are in the manifest, which is checksummed: a
    # wrong offset would restore the wrong tensor silently.
    found = Manifest(step=step, leaves=leaves, files=files, extra={**extra, "offsets": offsets})
    write_manifest(directory, found)


def part_damage(directory: Path) -> list[str]:
    """Return what is wrong with a part, one sentence each; empty where it is whole."""
    try:
        return find_damage(directory, read_manifest(directory).files)
    except (DamagedCheckpointError, OSError) as error:
        return [str(error)]


def part_fits(manifest: Manifest, wanted: Mapping[str, jax.ShapeDtypeStruct], process: int) -> bool:
    """Whether a part contains what the devices of a process are to hold."""
    specs = {name: leaf_spec(leaf) for name, leaf in wanted.items()}
    return not mismatches(manifest.leaves, specs) and all(
        # A superset is enough: a process on fewer devices may take its shards out of a larger part.
        _places(leaf, process) <= manifest.extra["offsets"][name].keys()
        for name, leaf in wanted.items()
    )


def load_part(
    directory: Path, manifest: Manifest, wanted: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.Array]:
    """Return arrays of which this process's devices hold what a part does."""
    # Into memory, not mapped: the file goes when the next snapshot is
    # complete, while the arrays may still be views of these bytes.
    content = np.fromfile(directory / _SHARDS_NAME, np.uint8)
    offsets = manifest.extra["offsets"]
    return {name: _load_leaf(content, offsets[name], leaf) for name, leaf in wanted.items()}


def _load_leaf(
    content: np.ndarray, offsets: Mapping[str, int], leaf: jax.ShapeDtypeStruct
) -> jax.Array:
    sharding = leaf.sharding
    shape = sharding.shard_shape(leaf.shape)
    num_bytes = math.prod(shape) * leaf.dtype.itemsize

    def put(device: Any, index: Any) -> jax.Array:
        begin = offsets[_shard_range(index, leaf.shape)]
        data = content[begin : begin + num_bytes].view(leaf.dtype).reshape(shape)
        array: jax.Array = jax.device_put(data, device)
        return array

    indices = sharding.addressable_devices_indices_map(leaf.shape)
    parts = [put(device, index) for device, index in indices.items()]
    return jax.make_array_from_single_device_arrays(leaf.shape, sharding, parts)


def _places(leaf: jax.ShapeDtypeStruct, process: int) -> set[str]:
    indices = leaf.sharding.devices_indices_map(leaf.shape)
    return {
        _shard_range(index, leaf.shape)
        for device, index in indices.items()
        if device.process_index == process
    }
