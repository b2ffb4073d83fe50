"""`ArrayData`: rows of numpy arrays in an order of (seed, step), for any number of processes."""

import numpy as np
import pytest

from axcore.config import evolve, from_json, to_json
from axcore.data import ArrayData
from axcore.errors import ConfigError, DataError

N = 23


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AXCORE_DATA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "arrays"


def numbers(first=0):
    """Rows that say which they are, in two arrays of different shape."""
    y = np.arange(first, first + N)
    return {"x": np.stack([y, -y], axis=1).astype(np.float64), "y": y}


def config(**settings):
    return ArrayData.Config(train=numbers(), **{"batch_size": 4, **settings})


def rows_of(batches, count):
    """The rows of so many batches, in one array."""
    it = iter(batches)
    return np.concatenate([next(it)["y"] for _ in range(count)])


def test_each_epoch_has_each_training_row_once_in_another_order():
    data = config(validation_fraction=0.0).build()
    rows = rows_of(data.train(), N)[: 4 * N]  # four epochs
    epochs = rows.reshape(4, N)
    assert [sorted(epoch) for epoch in epochs] == [list(range(N))] * 4
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert np.array_equal(rows, rows_of(config(validation_fraction=0.0).build().train(), N))
    other = config(validation_fraction=0.0, seed=1).build()
    assert not np.array_equal(rows, rows_of(other.train(), N))


def test_processes_share_each_batch_and_rows_stay_together():
    data = config().build()
    parts = [data.train(process_index=i, process_count=2) for i in range(2)]
    for batch in [next(data.train())]:
        halves = [next(part) for part in parts]
        for name, array in batch.items():
            assert np.array_equal(array, np.concatenate([half[name] for half in halves]))
        assert np.array_equal(batch["x"], np.stack([batch["y"], -batch["y"]], axis=1))


def test_held_out_rows_are_never_trained_on_and_weigh_once():
    data = config(validation_fraction=0.3).build()
    batches = list(data.validation())
    weights = np.concatenate([batch["row_weights"] for batch in batches])
    held_out = np.concatenate([batch["y"] for batch in batches])[weights == 1]
    assert len(held_out) == weights.sum() == round(0.3 * N)
    assert weights.shape == (8,)
    assert sorted({*held_out} | {*rows_of(data.train(), 16)}) == list(range(N))
    assert not {*held_out} & {*rows_of(data.train(), 50)}
    assert all(not batch["x"][batch["row_weights"] == 0].any() for batch in batches)


def test_other_arrays_can_be_evaluated_on():
    data = config(validation=numbers(100)).build()
    found = [batch["y"][batch["row_weights"] == 1] for batch in data.validation()]
    assert sorted(np.concatenate(found)) == list(range(100, 100 + N))
    assert data.batch_spec().arrays["y"].num_values == 100 + N
    with pytest.raises(ConfigError, match="validation and validation_fraction are both set"):
        config(validation=numbers(), validation_fraction=0.1).build()
    with pytest.raises(DataError, match="the arrays to evaluate on are"):
        config(validation={"x": numbers()["x"]}).build().batch_spec()


def test_a_saved_position_goes_on_with_the_same_rows_and_no_other_arrays():
    batches = config().build().train()
    rows_of(batches, 7)
    saved, wanted = batches.get_state(), rows_of(batches, 5)
    resumed = from_json(to_json(config())).build().train()
    resumed.set_state(saved)
    assert np.array_equal(rows_of(resumed, 5), wanted)
    changed = numbers()
    changed["x"][3, 1] += 1
    with pytest.raises(DataError, match="belongs to other training data: arrays was"):
        ArrayData.Config(train=changed, batch_size=4).build().train().set_state(saved)


