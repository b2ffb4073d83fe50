"""JSON lines: one document a line, and errors that name the file and the line."""

import json

import pytest

from axcore.data import Document, JsonLines
from axcore.errors import DataError


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
    b'["text"]': "holds a list, not an object",
    b"null": "holds null, not an object",
    b'{"body": "x", "id": 1}': "has no field 'text'; it has 'body', 'id'",
    b"{}": "has no field 'text'; it has nothing",
    b'{"text": 3}': "field 'text' holds the int 3, not a string",
    b'{"text": null}': "field 'text' holds null, not a string",
    b'{"text": "\\ud800"}': "field 'text' holds half of a surrogate pair",
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
        documents = read(tmp_path, on_bad_line="skip")
    assert documents == [Document("a.jsonl:1", "a"), Document("a.jsonl:3", "b")]


def test_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"No file matches '\*\*/\*\.jsonl'"):
        read(tmp_path)


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "gone.jsonl")
    with pytest.raises(DataError, match=r"a\.jsonl cannot be read: No such file"):
        read(tmp_path, on_bad_line="skip")
