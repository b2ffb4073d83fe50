"""Text files: one document a file, the same order everywhere, and errors that name the file."""

import os
import socket

import pytest

from axcore.config import evolve
from axcore.data import (
    ArrayRecordFiles,
    ArrowFiles,
    Document,
    JsonLines,
    TarFiles,
    TextFiles,
    TokenFiles,
)
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
    with pytest.raises(DataError, match=r"No file matches '\*\*/\*\.txt' .* it holds no files"):
        read(tmp_path)


def test_a_glob_that_matches_nothing_says_what_is_there(tmp_path):
    write(tmp_path, {"a.md": "", "b.md": "", "c.rst": ""})
    with pytest.raises(DataError, match=r"No file matches .*; the files it holds: 2 \.md, 1 \.rst"):
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
