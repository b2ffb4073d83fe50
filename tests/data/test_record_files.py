"""Record files and saved datasets: every record comes out, or is counted with its place."""

import gzip
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_files import example_of, save_dataset, tar_of, write_array_record
from stores import built

from axcore.data import (
    ArrayRecordFiles,
    ArrowFiles,
    Data,
    Document,
    FieldFilter,
    HuggingFaceDataset,
    ImagePixels,
    TarFiles,
)
from axcore.data.sources import arrow_files as dataset_module
from axcore.data.sources.array_record_files import read_example
from axcore.errors import ConfigError, DataError

TEXTS = ["one", "zwei é", "", "four\n"] * 3


def texts(source):
    return [one.text for one in source.build().documents()]


def bad_of(source, tmp_path):
    cfg = Data.Config(source=source, seq_len=8, batch_size=1, validation_fraction=0.0)
    store = built(cfg, tmp_path / "store")
    lines = (store.folder / "quarantine.jsonl").read_text().splitlines()
    return [(one["file"], one["offset"], one["reason"]) for one in map(json.loads, lines)]


RECORDS = {
    "text": str.encode,
    "json": lambda text: json.dumps({"text": text}).encode(),
    "example": lambda text: example_of({"text": text.encode(), "n": 3}),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_array_records_are_documents(tmp_path, kind):
    write_array_record(tmp_path / "a.array_record", map(RECORDS[kind], TEXTS))
    source = ArrayRecordFiles.Config(folder=str(tmp_path), record=kind)
    assert texts(source) == TEXTS
    assert [one.name for one in source.build().documents()][-1] == "a.array_record:11"


@pytest.mark.parametrize(
    ("kind", "raw", "reason"),
    [
        ("text", b"\xff", "text is not UTF-8 at byte 0"),
        ("json", b"[1]", "it is not a JSON object"),
        ("json", b'{"body": 1}', "it has no 'text'"),
        ("json", b'{"text": 1}', "text contains 1, not text"),
        ("json", b'{"text": "\\ud800"}', "surrogates not allowed"),
        ("example", b"\xff\xff", "it is cut short"),
        ("example", example_of({"n": 3}), "it has no 'text'"),
        ("example", example_of({"text": 3}), "text contains [3], not text"),
    ],
)
def test_a_bad_array_record_is_quarantined_with_its_place(tmp_path, kind, raw, reason):
    records = [RECORDS[kind]("good"), raw, RECORDS[kind]("good")]
    write_array_record(tmp_path / "a.array_record", records)
    source = ArrayRecordFiles.Config(folder=str(tmp_path), record=kind)
    with pytest.raises(DataError, match=r"Record 1 of a\.array_record is bad"):
        texts(source)
    skips = ArrayRecordFiles.Config(folder=str(tmp_path), record=kind, on_bad="skip")
    ((file, offset, said),) = bad_of(skips, tmp_path)
    assert (file, offset) == ("a.array_record", 1)
    assert reason in said


def test_an_array_record_file_cut_short_is_named(tmp_path):
    path = tmp_path / "a.array_record"
    write_array_record(path, [b"x" * 100] * 50)
    path.write_bytes(path.read_bytes()[:-70_000])
    with pytest.raises(DataError, match=r"a\.array_record cannot be read as an ArrayRecord file"):
        texts(ArrayRecordFiles.Config(folder=str(tmp_path)))


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=9),
        st.binary(max_size=300)
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats(width=32, allow_nan=False),
        min_size=1,
    )
)
def test_an_example_is_read_as_it_was_written(features):
    found = read_example(example_of(features))
    assert found == {
        name: value if isinstance(value, bytes) else [value] for name, value in features.items()
    }


def write_tar(folder, members, name="a.tar", compress=bytes):
    (folder / name).write_bytes(compress(tar_of(members)))


@pytest.mark.parametrize(("name", "compress"), [("a.tar", bytes), ("a.tar.gz", gzip.compress)])
def test_samples_of_a_tar_are_grouped_by_key(tmp_path, name, compress):
    members = []
    for number, text in enumerate(TEXTS):
        members += [(f"x/{number}.jpg", b"..."), (f"x/{number}.txt", text.encode())]
    write_tar(tmp_path, members, name, compress)
    source = TarFiles.Config(folder=str(tmp_path), glob="*")
    assert texts(source) == TEXTS
    assert [one.name for one in source.build().documents()][1] == f"{name}:1"


