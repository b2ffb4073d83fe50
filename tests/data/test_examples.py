"""`ExampleData`: rows are functions of records, seed and number; bad records are named."""

import io
import json
import tarfile
import zlib

import numpy as np
import pytest

from axcore.config import evolve
from axcore.data import (
    ExampleData,
    Feature,
    FeatureArray,
    Label,
    SampleFiles,
    TarFiles,
    Text,
    record_store,
)
from axcore.errors import ConfigError, DataError


class Noisy(Feature):
    """The number in a file, with noise in training."""

    @property
    def fields(self):
        return ("file",)

    def arrays(self):
        return {"": FeatureArray((2,), "float32")}

    def make(self, record, rng):
        noise = 0 if rng is None else rng.random(2)
        return {"": np.full(2, float(record["file"]), np.float32) + noise}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AXCORE_DATA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "files"
    for number in range(12):
        path = root / "ab"[number % 2] / f"{number}.num"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(number))
        path.with_suffix(".txt").write_text(f"it is {number}")
    return root


@pytest.fixture
def cfg(folder):
    return ExampleData.Config(
        source=SampleFiles.Config(folder=str(folder), glob="*/*.num"),
        features={"x": Noisy.Config(), "label": Label.Config(), "text": Text.Config(length=10)},
        validation_fraction=0.25,
        batch_size=4,
    )


def first(cfg, count=8, **processes):
    batches = cfg.build().train(**processes)
    return [next(batches) for _ in range(count)]


def assert_equal(one, other):
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


def test_a_batch_has_what_its_spec_says(cfg):
    data = cfg.build()
    specs, batch = data.batch_spec().arrays, next(data.train())
    assert {name: (one.shape, one.dtype) for name, one in specs.items()} == {
        name: (one.shape, str(one.dtype)) for name, one in batch.items()
    }
    assert specs["label"].num_values == 2


def test_every_record_is_in_one_split_and_has_its_class_and_text(cfg):
    data = evolve(cfg, batch_size=1).build()
    held = [batch for batch in data.validation() if batch["row_weights"][0]]
    train, _ = data._splits
    numbers = [int(one["x"][0, 0]) for one in held]
    trained = {int(next(iter(data.train()))["x"][0, 0])} | {
        int(batch["x"][0, 0]) for batch in first(evolve(cfg, batch_size=1), len(train))
    }
    assert {*numbers} | trained == {*range(12)}
    assert not {*numbers} & trained
    for batch, number in zip(held, numbers, strict=True):
        assert batch["label"][0] == number % 2
        text = bytes(batch["text"][0][batch["text_mask"][0]].astype(np.uint8)).decode()
        assert text == f"it is {number}"


def test_rows_do_not_depend_on_processes_or_threads(cfg):
    alone = first(cfg)
    assert_equal(alone, first(evolve(cfg, num_workers=1)))
    parts = [first(cfg, process_index=n, process_count=2) for n in range(2)]
    joined = [
        {name: np.concatenate([a[name], b[name]]) for name in a}
        for a, b in zip(*parts, strict=True)
    ]
    assert_equal(alone, joined)


def test_a_run_that_resumes_continues_with_the_same_rows(cfg):
    batches = cfg.build().train()
    _ = [next(batches) for _ in range(3)]
    state = json.loads(json.dumps(batches.get_state()))
    after = [next(batches) for _ in range(4)]
    resumed = cfg.build().train()
    resumed.set_state(state)
    assert_equal(after, [next(resumed) for _ in range(4)])


def test_each_epoch_augments_otherwise_and_an_evaluation_not_at_all(cfg):
    data = evolve(cfg, shuffle=False, validation_fraction=0.0, batch_size=12).build()
    batches = data.train()
    one, two = next(batches)["x"], next(batches)["x"]
    assert np.all(np.floor(one) == np.floor(two))
    assert not np.any(one == two)
    evaluated = evolve(cfg, validation_source=cfg.source, batch_size=12).build()
    (batch,) = evaluated.validation()
    np.testing.assert_array_equal(np.sort(batch["x"][:, 0]), np.arange(12))


def test_rows_that_fill_a_batch_are_zeros_and_weigh_nothing(cfg):
    data = evolve(cfg, validation_source=cfg.source, batch_size=8).build()
    *_, last = data.validation()
    np.testing.assert_array_equal(last["row_weights"], [1, 1, 1, 1, 0, 0, 0, 0])
    assert not last["x"][4:].any()


def test_other_records_or_features_are_another_run(cfg, folder):
    state = cfg.build().train().get_state()
    (folder / "a" / "0.num").write_text("50")
    with pytest.raises(DataError, match="records was"):
        cfg.build().train().set_state(state)


def test_a_bad_record_is_named_and_may_be_skipped(cfg, folder):
    (folder / "a" / "bad.num").write_text("nothing")
    (folder / "a" / "bad.txt").write_text("x")
    with pytest.raises(DataError, match=r"a/bad\.num is bad for feature 'x'"):
        cfg.build().summary()
    skipping = evolve(cfg, source=evolve(cfg.source, on_bad="skip", max_bad_fraction=0.1))
    with pytest.warns(UserWarning, match="1 of 13 files left out"):
        assert "records: " in skipping.build().summary()


def test_a_missing_field_and_a_long_text_are_named(cfg, folder):
    (folder / "b" / "1.txt").write_text("far more than ten tokens")
    with pytest.raises(DataError, match="has 24 tokens, more than 10"):
        cfg.build().summary()
    (folder / "b" / "1.txt").unlink()
    with pytest.raises(DataError, match=r"there is no b/1\.txt"):
        cfg.build().summary()


def test_damage_of_the_store_is_found(cfg, tmp_path):
    cfg.build().summary()
    (path,) = (tmp_path / "cache").rglob("records.bin")
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="is not what was stored"):
        first(evolve(cfg, validation_fraction=0.0), 3)


def test_a_store_without_its_last_file_is_made_again(cfg, tmp_path):
    wanted = first(cfg)
    (path,) = (tmp_path / "cache").rglob("store.json")
    path.unlink()
    assert_equal(wanted, first(cfg))


def test_samples_of_a_tar_have_the_same_fields(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(4):
            for suffix, text in (("cls", f"{number % 2}"), ("txt", f"n {number}")):
                info = tarfile.TarInfo(f"{number:03}.{suffix}")
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text.encode()))
    data = ExampleData.Config(
        source=TarFiles.Config(folder=str(tmp_path)),
        features={"label": Label.Config(field="cls"), "text": Text.Config(length=4)},
        validation_fraction=0.0,
        shuffle=False,
        batch_size=4,
    ).build()
    np.testing.assert_array_equal(next(data.train())["label"], [0, 1, 0, 1])


def test_classes_are_sorted_by_number_or_name_and_checked_where_given(cfg, folder):
    label = cfg.build().features["label"]
    with pytest.raises(ConfigError, match="known only once its data are read"):
        _ = label.classes
    given = evolve(cfg, features={"label": Label.Config(classes=("a",))})
    with pytest.raises(DataError, match="its class is 'b'"):
        given.build().summary()


def test_checksums_are_those_of_the_bytes(cfg, tmp_path):
    cfg.build().summary()
    (path,) = (tmp_path / "cache").rglob("records.bin")
    index, content = np.load(path.with_name("index.npy")), path.read_bytes()
    assert [zlib.crc32(content[row[0] : row[-2]]) for row in index] == index[:, -1].tolist()
    assert record_store.RecordStore(path.parent)[0].keys() == {"file", "folder", "txt"}
