"""How the leaves of a state are cut into chunks, and which process holds and writes each.

A chunk is what a device holds of a leaf; replicas are one chunk. A random key is stored as the
numbers that it is made of, which add dimensions at the end.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np

from axcore.distributed import on_leaving

Range = tuple[tuple[int, int], ...]
"""Begin and end in each dimension."""

ABSENT = -1
"""The owner of a chunk that no database has."""


@attrs.frozen
class ChunkGrid:
    """How a leaf is cut into equal chunks, and which database has each.

    Attributes:
        chunk_shape: In elements; it divides the shape of the leaf.
        owners: Of each chunk, in row-major order, the number of its database, or `ABSENT`.
    """

    chunk_shape: tuple[int, ...]
    owners: tuple[int, ...]

    def chunks_in(self, shape: tuple[int, ...], wanted: Range) -> Iterator[tuple[int, Range]]:
        """Yield the owner of each chunk that a range touches, and what the two have in common."""
        counts = [size // edge for size, edge in zip(shape, self.chunk_shape, strict=True)]
        touched = [
            range(begin // edge, -(-end // edge))
            for (begin, end), edge in zip(wanted, self.chunk_shape, strict=True)
        ]
        for position in itertools.product(*touched):
            number = 0
            for at, count in zip(position, counts, strict=True):
                number = number * count + at
            common = tuple(
                (max(begin, at * edge), min(end, (at + 1) * edge))
                for at, edge, (begin, end) in zip(position, self.chunk_shape, wanted, strict=True)
            )
            yield self.owners[number], common


@attrs.frozen
class HostLeaf:
    """What a process writes of a leaf: copies of chunks in host memory."""

    shape: tuple[int, ...]
    grid: ChunkGrid
    chunks: Mapping[Range, np.ndarray]


HostState = Mapping[str, HostLeaf]


def stored_form(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Return the description of what is stored of a leaf: itself, or the numbers of random keys."""
    if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    data = jax.eval_shape(jax.random.key_data, leaf)
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=leaf.sharding)  # type: ignore[no-untyped-call]


def stored_arrays(arrays: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Return what is stored of arrays; those without elements are in the manifest alone."""
    return {
        name: jax.random.key_data(array)
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
        else array
        for name, array in arrays.items()
        if array.size
    }


def shared_grids(arrays: Mapping[str, jax.Array], num_processes: int) -> dict[str, ChunkGrid]:
    """Return grids in which each chunk has one owner; every process finds the same.

    Replicas are spread: a chunk goes to the process that has the least to write so far. Database
    `process + kind * num_processes` is a process's. Chunks that more processes hold are of a higher
    kind: whoever needs a scalar that all hold must not have to fetch a process's shards with it.
    """
    described = tuple((name, a.shape, a.dtype.itemsize, a.sharding) for name, a in arrays.items())
    return _shared_grids(described, num_processes)


def num_kinds(grids: Mapping[str, ChunkGrid], num_processes: int) -> int:
    """Return how many databases each process has in grids that `shared_grids` made."""
    last = max((owner for grid in grids.values() for owner in grid.owners), default=0)
    return last // num_processes + 1


# A state has the same shapes at every save, and to plan thousands of chunks takes a while.
@functools.lru_cache(maxsize=4)
def _shared_grids(described: tuple[Any, ...], num_processes: int) -> dict[str, ChunkGrid]:
    written: Counter[int] = Counter()
    held = [(name, size, *_holders(shape, where)) for name, shape, size, where in described]
    counts = {len(held_by) for *_, holders in held for held_by in holders.values()}
    kinds = {count: kind for kind, count in enumerate(sorted(counts))}
    grids = {}
    for name, itemsize, chunk_shape, holders in held:
        owners = []
        for held_by in holders.values():
            process = min(held_by, key=lambda process: (written[process], process))
            owners.append(process + kinds[len(held_by)] * num_processes)
            written[process] += itemsize * math.prod(chunk_shape)
        grids[name] = ChunkGrid(chunk_shape, tuple(owners))
    return grids


# Its keys hold devices, which are gone after leaving a run.
on_leaving(_shared_grids.cache_clear)


def own_grids(arrays: Mapping[str, jax.Array], process: int) -> dict[str, ChunkGrid]:
    """Return grids of one database, which has all that the devices of a process hold."""
    grids = {}
    for name, array in arrays.items():
        chunk_shape, holders = _holders(array.shape, array.sharding)
        owners = [0 if process in held_by else ABSENT for held_by in holders.values()]
        grids[name] = ChunkGrid(chunk_shape, tuple(owners))
    return grids


def has_chunks(grid: ChunkGrid, leaf: jax.ShapeDtypeStruct, process: int) -> bool:
    """Whether a database has each chunk that the devices of a process are to hold."""
    return all(
        owner != ABSENT
        for one, held_by in _holders(leaf.shape, leaf.sharding)[1].items()
        if process in held_by
        for owner, _ in grid.chunks_in(leaf.shape, one)
    )


def _holders(
    shape: tuple[int, ...], sharding: jax.sharding.Sharding
) -> tuple[tuple[int, ...], dict[Range, list[int]]]:
    """Return the shape of chunks, and which processes hold each, in row-major order."""
    held_by: dict[Range, set[int]] = {}
    placed: Mapping[Any, Any] = sharding.devices_indices_map(shape)
    for device, index in placed.items():
        held_by.setdefault(range_of(index, shape), set()).add(device.process_index)
    # Sorted: ranges in lexical order are chunks in row-major order, since all have one size.
    return sharding.shard_shape(shape), {one: sorted(held_by[one]) for one in sorted(held_by)}


def range_of(index: tuple[slice, ...], shape: tuple[int, ...]) -> Range:
    """Return the range that an index into an array selects."""
    ends = (one.indices(size)[:2] for one, size in zip(index, shape, strict=True))
    return tuple((begin, end) for begin, end in ends)


def copy_to_host(
    arrays: Mapping[str, jax.Array], grids: Mapping[str, ChunkGrid], owner: int
) -> dict[str, HostLeaf]:
    """Return copies of the chunks that an owner has; the arrays may be donated afterwards."""
    owned: dict[str, dict[Range, jax.Array]] = {}
    for name, array in arrays.items():
        own = {range_of(one.index, array.shape): one.data for one in array.addressable_shards}
        owned[name] = {
            one: data
            for one, data in own.items()
            if next(grids[name].chunks_in(array.shape, one))[0] == owner
        }
        # All copies are started before the first is waited for, so that they
        # overlap; one by one, each would cost a round trip to the device.
        for data in owned[name].values():
            data.copy_to_host_async()
    return {
        name: HostLeaf(
            arrays[name].shape,
            grids[name],
            # On CPU this may be a view of the device's buffer. It has a reference, which keeps
            # jax from reusing that buffer while the chunk is written.
            {one: np.asarray(data) for one, data in chunks.items()},
        )
        for name, chunks in owned.items()
    }
