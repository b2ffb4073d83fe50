"""Text files: a document each, in the same order everywhere; compressed ones read the same."""

import gzip
import json
import os
import socket
import sysconfig
from pathlib import Path

import pytest
import zstandard
from record_files import tar_of

from axcore.config import evolve
from axcore.data import (
    ArrayRecordFiles,
    ArrowFiles,
    ChatFiles,
    Data,
    Document,
    JsonLines,
    StandardLibrary,
    TarFiles,
    TextFiles,
    TokenFiles,
)
from axcore.data.sources.text_files import library_files
from axcore.errors import DataError


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))


def read(root, **settings):
    source = TextFiles.Config(folder=str(root), **settings).build()
    return list(source.documents())


def test_documents_are_the_matching_files_by_name(tmp_path):
    write(tmp_path, {"b.txt": "second", "a/z.txt": "first", "c.md": "no", "ä.txt": "é\r\nü\n"})
    assert read(tmp_path) == [
        Document("a/z.txt", "first"),
        Document("b.txt", "second"),
        Document("ä.txt", "é\r\nü\n"),
    ]


def test_the_order_does_not_depend_on_how_files_came_to_be(tmp_path):
    names = [f"{i % 3}/{i:02}.txt" for i in range(30)]
    write(tmp_path / "one", {name: name for name in names})
    write(tmp_path / "two", {name: name for name in reversed(names)})
    assert read(tmp_path / "one") == read(tmp_path / "two")


def test_a_glob_chooses_files(tmp_path):
    write(tmp_path, {"a.py": "x", "deep/b.py": "y", "c.txt": "z"})
    assert [d.name for d in read(tmp_path, glob="*.py")] == ["a.py"]
    assert [d.name for d in read(tmp_path, glob="**/*.py")] == ["a.py", "deep/b.py"]


def test_a_folder_may_be_relative_and_begin_with_a_tilde(tmp_path, monkeypatch):
    write(tmp_path, {"corpus/a.txt": "x"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read("corpus") == read("~/corpus") == [Document("a.txt", "x")]


def test_a_missing_folder_is_named_with_the_place_looked_at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="The data folder 'corpus' does not exist") as e:
        read("corpus")
    assert str(tmp_path / "corpus") in e.value.what


def test_a_file_given_as_the_folder_is_explained(tmp_path):
    write(tmp_path, {"a.txt": "x"})
    with pytest.raises(DataError, match="is a file, not a folder") as e:
        read(tmp_path / "a.txt")
    assert e.value.hint == f"folder={str(tmp_path)!r}, glob='a.txt'"


def test_an_empty_folder_says_that_it_is_empty(tmp_path):
    with pytest.raises(DataError, match=r"No file matches '\*\*/\*\.txt' .* it contains no files"):
        read(tmp_path)


def test_a_glob_that_matches_nothing_says_what_is_there(tmp_path):
    write(tmp_path, {"a.md": "", "b.md": "", "c.rst": ""})
    with pytest.raises(
        DataError, match=r"No file matches .*; the files it contains: 2 \.md, 1 \.rst"
    ):
        read(tmp_path)


@pytest.mark.parametrize("glob", ["/etc/*", ""])
def test_a_glob_that_is_not_relative_to_the_folder_is_refused(tmp_path, glob):
    write(tmp_path, {"a.txt": ""})
    with pytest.raises(DataError, match=f"The glob '{glob.replace('*', '[*]')}' cannot be used"):
        read(tmp_path, glob=glob)


def test_a_file_that_is_not_utf8_is_an_error_with_file_and_byte(tmp_path):
    write(tmp_path, {"a.txt": "fine", "b.txt": "caf\xe9 au lait".encode("latin-1")})
    with pytest.raises(DataError, match=r"b\.txt is not UTF-8: byte 0xe9 at offset 3") as e:
        read(tmp_path)
    assert e.value.where == f"{tmp_path / 'b.txt'}, byte 3"
    assert "on_bad='skip'" in e.value.hint


def test_a_file_cut_short_inside_a_character_is_an_error(tmp_path):
    write(tmp_path, {"a.txt": "grün"[:3].encode()[:-1]})
    with pytest.raises(DataError, match=r"a\.txt is not UTF-8: byte 0xc3 at offset 2 \(unexpected"):
        read(tmp_path)


def test_skipping_files_warns_how_many_and_names_the_first(tmp_path):
    write(tmp_path, {"a.txt": "fine", "b.txt": b"\xff", "c.txt": b"\xfe", "d.txt": "good"})
    with pytest.warns(UserWarning, match=r"2 of 4 files left out\. The first: b\.txt is not UTF-8"):
        documents = read(tmp_path, on_bad="skip")
    assert [document.text for document in documents] == ["fine", "good"]


def test_a_dangling_link_is_an_error_and_not_left_out(tmp_path):
    write(tmp_path, {"a.txt": "fine"})
    os.symlink(tmp_path / "gone.txt", tmp_path / "b.txt")
    with pytest.raises(DataError, match=r"b\.txt cannot be read: No such file"):
        read(tmp_path)


def special_files(root):
    """Makes a FIFO, a socket, and links to a device and to the FIFO."""
    os.mkfifo(root / "fifo.txt")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(root / "socket.txt"))
    (root / "zero.txt").symlink_to("/dev/zero")
    (root / "linked.txt").symlink_to("fifo.txt")
    return {
        "fifo.txt": "a FIFO",
        "socket.txt": "a socket",
        "zero.txt": "a character device",
        "linked.txt": "a FIFO",
    }


