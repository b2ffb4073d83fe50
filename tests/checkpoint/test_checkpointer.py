"""Saving and restoring: exact, resharded, in order, never more than asked for is deleted."""

import logging
import resource
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tensorstore
from jax.sharding import NamedSharding, PartitionSpec

from axcore.checkpoint import Checkpointer, CheckpointWarning, writer
from axcore.errors import CheckpointError, ConfigError


def open_checkpoints(path, **changes):
    return Checkpointer.Config(**changes).build(directory=str(path))


def small_state(seed=0):
    return {"w": jnp.arange(12, dtype=jnp.float32).reshape(3, 4) + seed, "b": jnp.full((4,), seed)}


def describe(state):
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )


def assert_same_bits(got, wanted):
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


class Pair(NamedTuple):
    left: jax.Array
    right: tuple[jax.Array, ...]


@pytest.mark.slow
def test_every_kind_of_leaf_comes_back_bit_for_bit(tmp_path):
    params = {"layer": {"w": jax.random.normal(jax.random.key(0), (8, 3)), "b": jnp.zeros((3,))}}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    with jax.numpy_dtype_promotion("standard"):  # optax mixes int32 counts with floats
        _, opt_state = optimizer.update(params, optimizer.init(params), params)
    state = {
        "params": params,
        "opt": opt_state,
        "half": jnp.asarray([1.5, -0.0, jnp.inf, jnp.nan], jnp.bfloat16),
        "scalar": jnp.asarray(2.5, jnp.bfloat16),
        "step": jnp.asarray(7, jnp.int32),
        "key_data": jax.random.key_data(jax.random.key(3)),
        "key": jax.random.split(jax.random.key(4), 2),
        "flags": jnp.asarray([True, False]),
        "empty": jnp.zeros((0, 5), jnp.float32),
        "pair": Pair(jnp.ones((2,), jnp.int8), (jnp.ones((1,), jnp.float16),)),
        "none": None,
    }
    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
        assert_same_bits(checkpoints.restore(describe(state)).state, state)


def test_numbers_and_numpy_arrays_come_back_as_arrays(tmp_path):
    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"count": 3, "rate": 0.5, "table": np.arange(4, dtype=np.uint8)})
        template = jax.eval_shape(
            lambda: {
                "count": jnp.zeros((), jnp.int32),
                "rate": jnp.zeros(()),
                "table": jnp.zeros((4,), jnp.uint8),
            }
        )
        state = checkpoints.restore(template).state
    assert (int(state["count"]), float(state["rate"])) == (3, 0.5)
    assert state["table"].tolist() == [0, 1, 2, 3]


def test_a_leaf_that_would_change_is_refused(tmp_path):
    with open_checkpoints(tmp_path) as checkpoints:
        with pytest.raises(CheckpointError, match=r"a\.wide is a numpy array of int64; jax holds"):
            checkpoints.save(1, {"a": {"wide": np.arange(3)}})
        with pytest.raises(CheckpointError, match="name is a str; only arrays and numbers"):
            checkpoints.save(1, {"name": "x"})
        with pytest.raises(CheckpointError, match=r"two leaves of the state are called 'a\.b'"):
            checkpoints.save(1, {"a": {"b": jnp.zeros(1)}, "a.b": jnp.ones(1)})
    assert checkpoints.steps() == ()


def test_extra_comes_back_exactly_or_is_refused(tmp_path):
    extra = {"data": {"epoch": 2, "seen": [1, 2.5, None, True, "é"]}, "digest": "f00d"}
    with open_checkpoints(tmp_path) as checkpoints:
        for value, message in [
            ({"p": [(1, 2)]}, r"extra\.p\[0\] is \(1, 2\) \(tuple\)"),
            ({"p": {3: "x"}}, r"extra\.p has the key 3; JSON would make it a str"),
            ({"p": float("nan")}, r"extra\.p is nan; JSON has no such number"),
            ({"p": np.int64(3)}, r"extra\.p is .*3.* \(int64\)"),
        ]:
            with pytest.raises(CheckpointError, match=message):
                checkpoints.save(1, small_state(), extra=value)
        checkpoints.save(1, small_state(), extra=extra)
        checkpoints.wait()
        assert checkpoints.restore(describe(small_state())).extra == extra
        assert checkpoints.manifest(1).extra == extra


