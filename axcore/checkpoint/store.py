"""Arrays to disk and back, through TensorStore.

Each process writes a database, `arrays/process_N`, with the chunks that it owns: zarr arrays by the
names of leaves, in a few large files (OCDBT). They are uncompressed: loads are 2-3x faster. What
more processes hold is in further databases, `arrays/process_N_1` and so on (`shared_grids`).
TensorStore is imported on first use: looking at a config needs none of it.
"""

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from axcore.checkpoint.chunks import (
    ABSENT,
    ChunkGrid,
    HostLeaf,
    HostState,
    Range,
    range_of,
    stored_form,
)
from axcore.checkpoint.manifest import Manifest

# Leaves that are read at once: enough to keep a disk busy, few enough that
# what is in host memory at a time is far less than the state.
_NUM_READERS = 8

# Of the parts of databases' indexes that are kept while arrays are read.
_INDEX_BYTES = 64 << 20

# XLA's CPU client takes a buffer without a copy when it is aligned to 64 bytes.
_ALIGNED_BYTES = 64


def database_of(process: int, kind: int = 0) -> str:
    """Return the directory of a process's arrays of a kind in the directory of a step."""
    return f"arrays/process_{process}" + (f"_{kind}" if kind else "")


def write(database: Path, leaves: HostState) -> None:
    """Write chunks into a database, which is made; nothing where there are none.

    It is not durable yet. What goes wrong is raised as TensorStore does, mostly a ValueError.
    """
    own = {name: leaf for name, leaf in leaves.items() if leaf.chunks}
    if not own:
        return
    # The step's directory is there, or its disk is gone: it is not made here.
    database.parent.mkdir(exist_ok=True)
    database.mkdir()
    ts, context = _tensorstore(), _context()
    # One transaction makes one version of the database. Without it, each batch
    # of writes would leave an index behind that the next one replaces.
    transaction = ts.Transaction()
    opened = {
        name: ts.open(
            _spec_to_write(database, name, leaf),
            create=True,
            open=False,
            context=context,
            transaction=transaction,
        )
        for name, leaf in own.items()
    }
    writes = []  # held until the end: TensorStore cancels a write that nobody waits for
    for name, leaf in own.items():
        array = opened[name].result()
        for chunk, data in leaf.chunks.items():
            selected = tuple(slice(begin, end) for begin, end in chunk)
            # By reference: the caller changes nothing until this returns.
            write = array[selected].write(data, can_reference_source_data_indefinitely=True)
            writes.append(write)
    transaction.commit_async().result()
    for write in writes:
        write.result()


def _spec_to_write(database: Path, name: str, leaf: HostLeaf) -> dict[str, Any]:
    spec, chunk_shape = _spec(database, name), leaf.grid.chunk_shape
    spec["kvstore"]["config"] = {"compression": None}
    metadata = {
        "shape": leaf.shape,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}},
        "data_type": str(next(iter(leaf.chunks.values())).dtype),
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }
    # Or chunks of zeros would be left out, and be read as lost.
    return {**spec, "metadata": metadata, "store_data_equal_to_fill_value": True}


def load(
    directory: Path, manifest: Manifest, wanted: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.Array]:
    """Read arrays of a step by name, each into the sharding that its description names.

    Only what this process's devices are to hold is read.
    """
    stored = {name: stored_form(leaf) for name, leaf in wanted.items() if leaf.size}
    # One for all leaves, so that the index of a database is read once; and a new one at
    # each load, since a step of this number may have been saved again.
    context = _context()

    def read(name: str) -> jax.Array:
        def source(owner: int) -> Any:
            return _open(directory / manifest.databases[owner], name, stored[name], context)

        return _read_leaf(_grid(manifest, name, stored[name]), stored[name], cache(source))

    with ThreadPoolExecutor(_NUM_READERS) as pool:
        found = dict(zip(stored, pool.map(read, stored), strict=True))
    # In this thread: to wrap keys is a computation, and several
    # processes must start theirs in the same order.
    return {name: _restored(found.get(name), leaf) for name, leaf in wanted.items()}


