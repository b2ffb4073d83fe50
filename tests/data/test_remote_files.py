"""Remote files are read as local ones are, whatever servers and connections do on the way."""

import json
import shutil
from itertools import islice

import numpy as np
import pytest
from file_server import fail_first, file_server
from object_server import ask, environment, object_server
from stores import built
from token_files import write_megatron

from axcore.config import evolve, update_config
from axcore.data import JsonLines, MegatronFiles, TextFiles
from axcore.data.cache import local_copies
from axcore.data.sources import remote
from axcore.data.store.plan import PLAN
from axcore.errors import DataError


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("AXCORE_DATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "FIRST_WAIT_S", 0.001)
    return tmp_path / "cache"


@pytest.fixture
def server(lines):
    """A server of the two files of JSON lines."""
    with file_server(lines) as server:
        yield server


def names_and_texts(source):
    return [(one.name, one.text) for one in source.documents()]


def read(folder, **fields):
    return names_and_texts(JsonLines.Config(folder=str(folder), **fields).build())


def cuts_into_pieces(monkeypatch):
    monkeypatch.setattr(remote, "_PIECE", 700)


@pytest.mark.parametrize("glob", ["**/*.jsonl", "*.jsonl", "[ab].jsonl"])
def test_files_of_a_web_server_are_those_of_its_folder(server, lines, glob):
    assert read(server.url, glob=glob) == read(lines, glob=glob)


def test_one_file_is_named_without_asking_for_a_list(server, lines):
    assert read(server.url, glob="b.jsonl") == read(lines, glob="b.jsonl")
    assert {path for _, path in server.asked} == {"/b.jsonl"}


def test_folders_below_a_url_are_searched(server, lines):
    (lines / "deep").mkdir()
    shutil.copy(lines / "a.jsonl", lines / "deep" / "c d.jsonl")
    assert read(server.url) == read(lines)


@pytest.mark.parametrize("kind", ["busy", "cut", "truncated"])
def test_what_passes_is_tried_again_and_said(server, lines, monkeypatch, capsys, kind):
    cuts_into_pieces(monkeypatch)
    left = fail_first(server, kind, 4)
    assert read(server.url, glob="a.jsonl") == read(lines, glob="a.jsonl")
    assert left == [0]
    said = capsys.readouterr().err
    assert said.count("trying again in") == 4
    assert "trying again in 0.008 s (4 of 5 tries failed)" in said


def test_what_does_not_pass_ends_after_bounded_tries(server):
    left = fail_first(server, "busy", 10**9)
    with pytest.raises(DataError, match=r"a\.jsonl cannot be read after 5 tries: 503"):
        read(server.url, glob="a.jsonl")
    assert 10**9 - left[0] == 5


def test_what_is_refused_is_not_asked_again(server):
    left = fail_first(server, "refused", 10**9)
    with pytest.raises(DataError, match=r"a\.jsonl cannot be read: 403"):
        read(server.url, glob="a.jsonl")
    assert 10**9 - left[0] == 1


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(DataError, match=r"http://127\.0\.0\.1:1/a\.txt cannot be read after 5"):
        names_and_texts(TextFiles.Config(folder="http://127.0.0.1:1", glob="a.txt").build())


def test_a_server_without_ranges_is_read_whole(server, lines, monkeypatch):
    cuts_into_pieces(monkeypatch)
    fail_first(server, "no ranges", 10**9)
    assert read(server.url) == read(lines)


def test_nothing_that_matches_is_an_error(server):
    for glob in ("*.txt", "c.jsonl"):
        with pytest.raises(DataError, match="No file matches"):
            read(server.url, glob=glob)


def test_a_protocol_that_nobody_knows_is_an_error():
    with pytest.raises(DataError, match="nosuch://x cannot be read: Protocol not known"):
        read("nosuch://x")


def test_a_missing_driver_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    with pytest.raises(DataError, match="needs a driver that is not installed") as refused:
        read("gs://bucket/corpus")
    assert refused.value.hint == 'pip install "axcore[object-stores]"'


def test_a_copy_is_read_again_without_a_download(server):
    first = read(server.url)
    before = len([1 for method, path in server.asked if method == "GET" and "jsonl" in path])
    assert read(server.url) == first
    after = len([1 for method, path in server.asked if method == "GET" and "jsonl" in path])
    assert before == after == 2


def test_a_file_that_changed_since_is_fetched_again(server, lines):
    read(server.url)
    (lines / "a.jsonl").write_text('{"text": "new"}')
    assert read(server.url, glob="a.jsonl") == [("a.jsonl:1", "new")]


def test_a_file_that_changes_while_it_is_read_is_noticed(server, lines, monkeypatch):
    cuts_into_pieces(monkeypatch)
    content = (lines / "a.jsonl").read_bytes()
    gets = []

    def rewritten():
        gets.append(1)
        if len(gets) == 2:
            (lines / "a.jsonl").write_bytes(content.swapcase().replace(b"1", b"2"))

    server.fault = lambda method, path: rewritten if method == "GET" else None
    with pytest.raises(DataError, match=r"a\.jsonl changed while it was read: it had \d+ bytes"):
        read(server.url, glob="a.jsonl")


def test_a_file_that_shrinks_or_goes_between_plan_and_build_is_noticed(server, lines):
    source = JsonLines.Config(folder=server.url, glob="a.jsonl").build()
    (file,) = source.files()
    (lines / "a.jsonl").write_text("")
    with pytest.raises(DataError, match=r"and has 0 \(ETag"), local_copies([file]):
        pass
    (lines / "a.jsonl").unlink()
    with pytest.raises(DataError, match="is gone"), local_copies([file]):
        pass


def test_a_local_file_that_changes_during_a_build_is_noticed(cfg, lines, tmp_path):
    with pytest.raises(DataError, match="changed while they were read"):
        built(cfg, tmp_path / "store", report=lambda progress: (lines / "a.jsonl").touch())
    assert not (tmp_path / "store" / "manifest.json").exists()


def test_copies_stay_within_their_bound(server, lines, cache, monkeypatch):
    sizes = [(lines / f"{name}.jsonl").stat().st_size for name in "ab"]
    monkeypatch.setenv("AXCORE_DATA_CACHE_GIB", str((max(sizes) + 1) / 2**30))
    assert read(server.url) == read(lines)
    (kept,) = (cache / "files").glob("*/*.jsonl")
    assert kept.name == "b.jsonl"
    monkeypatch.setenv("AXCORE_DATA_CACHE_GIB", str(sizes[0] / 2 / 2**30))
    with pytest.raises(DataError, match=r"copies of remote files .* are in use") as full:
        read(server.url)
    assert "AXCORE_DATA_CACHE_GIB" in full.value.hint


def test_a_copy_in_use_is_not_removed(server, lines, monkeypatch):
    size = max((lines / f"{name}.jsonl").stat().st_size for name in "ab")
    monkeypatch.setenv("AXCORE_DATA_CACHE_GIB", str((size + 1) / 2**30))
    source = JsonLines.Config(folder=server.url).build()
    first, second = source.files()
    with local_copies([first]):
        with (
            pytest.raises(DataError, match="are in use"),
            local_copies([second]),
        ):
            pass
        assert first.path.exists()
    with local_copies([second]):
        assert not first.path.exists()


def test_what_killed_processes_left_takes_no_room(server, lines, cache, monkeypatch):
    read(server.url, glob="a.jsonl")
    (copy,) = (cache / "files").glob("*/a.jsonl")
    (draft := copy.with_name("a.jsonl.99.tmp")).write_bytes(b"x" * 10**6)
    monkeypatch.setenv("AXCORE_DATA_CACHE_GIB", str(10**6 / 2**30))
    assert read(server.url, glob="b.jsonl") == read(lines, glob="b.jsonl")
    assert not draft.exists()


def test_a_store_of_remote_files_is_that_of_local_ones(cfg, server, tmp_path):
    local = built(cfg, tmp_path / "local")
    store = built(update_config(cfg, {"source.folder": server.url}), tmp_path / "store")
    assert store.splits["train"].digest == local.splits["train"].digest
    assert server.url in (store.folder / PLAN).read_text()


def test_errors_name_the_url_of_a_record(server, lines):
    (lines / "a.jsonl").write_text('{"text": "a"}\n{')
    with pytest.raises(DataError, match=r"a\.jsonl, line 2 is not JSON") as bad:
        read(server.url)
    assert bad.value.where == f"{server.url}/a.jsonl:2"


def test_megatron_files_come_with_their_index(tmp_path):
    folder = tmp_path / "tokens"
    folder.mkdir()
    write_megatron(folder / "a", [[1, 2, 3], [4, 5]])
    with file_server(folder) as server:
        source = MegatronFiles.Config(folder=server.url).build()
        found = [one.tokens.tolist() for one in source.documents()]
    assert found == [[1, 2, 3], [4, 5]]


@pytest.mark.slow
def test_a_bucket_is_read_as_a_folder_is(cfg, lines, monkeypatch, tmp_path):
    with object_server() as (port, bucket):
        for name, value in environment(port).items():
            monkeypatch.setenv(name, value)
        for file in lines.iterdir():
            ask(port, "PUT", f"/{bucket}/corpus/{file.name}", file.read_bytes())
        ask(port, "PUT", f"/{bucket}/corpus/deep/c.jsonl", json.dumps({"text": "c"}).encode())
        url = f"s3://{bucket}/corpus"
        assert read(url) == [*read(lines), ("deep/c.jsonl:1", "c")]
        remote_cfg = evolve(cfg, source=JsonLines.Config(folder=url, glob="*.jsonl"))
        for ours, theirs in zip(
            islice(remote_cfg.build().train(), 9), islice(cfg.build().train(), 9), strict=True
        ):
            np.testing.assert_array_equal(ours["tokens"], theirs["tokens"])
        (file,) = JsonLines.Config(folder=url, glob="deep/c.jsonl").build().files()
        ask(port, "PUT", f"/{bucket}/corpus/deep/c.jsonl", b'{"text": "d"}')
        shutil.rmtree(tmp_path / "cache")
        with (
            pytest.raises(DataError, match="changed while it was read"),
            local_copies([file]),
        ):
            pass
