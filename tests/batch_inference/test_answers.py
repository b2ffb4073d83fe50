"""`AnswerFile`: complete lines stay, a piece of one goes, and nothing else is ever written over."""

import json
import os

import pytest

from axcore.batch_inference import AnswerFile
from axcore.errors import DataError

ORIGIN = {"prompts": "1", "config": {"seed": 0, "stop": ["a"]}}
MACHINE = {"jax": "1"}


def opened(path, origin=ORIGIN, machine=MACHINE):
    return AnswerFile(path, origin, machine)


@pytest.fixture
def path(tmp_path):
    """A file of three answers."""
    path = tmp_path / "new" / "answers.jsonl"
    with opened(path) as answers:
        for index in range(3):
            answers.add({"index": index, "text": "é" * 9})
        answers.sync()
    return path


def test_a_line_cut_anywhere_is_cut_off_and_those_before_it_stay(path):
    whole = path.read_bytes()
    begins = [0] + [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        with opened(path) as answers:
            num_lines = max(number for number, begin in enumerate(begins) if begin <= size)
            assert answers.num_lines == num_lines
        assert path.read_bytes() == whole[: begins[num_lines]]


@pytest.mark.parametrize(
    ("origin", "said"),
    [
        ({**ORIGIN, "prompts": "2"}, "prompts was '1' and is '2'"),
        ({**ORIGIN, "config": {"seed": 1, "stop": ["a"]}}, "config.seed was 0 and is 1"),
        ({**ORIGIN, "config": {"seed": 0, "stop": ["a", "b"]}}, "config.stop was"),
        ({**ORIGIN, "more": 1}, "more was 'nothing' and is 1"),
    ],
)
def test_answers_of_something_else_are_refused_by_name_and_kept(path, origin, said):
    before = path.read_bytes() + b'{"index": 3'
    path.write_bytes(before)
    with pytest.raises(DataError, match="of something else") as refused:
        opened(path, origin)
    assert said in refused.value.what
    assert path.read_bytes() == before
    assert opened(path).num_lines == 3


def test_a_file_that_is_not_of_answers_is_left_as_it_is(tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(DataError, match=r"no notes.txt.run.json"):
        opened(notes)
    assert notes.read_text() == "mine"
    assert os.listdir(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize("line", ["{", "[]", '{"index": 5}', ""])
def test_damage_before_the_last_line_is_named_and_nothing_is_cut(path, line):
    first, _, third = path.read_text().splitlines()
    damaged = f"{first}\n{line}\n{third}\n"
    path.write_text(damaged)
    with pytest.raises(DataError, match="line 2 is not the answer to prompt 1"):
        opened(path)
    assert path.read_text() == damaged


def test_one_process_at_a_time(path):
    with opened(path), pytest.raises(DataError, match="another process writes"):
        opened(path)
    assert opened(path).num_lines == 3


def test_another_system_is_a_warning(path):
    with pytest.warns(UserWarning, match="by rounding: jax was '1' and is '2'"):
        opened(path, machine={"jax": "2"})


def test_half_of_a_surrogate_pair_is_kept_as_it_came(tmp_path):
    with opened(tmp_path / "answers.jsonl") as answers:
        answers.add({"index": 0, "id": "\ud800"})
    assert json.loads((tmp_path / "answers.jsonl").read_text()) == {"index": 0, "id": "\ud800"}


def test_a_folder_or_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(DataError, match="answers cannot be written"):
            opened(tmp_path / name)
