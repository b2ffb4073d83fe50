"""Answers of compiling that a search keeps: found again, as long as they hold."""

import os

import pytest

from axcore.aot import ReportCache, compile_resolved
from axcore.plugins import Hardware
from axcore.testing import small_experiment
from axcore.trainer import resolve

REQUEST = "a config and a target"
FLAGGED = {"XLA_FLAGS": "--xla_fast"}


@pytest.fixture
def kept(tmp_path):
    return ReportCache(tmp_path / "answers")


@pytest.fixture
def answered(tmp_path):
    """An answer that was made with one file of Python."""
    source = tmp_path / "source.py"
    source.write_text("one = 1")
    state = source.stat()
    return {"report": "42", "files": {str(source): [state.st_mtime_ns, state.st_size]}}


def test_what_was_kept_is_found_until_a_file_changes(tmp_path, kept, answered):
    assert kept.find(REQUEST, {}) is None
    kept.keep(REQUEST, {}, answered)
    assert kept.find(REQUEST, {}) == answered
    assert kept.find("another config", {}) is None
    (tmp_path / "source.py").write_text("one = 1 + 0")
    assert kept.find(REQUEST, {}) is None


def test_an_answer_belongs_to_the_compilers_flags(kept, answered):
    kept.keep(REQUEST, {}, answered)
    assert kept.find(REQUEST, FLAGGED) is None
    assert kept.find(REQUEST, {"HOME": os.sep}) == answered


def test_a_torn_answer_is_made_again(kept, answered):
    kept.keep(REQUEST, {}, answered)
    (path,) = kept.folder.iterdir()
    path.write_text(path.read_text()[:10])
    with pytest.warns(UserWarning, match="made again"):
        assert kept.find(REQUEST, {}) is None


@pytest.mark.slow
def test_a_step_is_compiled_once(tmp_path, kept):
    resolved = resolve(small_experiment(tmp_path / "text"), Hardware.parse("cpu-2"))
    first = compile_resolved(resolved, "small", kept=kept)
    again = compile_resolved(resolved, "small", kept=kept)
    assert again == first, "with the seconds that it took to compile"