def test_text_of_a_tar_may_be_in_json_or_be_tokens(tmp_path):
    out = io.BytesIO()
    np.save(out, np.array([5, 6, 7], np.uint16))
    write_tar(tmp_path, [("1.json", b'{"body": "a"}'), ("1.npy", out.getvalue())])
    assert texts(TarFiles.Config(folder=str(tmp_path), field="json", json_field="body")) == ["a"]
    (document,) = TarFiles.Config(folder=str(tmp_path), field="npy").build().documents()
    assert document.tokens.tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    ("field", "content", "reason"),
    [
        ("txt", b"\xff", "txt is not UTF-8"),
        ("json", b"{", "Expecting property name"),
        ("json", b"[]", "its json is not an object"),
        ("npy", b"x", "its npy cannot be read"),
        ("npy", b"\x93NUMPY", "its npy cannot be read"),
    ],
)
def test_a_bad_sample_is_quarantined_with_its_place(tmp_path, field, content, reason):
    good = {"txt": b"good", "json": b'{"text": "good"}'}
    good["npy"] = (out := io.BytesIO()) and (np.save(out, np.arange(9)), out.getvalue())[1]
    write_tar(tmp_path, [(f"1.{field}", good[field]), (f"2.{field}", content), ("3.jpg", b"")])
    source = TarFiles.Config(folder=str(tmp_path), field=field, on_bad="skip")
    (first, second) = bad_of(source, tmp_path)
    assert (first[0], first[1], second[1]) == ("a.tar", 1, 2)
    assert reason in first[2]
    assert f"it has no {field!r}" in second[2]


def test_two_files_of_one_name_or_one_too_large_make_a_sample_bad(tmp_path):
    members = [
        ("1.txt", b"a"),
        ("1.txt", b"b"),
        ("2.txt", b"x" * (1 << 20) + b"x"),
        ("3.txt", b"c"),
    ]
    write_tar(tmp_path, members)
    source = TarFiles.Config(folder=str(tmp_path), on_bad="skip", max_member_mib=1)
    (first, second) = bad_of(source, tmp_path)
    assert "it has two files '1.txt'" in first[2]
    assert "2.txt has 1,048,577 bytes, more than max_member_mib" in second[2]


def test_a_tar_without_its_end_loses_nothing_silently(tmp_path):
    whole = tar_of([(f"{n}.txt", b"text") for n in range(5)])
    for damaged in (whole[: 3 * 1024], whole[:1500], b"", whole + whole, whole[:1024] + b"x" * 512):
        (tmp_path / "a.tar").write_bytes(damaged)
        with pytest.raises(DataError, match=r"a\.tar cannot be read to its end as a tar"):
            texts(TarFiles.Config(folder=str(tmp_path)))


def test_images_and_captions_of_a_tar_become_tokens(tmp_path):
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (4, 4), (9, 8, 7)).save(out, "png")
    members = [("1.png", out.getvalue()), ("1.json", b'{"score": 2}')]
    members += [("2.png", b"no image"), ("2.json", b'{"score": 2}')]
    members += [("3.png", b""), ("3.json", b'{"score": 0}')]
    write_tar(tmp_path, members)
    transforms = (FieldFilter.Config(field="score", min_value=1), ImagePixels.Config(field="png"))
    source = TarFiles.Config(folder=str(tmp_path), on_bad="skip", transforms=transforms)
    cfg = Data.Config(source=source, seq_len=8, batch_size=1, validation_fraction=0.0)
    store = built(cfg, tmp_path / "store")
    assert store.splits["train"].num_documents == 1
    assert store.splits["train"].num_tokens == 2 + 3 * 32 * 32
    assert store.manifest.dropped == {"score is less than 1": 1}
    assert store.manifest.bad_records == 1


def test_a_saved_dataset_is_read_in_the_order_of_its_rows(tmp_path):
    save_dataset(tmp_path / "saved", [["a", "b"], ["c"]])
    assert texts(HuggingFaceDataset.Config(folder=str(tmp_path / "saved"))) == ["a", "b", "c"]


def test_a_split_of_saved_datasets_is_chosen(tmp_path):
    for split in ("train", "test"):
        save_dataset(tmp_path / split, [[split]])
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert texts(HuggingFaceDataset.Config(folder=str(tmp_path), split="test")) == ["test"]
    with pytest.raises(DataError, match="no split 'dev'; it has 'train', 'test'"):
        texts(HuggingFaceDataset.Config(folder=str(tmp_path), split="dev"))


def test_a_saved_dataset_with_indices_is_refused(tmp_path):
    save_dataset(tmp_path, [["a"]], _indices_data_files=[{"filename": "indices.arrow"}])
    with pytest.raises(DataError, match="rows were selected or shuffled") as refused:
        texts(HuggingFaceDataset.Config(folder=str(tmp_path)))
    assert "flatten_indices" in refused.value.hint


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_a_folder_that_is_no_dataset_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "state.json").write_text(content)
    with pytest.raises(DataError, match="contains no dataset that can be read"):
        texts(HuggingFaceDataset.Config(folder=str(tmp_path)))


