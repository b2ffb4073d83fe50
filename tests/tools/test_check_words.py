"""`make lint` finds words of the list in prose, and leaves names and exceptions alone."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def check_words():
    spec = importlib.util.spec_from_file_location("check_words", ROOT / "tools" / "check_words.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def found(check_words, monkeypatch, tmp_path):
    """Returns a function from a file's name and text to what is found in it."""
    monkeypatch.setattr(check_words, "ROOT", tmp_path)
    table = {"words": [{"pattern": "stands?", "instead": "is", "but_not": ["stands? in for"]}]}
    table["names"] = [{"pattern": "Room", "instead": "Package", "files": ["*.py"]}]

    def look(name, text):
        (tmp_path / name).write_text(text)
        return list(check_words.found_in(tmp_path / name, check_words.rules(table)))

    return look


def test_a_word_is_found_with_its_line_and_what_to_write(found):
    assert found("page.md", "One.\nIt Stands there.\n") == ["page.md:2: 'Stands'; write: is"]


def test_exceptions_and_longer_words_are_left_alone(found):
    assert found("page.md", "It stands in for another. Understand: a standard.\n") == []


def test_names_of_python_are_free_and_its_texts_are_not(found):
    code = 'def stand(stands):\n    """It stands."""\n    return "a stand"  # stands\n'
    assert [line.split(":")[1] for line in found("code.py", code)] == ["2", "3", "3"]


def test_old_names_are_found_in_code_too_in_their_own_case_and_in_files_of_the_rule(found):
    code = "class Room:\n    room = 1\n    # a Room\n"
    assert [line.split(":")[1] for line in found("code.py", code)] == ["1", "3"]
    assert found("page.md", "A Room.\n") == []