def test_resharding_over_eight_devices_and_back_keeps_every_bit(tmp_path):
    def on_mesh(num_devices):
        mesh = jax.make_mesh((num_devices,), ("fsdp",), devices=jax.devices()[:num_devices])
        return {
            "w": NamedSharding(mesh, PartitionSpec("fsdp")),
            "e": NamedSharding(mesh, PartitionSpec(None, "fsdp")),
            "n": NamedSharding(mesh, PartitionSpec()),
        }

    state = {
        "w": jax.random.normal(jax.random.key(0), (64, 24)),
        "e": jax.random.normal(jax.random.key(1), (6, 16), jnp.bfloat16),
        "n": jnp.asarray(5),
    }
    one, eight = on_mesh(1), on_mesh(8)
    with open_checkpoints(tmp_path) as checkpoints:
        current = jax.device_put(state, one)
        for step, shardings in enumerate([eight, one, eight], start=1):
            checkpoints.save(step, current)
            template = jax.tree.map(
                lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, shardings
            )
            current = checkpoints.restore(template).state
            assert_same_bits(current, state)
            assert {k: x.sharding for k, x in current.items()} == shardings


def test_a_state_may_be_donated_once_save_returns(tmp_path):
    state = {"w": jnp.arange(1 << 20, dtype=jnp.float32)}
    wanted = np.array(state["w"])
    overwrite = jax.jit(lambda s: jax.tree.map(lambda x: x * 0 - 1, s), donate_argnums=0)
    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
        after = jax.block_until_ready(overwrite(state))
        restored = checkpoints.restore(describe(after)).state
    assert np.array_equal(restored["w"], wanted)


def test_part_of_a_checkpoint_is_restored_only_on_request(tmp_path):
    state = {"params": small_state(1), "opt": small_state(2)}
    template = {"params": describe(small_state())}
    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
        with pytest.raises(CheckpointError, match=r"opt\.b is in the checkpoint; nothing here"):
            checkpoints.restore(template)
        restored = checkpoints.restore(template, partial=True)
    assert_same_bits(restored.state, {"params": state["params"]})


def test_wrong_shape_dtype_and_names_are_all_listed(tmp_path):
    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(
            100, {"layer": {"weight": jnp.zeros((2, 3)), "bias": jnp.zeros((3,)), "g": jnp.ones(1)}}
        )
        checkpoints.wait()
        template = {
            "layer": {
                "weigth": jax.ShapeDtypeStruct((2, 3), jnp.float32),
                "bias": jax.ShapeDtypeStruct((4,), jnp.float32),
                "g": jax.ShapeDtypeStruct((1,), jnp.bfloat16),
            }
        }
        with pytest.raises(CheckpointError) as raised:
            checkpoints.restore(template)
    assert str(raised.value).splitlines()[:5] == [
        "step 100 does not fit what is to be restored",
        "layer.bias is saved as float32[3]; wanted float32[4]",
        "layer.g is saved as float32[1]; wanted bfloat16[1]",
        "layer.weigth is not in the checkpoint; did you mean 'layer.weight'?",
        "layer.weight is in the checkpoint; nothing here has it",
    ]


def test_a_misfit_never_falls_back_to_an_older_step(tmp_path):
    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"w": jnp.zeros((2,))})
        checkpoints.save(2, {"w": jnp.zeros((3,))})
        with pytest.raises(CheckpointError, match="step 2 does not fit"):
            checkpoints.restore({"w": jax.ShapeDtypeStruct((2,), jnp.float32)})
        assert checkpoints.restore(describe({"w": jnp.zeros((2,))}), step=1).step == 1


def test_the_newest_steps_are_kept_and_sort_by_name(tmp_path):
    with open_checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (5, 10, 100, 2000):
            checkpoints.save(step, small_state(step))
        checkpoints.wait()
        assert checkpoints.steps() == (100, 2000)
        assert checkpoints.latest() == 2000
        assert_same_bits(
            checkpoints.restore(describe(small_state()), step=100).state, small_state(100)
        )
    names = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert names == ["step_00000100", "step_00002000"]


def test_all_steps_are_kept_without_a_limit(tmp_path):
    with open_checkpoints(tmp_path, keep=None) as checkpoints:
        for step in range(5):
            checkpoints.save(step, small_state())
    assert checkpoints.steps() == (0, 1, 2, 3, 4)


def test_steps_of_a_history_that_ended_are_quarantined_not_deleted(tmp_path):
    with open_checkpoints(tmp_path) as first:
        for step in (1, 2, 3):
            first.save(step, small_state(step))
    with open_checkpoints(tmp_path) as second:
        second.restore(describe(small_state()), step=1)
        with pytest.warns(CheckpointWarning, match="step 2 is saved by .* as step 2, 3 is renamed"):
            second.save(2, small_state(20))
        second.wait()
        assert second.steps() == (1, 2)
        assert_same_bits(second.restore(describe(small_state())).state, small_state(20))
    assert (tmp_path / "step_00000003.quarantined" / "manifest.json").is_file()
    (tmp_path / "step_00000002").rename(tmp_path / "elsewhere")
    (tmp_path / "step_00000002.quarantined").rename(tmp_path / "step_00000002")
    assert_same_bits(second.restore(describe(small_state()), step=2).state, small_state(2))


