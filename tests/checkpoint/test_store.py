"""Chunks of a state are written once each, by whoever has least to write, and read by any mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore
from jax.sharding import NamedSharding, PartitionSpec

from axcore.checkpoint import Checkpointer, chunks, store
from axcore.checkpoint.chunks import ABSENT, ChunkGrid
from axcore.checkpoint.leaves import leaf_spec
from axcore.checkpoint.manifest import Manifest

SHARDINGS = [(), ("x",), (None, "x"), ("y", "x")]


def sharded(*axes):
    mesh = jax.make_mesh((4, 2), ("x", "y"), devices=jax.devices()[:8])
    return NamedSharding(mesh, PartitionSpec(*axes))


def state_on(sharding):
    return {
        "w": jax.device_put(jnp.arange(128.0).reshape(8, 16), sharding),
        "half": jax.device_put(jnp.ones((8, 4), jnp.bfloat16), sharding),
        "flags": jax.device_put(jnp.arange(32).reshape(8, 4) % 3 == 0, sharding),
        "zeros": jax.device_put(jnp.zeros((8, 8)), sharding),
    }


def written(path, arrays, grids, processes=1):
    """Write a state as so many processes do; returns its manifest."""
    for owner in range(processes):
        store.write(path / store.database_of(owner), chunks.copy_to_host(arrays, grids, owner))
    return Manifest(
        step=1,
        leaves={name: leaf_spec(array) for name, array in arrays.items()},
        files={},
        extra={},
        databases=tuple(map(store.database_of, range(processes))),
        grids=grids,
    )


@pytest.mark.parametrize("after", SHARDINGS)
@pytest.mark.parametrize("before", SHARDINGS)
@pytest.mark.quick_one_in(4)
def test_what_several_processes_wrote_is_read_into_any_sharding(tmp_path, before, after):
    state = state_on(sharded(*before))
    grids = {
        name: ChunkGrid(grid.chunk_shape, tuple(i % 3 for i in range(len(grid.owners))))
        for name, grid in chunks.shared_grids(state, 1).items()
    }
    manifest = written(tmp_path, state, grids, processes=3)
    wanted = {
        name: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharded(*after))
        for name, a in state.items()
    }
    found = store.load(tmp_path, manifest, wanted)
    for name, array in state.items():
        assert found[name].sharding == wanted[name].sharding
        assert np.asarray(found[name]).tobytes() == np.asarray(array).tobytes()


class FakeDevice:
    def __init__(self, process_index):
        self.process_index = process_index


class SplitOver:
    """Rows of an array, each on the devices of some processes."""

    def __init__(self, *holders):
        self.holders = holders

    def devices_indices_map(self, shape):
        rows = shape[0] // len(self.holders)
        return {
            FakeDevice(process): (
                slice(i * rows, (i + 1) * rows),
                *(slice(None),) * (len(shape) - 1),
            )
            for i, processes in enumerate(self.holders)
            for process in processes
        }

    def shard_shape(self, shape):
        return (shape[0] // len(self.holders), *shape[1:])


def owners_of(*leaves):
    arrays = {
        f"leaf{i}": jax.ShapeDtypeStruct(shape, jnp.float32, sharding=None)
        for i, (shape, _) in enumerate(leaves)
    }
    described = tuple(
        (name, array.shape, 4, SplitOver(*holders))
        for (name, array), (_, holders) in zip(arrays.items(), leaves, strict=True)
    )
    return [grid.owners for grid in chunks._shared_grids(described, 4).values()]


def test_each_chunk_has_one_owner_that_holds_it_and_replicas_are_spread():
    assert owners_of(((8, 2), [[0], [1]])) == [(0, 1)]
    everywhere = ((8,), [[0, 1, 2]])
    assert owners_of(everywhere, everywhere, everywhere, everywhere) == [(0,), (1,), (2,), (0,)]


def test_what_more_processes_hold_is_in_databases_apart():
    alone, pairs, all_of_them = [[0], [1], [2], [3]], [[0, 1], [2, 3]], [[0, 1, 2, 3]]
    found = owners_of(((8, 2), alone), ((4, 9), pairs), ((1,), all_of_them), ((8, 2), alone))
    assert found == [(0, 1, 2, 3), (4, 6), (8 + 1,), (0, 1, 2, 3)]
    grids = {"all": ChunkGrid((1,), (9,))}
    assert (chunks.num_kinds(grids, 4), chunks.num_kinds({}, 4)) == (3, 1)


@pytest.mark.parametrize("lost", ["chunk", "array"])
def test_a_chunk_that_a_database_lacks_is_an_error_never_zeros(tmp_path, lost):
    state = state_on(sharded("x"))
    manifest = written(tmp_path, state, chunks.shared_grids(state, 1))
    database = {"driver": "ocdbt", "base": f"file://{tmp_path}/arrays/process_0/"}
    key = {"chunk": "w/c/2/0", "array": "w/zarr.json"}[lost]
    tensorstore.KvStore.open(database).result().delete_range(
        tensorstore.KvStore.KeyRange(key, f"{key}\0")
    ).result()
    with pytest.raises(ValueError, match="NOT_FOUND"):
        store.load(tmp_path, manifest, {"w": jax.ShapeDtypeStruct(
            (8, 16), jnp.float32, sharding=sharded()
        )})  # fmt: skip


def test_a_part_has_what_its_process_holds_and_no_more():
    leaf = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=sharded("x"))
    assert chunks.has_chunks(ChunkGrid((2,), (0, 0, 0, 0)), leaf, 0)
    assert not chunks.has_chunks(ChunkGrid((2,), (0, 0, ABSENT, 0)), leaf, 0)
    assert chunks.has_chunks(ChunkGrid((2,), (ABSENT,) * 4), leaf, 1)


def test_tensorstore_alone_reads_what_is_saved(tmp_path):
    state = {"w": jnp.arange(12.0).reshape(3, 4)}
    with Checkpointer.Config().build(directory=str(tmp_path)) as checkpoints:
        checkpoints.save(1, state)
    base = f"file://{tmp_path}/step_00000001/arrays/process_0/"
    kvstore = {"driver": "ocdbt", "base": base, "path": "w/"}
    opened = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, open=True).result()
    assert np.array_equal(opened.read().result(), state["w"])
