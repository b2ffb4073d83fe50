"""Parquet and Arrow files: one document a row, and errors that name the file and the row."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from axcore.data import ArrowFiles, Document
from axcore.errors import DataError


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
texts = ["one\n", "zwö \U0001f600", "", "four", "five"]


@pytest.mark.parametrize(("write", "suffix"), FORMATS)
@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]
)
def test_every_row_is_a_document_named_by_file_and_row(tmp_path, write, suffix, kind):
    table = pa.table({"id": list(range(5)), "text": pa.array(texts).cast(kind)})
    write(tmp_path / f"a{suffix}", table)
    found = read(tmp_path, glob=f"*{suffix}")
    assert found == [Document(f"a{suffix}:{i}", text) for i, text in enumerate(texts)]


@pytest.mark.parametrize(("write", "suffix"), FORMATS)
def test_a_row_without_text_is_an_error_or_is_counted(tmp_path, write, suffix):
    write(tmp_path / f"a{suffix}", pa.table({"text": ["a", None, "b"]}))
    with pytest.raises(DataError, match=rf"a\{suffix}, row 1 holds None, not a string"):
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