def test_a_folder_or_a_name_is_needed_and_not_both():
    for fields in ({}, {"folder": "a", "dataset": "b"}):
        with pytest.raises(ConfigError, match="expected one of them"):
            texts(HuggingFaceDataset.Config(**fields))


def test_a_part_of_a_split_is_refused():
    with pytest.raises(ConfigError, match=r"split is 'train\[:1%\]'"):
        texts(HuggingFaceDataset.Config(dataset="a", split="train[:1%]"))


def test_a_name_without_the_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(DataError, match="needs datasets, which is not installed") as missing:
        texts(HuggingFaceDataset.Config(dataset="a"))
    assert missing.value.hint == 'pip install "axcore[datasets]"'


def test_a_release_that_loses_its_place_is_refused(monkeypatch):
    monkeypatch.setattr(dataset_module, "import_extra", lambda name, **_: None)
    monkeypatch.setattr(dataset_module.metadata, "version", lambda name: "5.0.1")
    with pytest.raises(DataError, match=r"datasets is 5\.0\.1: that release begins again") as old:
        texts(HuggingFaceDataset.Config(dataset="a"))
    assert "!=5.0.*" in old.value.hint


def test_a_name_is_loaded_by_the_library_where_it_is_installed(tmp_path, monkeypatch):
    pytest.importorskip("datasets", reason="needs axcore[datasets]")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "train.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    source = HuggingFaceDataset.Config(dataset=str(tmp_path / "corpus"))
    assert texts(source) == ["a", "b"]
    with pytest.raises(DataError, match="cannot be loaded"):
        texts(HuggingFaceDataset.Config(dataset=str(tmp_path / "nothing")))


def read(folder, **settings):
    return list(ArrowFiles.Config(folder=str(folder), **settings).build().documents())


def write_parquet(path, table):
    pq.write_table(table, path, row_group_size=2)


def write_arrow_file(path, table):
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def write_arrow_stream(path, table):
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


FORMATS = [
    (write_parquet, ".parquet"),
    (write_arrow_file, ".arrow"),
    (write_arrow_stream, ".arrow"),
]
arrow_texts = ["one\n", "zwö \U0001f600", "", "four", "five"]


@pytest.mark.parametrize(("write", "suffix"), FORMATS)
@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]
)
def test_every_row_is_a_document_named_by_file_and_row(tmp_path, write, suffix, kind):
    table = pa.table({"id": list(range(5)), "text": pa.array(arrow_texts).cast(kind)})
    write(tmp_path / f"a{suffix}", table)
    found = read(tmp_path, glob=f"*{suffix}")
    assert found == [Document(f"a{suffix}:{i}", text) for i, text in enumerate(arrow_texts)]


@pytest.mark.parametrize(("write", "suffix"), FORMATS)
def test_a_row_without_text_is_an_error_or_is_counted(tmp_path, write, suffix):
    write(tmp_path / f"a{suffix}", pa.table({"text": ["a", None, "b"]}))
    with pytest.raises(DataError, match=rf"a\{suffix}, row 1 contains None, not a string"):
        read(tmp_path, glob="*")
    with pytest.warns(UserWarning, match=r"1 of 3 rows left out\. The first: a"):
        documents = read(tmp_path, glob="*", on_bad="skip")
    assert [document.name for document in documents] == [f"a{suffix}:0", f"a{suffix}:2"]


def test_a_column_that_is_not_there_is_named_beside_those_that_are(tmp_path):
    write_parquet(tmp_path / "a.parquet", pa.table({"id": [1], "body": ["x"]}))
    with pytest.raises(DataError, match="no column 'text', or several; it has 'id', 'body'"):
        read(tmp_path)
    assert [document.text for document in read(tmp_path, field="body")] == ["x"]


@pytest.mark.parametrize(("write", "suffix"), FORMATS)
def test_a_file_that_is_cut_short_is_an_error_with_its_name(tmp_path, write, suffix):
    path = tmp_path / f"a{suffix}"
    write(path, pa.table({"text": [str(i) * 50 for i in range(40)]}))
    path.write_bytes(path.read_bytes()[:1500])
    with pytest.raises(DataError, match=rf"a\{suffix} cannot be read by Arrow"):
        read(tmp_path, glob="*")


def test_a_flipped_bit_never_becomes_text_where_pages_have_checksums(tmp_path):
    """Without checksums about a third of the flips are read as other text."""
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"text": [f"text {i} " * 9 for i in range(300)]}), path, write_page_checksum=True
    )
    whole, (found, num_refused) = path.read_bytes(), (read(tmp_path), 0)
    for place in range(40, len(whole) - 40, len(whole) // 40):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        try:
            assert read(tmp_path) == found
        except DataError:
            num_refused += 1
    assert num_refused > 20