def test_a_batch_is_what_its_spec_says():
    arrays = {"image": np.zeros((N, 2, 3), np.uint8), "y": np.arange(N), "on": np.ones(N, bool)}
    data = ArrayData.Config(train=arrays, batch_size=4).build()
    spec, batch = data.batch_spec(), next(data.train())
    assert {n: (a.shape, str(a.dtype)) for n, a in batch.items()} == {
        n: (one.shape, one.dtype) for n, one in spec.leaves()
    }
    assert str(batch["y"].dtype) == "int32"
    assert (spec.unit, spec.num_units, spec.arrays["y"].num_values) == ("row", 4, N)
    assert "21 rows of image 2x3 uint8, on scalar bool, y scalar int32" in data.summary()


def test_weights_of_rows_are_kept_but_for_padding():
    arrays = {**numbers(), "row_weights": np.arange(N) / 2}
    data = ArrayData.Config(train=arrays, batch_size=4, validation_fraction=0.3).build()
    batch = next(data.train())
    assert np.array_equal(batch["row_weights"], batch["y"].astype(np.float32) / 2)
    assert [batch["row_weights"][-1] for batch in data.validation()][-1] == 0


@pytest.mark.parametrize("kind", ["npz", "folder"])
def test_files_are_read_as_arrays_in_memory_are(tmp_path, kind):
    arrays = {name: np.float32(array) for name, array in numbers().items()}
    path = tmp_path / ("a.npz" if kind == "npz" else "a")
    if kind == "npz":
        np.savez(path, **arrays)
    else:
        path.mkdir()
        for name, array in arrays.items():
            np.save(path / f"{name}.npy", array)
    data = ArrayData.Config(train=str(path), batch_size=4).build()
    stored = ArrayData.Config(train=arrays, batch_size=4).build()
    assert data.train().identity == stored.train().identity
    assert np.array_equal(rows_of(data.train(), 9), rows_of(stored.train(), 9))


BAD = {
    "lengths": ({"x": np.zeros(3), "y": np.zeros(2)}, "the numbers of rows are x: 3, y: 2"),
    "none": ({}, "none, as there are no arrays"),
    "empty": ({"x": np.zeros(0)}, "the numbers of rows are x: 0"),
    "scalar": ({"x": np.float32(1)}, r"'x' is an array of float32 \[\]"),
    "text": ({"x": np.array(["a"])}, "'x' is an array of <U1"),
    "objects": ({"x": np.array([{}])}, "'x' is an array of object"),
    "complex": ({"x": np.ones(2, complex)}, "'x' is an array of complex128"),
    "name": ({"../x": np.ones(2)}, r"'../x' is an array of float64 \[2\]"),
    "large": ({"x": np.array([0, 2**40])}, "x has values from 0 to 1099511627776"),
    "weights": ({"row_weights": np.array([1.0, -1.0])}, "row_weights has shape .* below 0"),
}


@pytest.mark.parametrize(("arrays", "message"), BAD.values(), ids=BAD)
def test_arrays_that_no_batch_can_be_made_of_are_refused(arrays, message):
    with pytest.raises(DataError, match=message) as error:
        ArrayData.Config(train=arrays, batch_size=1)
    assert error.value.where
    assert error.value.hint


def test_arrays_that_are_gone_or_damaged_are_named(tmp_path, cache):
    cfg = config()
    (folder,) = cache.iterdir()
    np.save(folder / "y.npy", np.arange(N, dtype=np.int32)[::-1])
    with pytest.raises(DataError, match="are damaged: their digest is") as error:
        cfg.build().batch_spec()
    assert "remove the folder, and run the script that has the arrays" in error.value.hint
    for place in (tmp_path / "none.npz", "digest:00"):
        with pytest.raises(DataError, match="cannot be read: No such file"):
            evolve(cfg, train=str(place)).build().batch_spec()
    (tmp_path / "bad.npz").write_text("no zip")
    with pytest.raises(DataError, match=r"bad.npz cannot be read"):
        evolve(cfg, train=str(tmp_path / "bad.npz")).build().batch_spec()
