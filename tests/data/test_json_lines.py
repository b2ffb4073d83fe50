"""JSON lines: one document a line, and errors that name the file and the line."""

import gzip
import json
import tracemalloc

import pytest
import zstandard

from axcore.data import ChatFiles, Document, HuggingFaceDataset, JsonLines
from axcore.errors import ConfigError, DataError


def read(folder, **settings):
    return list(JsonLines.Config(folder=str(folder), **settings).build().documents())


def lines(*records):
    return b"".join(
        (r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in records
    )


def test_every_line_is_a_document_named_by_file_and_line(tmp_path):
    (tmp_path / "b.jsonl").write_bytes(lines({"text": "three"}))
    (tmp_path / "a.jsonl").write_bytes(
        lines({"text": "one\n"}, b"", {"id": 7, "text": "zwö \u2028 \U0001f600"})
    )
    assert read(tmp_path) == [
        Document("a.jsonl:1", "one\n"),
        Document("a.jsonl:3", "zwö \u2028 \U0001f600"),
        Document("b.jsonl:1", "three"),
    ]


def test_the_last_line_needs_no_line_end(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines({"text": "one"}, {"text": "two"})[:-1])
    assert [document.text for document in read(tmp_path)] == ["one", "two"]


def test_the_field_is_configurable(tmp_path):
    (tmp_path / "a.json").write_bytes(lines({"text": "no", "body": "yes"}))
    assert read(tmp_path, glob="*.json", field="body") == [Document("a.json:1", "yes")]


BAD_LINES = {
    b'{"text": "cut sho': "is not JSON: Unterminated string starting at column 10",
    b'{"text": "caf\xe9"}': r"is not UTF-8: byte 0xe9 at offset 27 \(invalid continuation byte\)",
    b'["text"]': "contains a list, not an object",
    b"null": "contains null, not an object",
    b'{"body": "x", "id": 1}': "has no field 'text'; it has 'body', 'id'",
    b"{}": "has no field 'text'; it has nothing",
    b'{"text": 3}': "field 'text' contains the int 3, not a string",
    b'{"text": null}': "field 'text' contains null, not a string",
    b'{"text": "\\ud800"}': "field 'text' contains half of a surrogate pair",
    b"[" * 100_000: "is not JSON that can be read",
}


@pytest.mark.parametrize("bad", BAD_LINES, ids=range(len(BAD_LINES)))
def test_a_bad_line_is_an_error_with_file_and_line(tmp_path, bad):
    (tmp_path / "a.jsonl").write_bytes(lines({"text": "a"}, bad, {"text": "b"}))
    with pytest.raises(DataError, match=rf"a\.jsonl, line 2 {BAD_LINES[bad]}") as e:
        read(tmp_path)
    assert e.value.where == f"{tmp_path / 'a.jsonl'}:2"
    assert e.value.hint


@pytest.mark.parametrize("bad", BAD_LINES, ids=range(len(BAD_LINES)))
def test_skipping_lines_warns_and_keeps_the_names_of_the_others(tmp_path, bad):
    (tmp_path / "a.jsonl").write_bytes(lines({"text": "a"}, bad, {"text": "b"}))
    with pytest.warns(UserWarning, match=r"1 of 3 lines left out\. The first: a\.jsonl, line 2"):
        documents = read(tmp_path, on_bad="skip")
    assert documents == [Document("a.jsonl:1", "a"), Document("a.jsonl:3", "b")]


def test_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"No file matches '\*\*/\*\.jsonl'"):
        read(tmp_path)


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "gone.jsonl")
    with pytest.raises(DataError, match=r"a\.jsonl cannot be read: No such file"):
        read(tmp_path, on_bad="skip")


def zstd(data):
    return zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".zst", zstd)])
def test_compressed_files_hold_the_lines_of_plain_ones(tmp_path, suffix, compress):
    plain = lines(*({"text": f"line {i} " + "é" * i} for i in range(300)))
    (tmp_path / "a.jsonl").write_bytes(plain)
    # Tools that append make files of several frames.
    cut = plain.index(b"\n", len(plain) // 2) + 1
    (tmp_path / f"a.jsonl{suffix}").write_bytes(compress(plain[:cut]) + compress(plain[cut:]))
    expected = [document.text for document in read(tmp_path)]
    assert [d.text for d in read(tmp_path, glob=f"*{suffix}")] == expected


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".zst", zstd)])
@pytest.mark.parametrize("damage", ["cut", "other"])
def test_a_compressed_file_that_is_damaged_is_an_error_with_its_name(
    tmp_path, suffix, compress, damage
):
    data = compress(lines(*({"text": str(i)} for i in range(2000))))
    damaged = data[: len(data) // 2] if damage == "cut" else b"no such format"
    (tmp_path / f"a.jsonl{suffix}").write_bytes(damaged)
    with pytest.raises(DataError, match=rf"a\.jsonl{suffix} cannot be decompressed|is not JSON"):
        read(tmp_path, glob=f"*{suffix}")


def test_a_line_that_is_too_long_is_bad_and_the_next_is_read(tmp_path):
    long = {"text": "x" * (3 << 20)}
    (tmp_path / "a.jsonl").write_bytes(lines({"text": "a"}, long, {"text": "b"}, long))
    with pytest.raises(DataError, match=r"a\.jsonl, line 2 is longer than 1 MiB"):
        read(tmp_path, max_line_mib=1)
    with pytest.warns(UserWarning, match=r"2 of 4 lines left out"):
        documents = read(tmp_path, max_line_mib=1, on_bad="skip")
    assert documents == [Document("a.jsonl:1", "a"), Document("a.jsonl:3", "b")]


def test_a_line_of_hundreds_of_megabytes_is_never_in_memory(tmp_path):
    with (tmp_path / "a.jsonl").open("wb") as file:
        file.write(b'{"text": "a"}\n')
        file.truncate(200 << 20)  # a line of zeros, which takes no room on the disk
    tracemalloc.start()
    with pytest.warns(UserWarning, match="line 2 is longer than 1 MiB"):
        assert len(read(tmp_path, max_line_mib=1, on_bad="skip")) == 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_a_share_of_the_lines_may_be_bad_and_no_more(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines(*[{"text": "a"}] * 8, b"{", b"}"))
    with pytest.warns(UserWarning, match=r"2 of 10 lines left out"):
        assert len(read(tmp_path, on_bad="skip", max_bad_fraction=0.2)) == 8
    with pytest.raises(DataError, match=r"2 of 10 lines are bad, and max_bad_fraction is 0\.1"):
        read(tmp_path, on_bad="skip", max_bad_fraction=0.1)


@pytest.mark.parametrize("kind", [JsonLines, ChatFiles, HuggingFaceDataset])
def test_a_limit_of_what_is_skipped_is_refused_where_nothing_is(tmp_path, kind):
    place = {"path" if kind is ChatFiles else "folder": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"max_bad_fraction is 0\.1, and on_bad is 'error'") as e:
        kind.Config(max_bad_fraction=0.1, **place).build()
    assert "on_bad='skip'" in e.value.hint
    kind.Config(max_bad_fraction=0.1, on_bad="skip", **place).build()