def databases_of(manifest: Manifest, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> set[str]:
    """Return the databases that have what this process's devices are to hold of arrays."""
    stored = {name: stored_form(leaf) for name, leaf in wanted.items() if leaf.size}
    owners: set[int] = set()
    for name, leaf in stored.items():
        grid = _grid(manifest, name, leaf)
        placed = leaf.sharding.addressable_devices_indices_map(leaf.shape)
        for one in {range_of(index, leaf.shape) for index in placed.values()}:
            owners.update(owner for owner, _ in grid.chunks_in(leaf.shape, one))
    return {manifest.databases[owner] for owner in owners}


def _grid(manifest: Manifest, name: str, leaf: jax.ShapeDtypeStruct) -> ChunkGrid:
    # What an older version wrote is one chunk in one database.
    return manifest.grids.get(name) or ChunkGrid(leaf.shape, (0,))


def _restored(array: jax.Array | None, leaf: jax.ShapeDtypeStruct) -> jax.Array:
    if array is None:
        # Made, not loaded: arrays without elements are not stored.
        return jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        keys: jax.Array = jax.random.wrap_key_data(array, impl=_key_impl(leaf))
        return keys
    return array


def _key_impl(leaf: jax.ShapeDtypeStruct) -> str:
    """Return the name of the generator that keys of a description are for."""
    # jax says it of keys alone, a traced one included; a description has only a dtype.
    found: list[str] = []
    jax.eval_shape(lambda keys: found.append(str(jax.random.key_impl(keys))), leaf)
    return found[0]


def _read_leaf(
    grid: ChunkGrid, leaf: jax.ShapeDtypeStruct, source: Callable[[int], Any]
) -> jax.Array:
    sharding, shape = leaf.sharding, leaf.shape
    placed = {
        device: range_of(index, shape)
        for device, index in sharding.addressable_devices_indices_map(shape).items()
    }
    # Replicas on this process's devices are read once.
    host = {one: _read_range(grid, one, leaf, source) for one in dict.fromkeys(placed.values())}
    kind = sharding.memory_kind
    parts = [
        jax.device_put(host[one], jax.sharding.SingleDeviceSharding(device, memory_kind=kind))
        for device, one in placed.items()
    ]
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def _read_range(
    grid: ChunkGrid, wanted: Range, leaf: jax.ShapeDtypeStruct, source: Callable[[int], Any]
) -> np.ndarray:
    """Return a range of an array, read from the databases that have its chunks."""
    begins = tuple(begin for begin, _ in wanted)
    data = _empty_aligned(tuple(end - begin for begin, end in wanted), leaf.dtype)
    # A view of `data` with the indices of the array, so
    # that TensorStore decodes into it without another copy.
    target = _tensorstore().array(data).translate_to[begins]
    reads = []
    for owner, common in grid.chunks_in(leaf.shape, wanted):
        assert owner != ABSENT, "the caller has checked that the chunks are there"
        selected = tuple(slice(begin, end) for begin, end in common)
        reads.append(target[selected].write(source(owner)[selected]))
    for read in reads:
        read.result()
    return data


def _empty_aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    num_bytes = math.prod(shape) * dtype.itemsize
    content = np.empty(num_bytes + _ALIGNED_BYTES, np.uint8)
    begin = -content.ctypes.data % _ALIGNED_BYTES
    array: np.ndarray = content[begin : begin + num_bytes].view(dtype).reshape(shape)
    return array


def _open(database: Path, name: str, leaf: jax.ShapeDtypeStruct, context: Any) -> Any:
    """Return a leaf's array in a database, once it is known to be of that shape and dtype."""
    ts = _tensorstore()
    # Without a value for what is missing: a lost chunk would be read as zeros.
    spec = {**_spec(database, name), "fill_missing_data_reads": False}
    return ts.open(
        spec, open=True, read=True, context=context, shape=leaf.shape, dtype=ts.dtype(leaf.dtype)
    ).result()


def _spec(database: Path, name: str) -> dict[str, Any]:
    # The driver and its path apart, not a URL, in which `%` and `?` have a meaning.
    files = {"driver": "file", "path": f"{database}/"}
    keys = {"base": files, "path": f"{name}/", "cache_pool": "cache_pool#index"}
    return {"driver": "zarr3", "kvstore": {"driver": "ocdbt", **keys}}


def _context() -> Any:
    return _tensorstore().Context(
        {
            # Whoever asks for a write makes it durable, with the directories that it is in.
            "file_io_sync": False,
            # For the index alone: chunks are read once, so to keep them would only cost memory.
            "cache_pool#index": {"total_bytes_limit": _INDEX_BYTES},
        }
    )


@cache
def _tensorstore() -> Any:
    import tensorstore

    return tensorstore
