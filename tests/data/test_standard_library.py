"""The standard library as a source: there on every machine, without tests or other packages."""

import sysconfig
from pathlib import Path

import pytest

from axcore.data import StandardLibrary
from axcore.data.sources.text_files import library_files
from axcore.errors import DataError


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