def test_a_file_that_reading_never_comes_back_from_is_refused_by_name(tmp_path):
    for name, kind in special_files(tmp_path).items():
        with pytest.raises(DataError, match=f"{name} is {kind}, not a regular file"):
            read(tmp_path, glob=name)
        with pytest.raises(DataError, match=f"{name} is {kind}, not a regular file"):
            list(JsonLines.Config(folder=str(tmp_path), glob=name).build().documents())


FETCHED_LATER = {
    "text": TextFiles.Config(folder="."),
    "JSON": JsonLines.Config(folder="."),
    "tar": TarFiles.Config(folder="."),
    "tokens": TokenFiles.Config(folder=".", dtype="uint16"),
    "Parquet": ArrowFiles.Config(folder="."),
    "ArrayRecord": ArrayRecordFiles.Config(folder="."),
}


@pytest.mark.parametrize("kind", FETCHED_LATER)
def test_a_file_that_git_lfs_has_not_fetched_is_refused_as_that(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 13\n"
    write(tmp_path, {"a.parquet": pointer})
    with pytest.raises(DataError, match=r"a\.parquet is a pointer of Git LFS") as caught:
        list(evolve(FETCHED_LATER[kind], glob="*").build().documents())
    assert "lfs pull" in caught.value.hint


def test_such_files_are_counted_where_bad_files_are_skipped(tmp_path):
    special_files(tmp_path)
    write(tmp_path, {"a.txt": "x"})
    with pytest.warns(UserWarning, match="4 of 5 files left out"):
        assert read(tmp_path, on_bad="skip") == [Document("a.txt", "x")]


MARK = "\ufeff".encode()
TEXTS = ["zwö\n", "three \u2028 words", " \ufeff inside"]
LINES = b"".join(json.dumps({"text": text}).encode() + b"\r\n" for text in TEXTS)
WRAPPERS = {
    "a": lambda data: data,
    "b.mark": lambda data: MARK + data,
    "c.gz": gzip.compress,
    "d.GZ": lambda data: gzip.compress(MARK + data),
    "e.zst": zstandard.ZstdCompressor().compress,
    "f.Zst": lambda data: zstandard.ZstdCompressor().compress(MARK + data),
    "g.gzip_without_its_suffix": gzip.compress,
    "h.zstd_without_its_suffix": zstandard.ZstdCompressor().compress,
}
wrapped = pytest.mark.parametrize(("suffix", "wrap"), WRAPPERS.items(), ids=WRAPPERS)


def write_wrapped(folder, suffix, data):
    (folder / f"x.{suffix}").write_bytes(data)
    return {"folder": str(folder), "glob": "*"}


@wrapped
def test_a_text_file_is_the_same_document(tmp_path, suffix, wrap):
    where = write_wrapped(tmp_path, suffix, wrap("zwö\r\n\ufeff".encode()))
    assert [d.text for d in TextFiles.Config(**where).build().documents()] == ["zwö\r\n\ufeff"]


@wrapped
def test_json_lines_lose_no_record(tmp_path, suffix, wrap):
    where = write_wrapped(tmp_path, suffix, wrap(LINES))
    assert [d.text for d in JsonLines.Config(**where).build().documents()] == TEXTS


def test_a_mark_before_each_line_or_alone_is_skipped(tmp_path):
    lines = MARK + b"\n" + b"".join(MARK + line + b"\n" for line in LINES.splitlines()) + MARK
    where = write_wrapped(tmp_path, "jsonl", lines)
    assert [d.text for d in JsonLines.Config(**where).build().documents()] == TEXTS


@pytest.mark.parametrize("suffix", ["a", "c.gz", "e.zst", "g.gzip_without_its_suffix"])
def test_the_text_of_a_tar_is_the_same(tmp_path, suffix):
    members = [("1.txt", "zwö".encode()), ("2.txt", MARK + b"two")]
    where = write_wrapped(tmp_path, suffix, WRAPPERS[suffix](tar_of(members)))
    assert [d.text for d in TarFiles.Config(**where).build().documents()] == ["zwö", "two"]


@wrapped
def test_a_conversation_is_the_same(tmp_path, suffix, wrap):
    line = b'{"messages": [{"role": "user", "content": "a"}]}\n'
    write_wrapped(tmp_path, suffix, wrap(line))
    source = ChatFiles.Config(path=str(tmp_path / f"x.{suffix}")).build()
    assert [list(d.fields) for d in source.documents()] == [["messages"]]


@pytest.mark.parametrize("wrap", [WRAPPERS["b.mark"], gzip.compress], ids=["mark", "gzip"])
def test_tokens_and_their_digest_are_the_same(tmp_path, wrap):
    digests = set()
    for name, data in {"plain": LINES, "wrapped": wrap(LINES)}.items():
        (tmp_path / name).mkdir()
        source = JsonLines.Config(**write_wrapped(tmp_path / name, "jsonl", data))
        cfg = Data.Config(source=source, seq_len=8, batch_size=1, validation_fraction=0.0)
        digests.add(cfg.build().train().identity["tokens"])
    assert len(digests) == 1


@pytest.mark.parametrize("wrap", [WRAPPERS["b.mark"], gzip.compress], ids=["mark", "gzip"])
def test_a_file_read_in_pieces_loses_no_record(tmp_path, wrap):
    source = JsonLines.Config(**write_wrapped(tmp_path, "jsonl", wrap(LINES * 20))).build()
    (file,) = source.files()
    spans = list(source.spans(file, file.state()[0], target=30))
    assert [d.text for span in spans for d in source.read(span)] == TEXTS * 20


def test_what_is_named_gzip_and_is_not_is_refused(tmp_path):
    where = write_wrapped(tmp_path, "GZ", LINES)
    with pytest.raises(DataError, match=r"x.GZ cannot be decompressed: Not a gzipped file"):
        list(JsonLines.Config(**where).build().documents())


def test_a_key_twice_in_a_line_is_an_error_that_names_it(tmp_path):
    where = write_wrapped(tmp_path, "jsonl", b'{"text": "a"}\n{"text": "b", "text": "c"}\n')
    with pytest.raises(DataError, match=r"line 2 is not JSON.*the key 'text' is twice"):
        list(JsonLines.Config(**where).build().documents())


def test_documents_are_the_modules_of_this_interpreter():
    documents = {d.name: d.text for d in StandardLibrary.Config().build().documents()}
    root = Path(sysconfig.get_path("stdlib"))
    for name in ("argparse.py", "json/decoder.py", "asyncio/tasks.py"):
        assert documents[name].encode() == (root / name).read_bytes()
    assert sum(map(len, documents.values())) > 5_000_000


def test_names_are_sorted_relative_paths_of_the_library_alone():
    names = [file.name for file in library_files(sysconfig.get_path("stdlib"))]
    assert names == sorted(set(names))
    folders = {folder for name in names for folder in name.split("/")[:-1]}
    assert not folders & {"site-packages", "dist-packages", "__pycache__", "test", "tests"}
    assert not any(name.startswith("/") for name in names)


def test_other_packages_tests_and_generated_files_are_left_out(tmp_path):
    for name in (
        "os.py",
        "json/__init__.py",
        "site-packages/numpy/linalg.py",
        "dist-packages/apt.py",
        "test/badly_encoded.py",
        "unittest/test/case.py",
        "_sysconfigdata__linux_x86.py",
        "json/__pycache__/old.py",
        "os.pyc",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("pass")
    assert [file.name for file in library_files(str(tmp_path))] == ["json/__init__.py", "os.py"]


def test_a_library_kept_in_an_archive_is_an_error_that_names_another_source(tmp_path):
    (tmp_path / "python311.zip").write_bytes(b"")
    with pytest.raises(DataError, match=r"not there as \.py files; looked in") as e:
        library_files(str(tmp_path))
    assert "TextFiles" in e.value.hint
