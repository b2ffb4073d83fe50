"""Single replica restore: one process reads what several need, and the others receive it from it.

Where parameters are replicated, as in data parallelism, the processes of a replica group need the
same files of a step. Each piece of these files (`pieces.py`) is read from the store by one member
of the group; then all members gather the pieces through their devices, over the interconnect, and
write them into their own files. These are verified and loaded as if each had read them itself.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import jax
import numpy as np

from axcore.checkpoint.manifest import FileRecord
from axcore.checkpoint.pieces import (
    Piece,
    cut_off,
    pieces_of,
    read_at,
    read_pieces,
    smallest,
    write_at,
)
from axcore.checkpoint.storage import StorageError, as_storage_errors
from axcore.distributed import (
    all_gather_object,
    decide_together,
    naming_lost_processes,
    process_index,
    time_limits,
)
from axcore.errors import ProcessError

# What all members of a group together send in a round; twice that is in a process's device memory.
_ROUND_BYTES = 64 << 20

# What is sent: as wide as every backend's collectives take.
_WORD = np.dtype(np.uint32)

_NAME = "sharing what was read of a checkpoint"


@attrs.frozen
class ReplicaGroup:
    """Processes that need the same files, and which of them reads each piece.

    Attributes:
        members: The processes, in rising order.
        pieces: What each of them reads, in their order.
    """

    members: tuple[int, ...]
    pieces: tuple[tuple[Piece, ...], ...]


def group_files(wanted: Sequence[Sequence[str]]) -> list[tuple[list[int], list[str]]]:
    """Return which processes need which files, from what each of them needs."""
    needed_by: dict[str, list[int]] = {}
    for process, names in enumerate(wanted):
        for name in names:
            needed_by.setdefault(name, []).append(process)
    groups: dict[tuple[int, ...], list[str]] = {}
    for name in sorted(needed_by):
        groups.setdefault(tuple(needed_by[name]), []).append(name)
    return [(list(members), names) for members, names in groups.items()]


def plan_group(members: Sequence[int], files: Mapping[str, FileRecord], turn: int) -> ReplicaGroup:
    """Divide the pieces of files between the members of a group, by their bytes.

    Args:
        members: The processes.
        files: What they need.
        turn: Who comes first where several have as little to read: or the first member of each
            group, often the same process, would read every small file.
    """
    count, read = len(members), [0] * len(members)
    pieces: list[list[Piece]] = [[] for _ in members]
    for name, record in files.items():
        for piece in pieces_of(name, record):
            reader = min(range(count), key=lambda one: (read[one], (one - turn) % count))
            read[reader] += piece.num_bytes
            pieces[reader].append(piece)
    return ReplicaGroup(tuple(members), tuple(map(tuple, pieces)))


def fetch_once(
    folder: Path, files: Mapping[str, FileRecord], read: Callable[[Piece], bytes]
) -> None:
    """Fetch the files that this process needs, each piece read by one process that needs it.

    All processes call this at once. A file that is lost stays away; one of another size than it had
    is cut there, for whoever verifies it.

    Args:
        folder: This process's own.
        files: What it needs, none of which is in `folder`.
        read: Returns what the store has of a piece.

    Raises:
        StorageError: A process could not read a piece, or not write a file.
        ProcessError: A process was lost, or did not come in time.
    """
    found = decide_together("what is fetched of a checkpoint", lambda: sorted(files), group_files)
    groups = [
        plan_group(members, {name: files[name] for name in names}, turn)
        for turn, (members, names) in enumerate(found)
        if process_index() in members
    ]
    own = [
        piece for group in groups for piece in group.pieces[group.members.index(process_index())]
    ]

    def read_own() -> dict[str, int]:
        try:
            return read_pieces(folder, files, own, read)
        except OSError as error:
            what = error.what if isinstance(error, StorageError) else str(error)
            reader = f"process {process_index()}, which reads for others, failed"
            raise StorageError(f"{reader}: {what}") from error

    # Before anything is sent: an error of one process must not leave the others in a collective.
    reports = all_gather_object("fetching a checkpoint", read_own)
    cut = smallest(pair for report in reports for pair in report.items())
    _receive(folder, [_without(group, cut) for group in groups])
    cut_off(folder, {name: size for name, size in cut.items() if name in files})


def _without(group: ReplicaGroup, names: Mapping[str, int]) -> ReplicaGroup:
    """Return a group without the pieces of some files."""
    pieces = ([one for one in each if one.name not in names] for each in group.pieces)
    return attrs.evolve(group, pieces=tuple(map(tuple, pieces)))


# -- Over the interconnect -------------------------------------------------------------------------
#
# What a member of a group reads is one stream of bytes. In each round every member sends as many
# bytes of its stream, and receives those of all. So every link is busy, however many members there
# are, and what is in memory at a time does not grow with their number.


def _receive(folder: Path, groups: Sequence[ReplicaGroup]) -> None:
    """Exchange what was read, in the groups of this process."""
    failed: list[OSError] = []

    def exchange() -> None:
        # In the order of the plan, which is the same in all processes: two groups
        # that have members in common would wait for each other otherwise.
        for group in groups:
            if len(group.members) > 1 and any(map(_num_bytes, group.pieces)):
                _exchange(folder, group, failed)

    with naming_lost_processes():
        _within_limit(exchange)

    def check() -> None:
        with as_storage_errors(OSError):
            if failed:
                raise failed[0]

    all_gather_object(_NAME, check)


def _within_limit(act: Callable[[], None]) -> None:
    """Call a function that may wait for other processes' devices, which no backend limits.

    Raises:
        ProcessError: It took longer than processes wait for one another.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            raised.append(error)

    limit_s = time_limits().barrier_s
    # A daemon, which keeps nobody from leaving: a collective cannot be cancelled.
    thread = threading.Thread(target=run, name="single replica restore", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise ProcessError(
            f"the processes did not exchange what they read within {limit_s:g} s",
            where=_NAME,
            hint="see what the others say; raise the limit (--barrier-timeout), or let each "
            "process read for itself: --set checkpoint.single_replica_restore=False",
        )
    if raised:
        raise raised[0]


def _exchange(folder: Path, group: ReplicaGroup, failed: list[OSError]) -> None:
    """Exchange the streams of a group; what a disk does is noted, and the round continues."""
    own = group.members.index(process_index())
    grid = _devices_of(group.members)
    longest, edge = max(map(_num_bytes, group.pieces)), grid.shape[1] * _WORD.itemsize
    num_bytes = min(longest, max(_ROUND_BYTES // len(group.members), 1))
    num_bytes = -(-num_bytes // edge) * edge
    gather = _gather(grid)
    for begin in range(0, longest, num_bytes):
        sent = np.zeros(num_bytes, np.uint8)
        end = begin + num_bytes
        try:
            for piece, offset, at, size in _spans(group.pieces[own], begin, end):
                data = read_at(folder / piece.name, offset, size)
                sent[at : at + size] = np.frombuffer(data, np.uint8)
        except OSError as error:
            failed.append(error)
        received = gather(sent)
        try:
            for member, pieces in enumerate(group.pieces):
                if member == own:
                    continue
                for piece, offset, at, size in _spans(pieces, begin, end):
                    write_at(folder / piece.name, offset, received[member, at : at + size])
        except OSError as error:
            failed.append(error)


def _num_bytes(pieces: Sequence[Piece]) -> int:
    return sum(piece.num_bytes for piece in pieces)


def _spans(pieces: Sequence[Piece], begin: int, end: int) -> Iterator[tuple[Piece, int, int, int]]:
    """Yield what a part of a stream has of pieces: offsets in file and part, and the bytes."""
    at = 0
    for piece in pieces:
        size = piece.num_bytes
        first, last = max(begin, at), min(end, at + size)
        if first < last:
            yield piece, piece.begin + first - at, first - begin, last - first
        at += size


def _devices_of(members: Sequence[int]) -> np.ndarray:
    """Return devices of processes, a row each: all that each has, so that all links are used."""
    found: dict[int, list[Any]] = {member: [] for member in members}
    for device in jax.devices():
        if device.process_index in found:
            found[device.process_index].append(device)
    count = min(map(len, found.values()))
    return np.array([devices[:count] for devices in found.values()])


def _gather(grid: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from what a member sends to what all sent, a row each."""
    mesh = jax.sharding.Mesh(grid, ("member", "device"))
    gathered_as = jax.NamedSharding(mesh, jax.P(None, "device"))  # type: ignore[no-untyped-call]
    sent_as = jax.NamedSharding(mesh, jax.P("member", "device"))  # type: ignore[no-untyped-call]
    program = jax.jit(lambda words: words, out_shardings=gathered_as)
    local = [device for device in grid.flat if device.process_index == process_index()]

    def gather(sent: np.ndarray) -> np.ndarray:
        parts = np.split(sent.view(_WORD)[None], len(local), axis=1)
        placed = [jax.device_put(*pair) for pair in zip(parts, local, strict=True)]
        shape = (grid.shape[0], sent.size // _WORD.itemsize)
        words = jax.make_array_from_single_device_arrays(shape, sent_as, placed)
        shards = {one.device: one.data for one in program(words).addressable_shards}
        found = np.concatenate([np.asarray(shards[device]) for device in local], axis=1)
        return found.view(np.uint8)

    return gather
