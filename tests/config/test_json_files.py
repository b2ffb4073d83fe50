"""JSON is read by one reader, whose limits end in an error by name."""

import ast
import os
import socket
from pathlib import Path

import pytest

import axcore
from axcore.config import json_files
from axcore.config.json_files import (
    MAX_JSON_DEPTH,
    JsonDepthError,
    parse_json,
    read_json,
    read_json_file,
)
from axcore.errors import CheckpointError
from axcore.whole_files import open_regular

WITH_READERS_OF_THEIR_OWN = {
    "config/json_files.py": "it is the reader",
    "config/paths.py": "one quoted name of a path",
    "sandbox/confine.py": "it runs where axcore cannot be imported",
    "sandbox/exchange.py": "it runs where axcore cannot be imported, with limits of its own",
    "sandbox/programs.py": "it reads verdicts of its own process of checks",
    "ops/plan.py": "tables that `axcore kernels tune` writes",
    "data/chat/parsers/scanner.py": "what a model wrote itself",
}


def reads_json(file):
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in ("load", "loads", "JSONDecoder")
        and isinstance(node.value, ast.Name)
        and node.value.id == "json"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    )


def test_all_json_is_read_by_one_reader():
    root = Path(axcore.__file__).parent
    found = {str(file.relative_to(root)) for file in root.rglob("*.py") if reads_json(file)}
    assert found == set(WITH_READERS_OF_THEIR_OWN), "use axcore.config.json_files.parse_json"


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
@pytest.mark.parametrize("more", [1, 100_000])
def test_deep_nesting_is_refused_by_name(opening, more):
    ends = {"[": "]", "{": "}"}
    text = lambda n: opening * n + "1" + "".join(ends[c] for c in opening[::-1] if c in ends) * n  # noqa: E731
    levels = sum(c in ends for c in opening)
    parse_json(text(MAX_JSON_DEPTH // levels))
    with pytest.raises(JsonDepthError, match="nested deeper than 128 levels"):
        parse_json(text(MAX_JSON_DEPTH // levels + more))


def test_a_key_twice_among_many_is_found_at_once():
    """A search through all keys for each of them takes minutes here."""
    text = "{" + ",".join(f'"{i}":0' for i in [*range(100_000), *range(100_000)]) + "}"
    with pytest.raises(ValueError, match="the key '0' is twice in one mapping"):
        parse_json(text)


def test_numbers_that_json_has_not_are_read_where_they_are_allowed():
    assert parse_json("[Infinity]") == [float("inf")]
    with pytest.raises(ValueError, match="NaN is not a number of JSON"):
        parse_json("[NaN]", allow_nan=False)


def test_a_file_beyond_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(json_files, "MAX_JSON_BYTES", 1 << 20)
    (tmp_path / "a.json").write_bytes(b" " * (1 << 20) + b"1")
    with pytest.raises(ValueError, match="larger than 1 MiB"):
        read_json_file(tmp_path / "a.json")


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "linked").symlink_to("fifo")
    kinds = {"fifo": "a FIFO", "socket": "a socket", "device": "a character device"}
    for name, kind in {**kinds, "linked": "a FIFO"}.items():
        with pytest.raises(CheckpointError, match=f"cannot be read: it is {kind}, not a regular"):
            read_json(tmp_path / name, "index", error=CheckpointError)


def test_a_fifo_that_takes_a_file_s_place_after_it_was_looked_at_is_not_waited_for(
    tmp_path, monkeypatch
):
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr("axcore.whole_files.check_is_regular", lambda path: None)
    with pytest.raises(OSError, match="it is a FIFO"):
        open_regular(tmp_path / "fifo")