def test_a_step_is_saved_once_and_in_order(tmp_path):
    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(5, small_state())
        for step in (5, 4):
            with pytest.raises(CheckpointError, match=f"step {step} cannot be saved after step 5"):
                checkpoints.save(step, small_state())
        with pytest.raises(CheckpointError, match="step -1 is negative"):
            checkpoints.save(-1, small_state())


def test_nothing_to_restore_is_an_error_and_writes_nothing(tmp_path):
    checkpoints = open_checkpoints(tmp_path / "new")
    assert checkpoints.latest() is None
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        checkpoints.restore(describe(small_state()))
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 7; there are: \(none\)"):
        checkpoints.restore(describe(small_state()), step=7)
    assert not (tmp_path / "new").exists()


def test_one_writer_at_a_time_and_any_number_of_readers(tmp_path):
    with open_checkpoints(tmp_path) as writer:
        writer.save(1, small_state(1))
        writer.wait()
        other = open_checkpoints(tmp_path)
        assert other.restore(describe(small_state())).step == 1
        with pytest.raises(
            CheckpointError, match=r"this process \(pid .*\) is already saving checkp"
        ):
            other.save(2, small_state())
    other.save(2, small_state())
    other.close()
    assert writer.steps() == (1, 2)


def test_a_full_disk_is_reported_once_and_harms_no_earlier_step(tmp_path, capfd, caplog):
    state = {"w": jax.random.normal(jax.random.key(0), (1 << 19,))}
    with open_checkpoints(tmp_path, keep=1, tries=1) as checkpoints:
        checkpoints.save(1, state)
        checkpoints.wait()
        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, unlimited[1]))
        try:
            with caplog.at_level(logging.INFO):
                checkpoints.save(2, state)
                with pytest.raises(CheckpointError, match=r"saving step 2 failed.*File too large"):
                    checkpoints.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        checkpoints.wait()
        assert checkpoints.steps() == (1,)
        assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["step_00000001"]
        checkpoints.verify(1)
        checkpoints.save(3, state)
        assert checkpoints.restore(describe(state)).step == 3
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_a_python_that_cannot_finish_a_save_at_its_end_says_so_once(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "THREADS_START_AT_EXIT", False)
    writer._warn_of_old_python.cache_clear()
    with open_checkpoints(tmp_path) as checkpoints:
        with pytest.warns(
            CheckpointWarning, match=r"so a save would be lost there: training waits"
        ):
            checkpoints.save(1, small_state())
        assert checkpoints.steps() == (1,), "save did not wait for its files"
        checkpoints.save(2, small_state())


def test_a_failed_save_is_raised_by_the_next_save(tmp_path):
    state = {"w": jax.random.normal(jax.random.key(0), (1 << 19,))}
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_checkpoints(tmp_path, tries=1) as checkpoints:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, unlimited[1]))
        try:
            checkpoints.save(2, state)
            with pytest.raises(CheckpointError, match="saving step 2 failed"):
                checkpoints.save(3, state)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        checkpoints.save(4, state)
    assert checkpoints.steps() == (4,)


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    checkpoints = open_checkpoints(tmp_path / "file" / "checkpoints")
    with pytest.raises(CheckpointError, match=r"checkpoints cannot be written.*Not a directory"):
        checkpoints.save(1, small_state())


def test_saves_are_due_at_multiples(tmp_path):
    checkpoints = open_checkpoints(tmp_path, every_steps=50)
    assert [step for step in range(160) if checkpoints.is_due(step)] == [50, 100, 150]


@pytest.mark.parametrize("field", ["every_steps", "keep"])
def test_a_count_below_one_is_refused(tmp_path, field):
    with pytest.raises(ConfigError, match=f"{field} is 0; expected 1 or more"):
        open_checkpoints(tmp_path, **{field: 0})


KEPT_RUN = Path(__file__).parent / "kept_run"
"""A step that an early version saved; it is never saved again, so that old runs still open."""


def kept_state():
    return {
        "weight": jnp.arange(12, dtype=jnp.float32).reshape(3, 4),
        "bias": jnp.arange(5, dtype=jnp.bfloat16),
        "count": jnp.int32(3),
        "key": jax.random.key(7),
        "empty": jnp.zeros((0, 3)),
    }


def test_a_step_of_an_early_version_is_restored_bit_by_bit():
    restored = open_checkpoints(KEPT_RUN).restore(describe(kept_state()))
    assert_same_bits(restored.state, kept_state())
    assert restored.extra == {"data": {"position": 12}}
    assert open_checkpoints(KEPT_RUN).known_good() == (1,)


def test_tensorstore_alone_reads_the_arrays_of_a_step():
    database = {"driver": "ocdbt", "base": f"file://{KEPT_RUN}/step_00000001/arrays/state/"}
    weight = {"driver": "zarr3", "kvstore": {**database, "path": "weight/"}}
    read = tensorstore.open(weight, open=True).result().read().result()
    assert np.array_equal(read, kept_state()["weight"])
