"""Evaluations that are killed, resumed, or asked of something else."""

import json

import attrs
import pytest
from known_answers import IDENTITY, QUESTIONS, KnownAnswers, listed

from axcore.config import evolve
from axcore.errors import DataError
from axcore.evaluation import MultipleChoice, SampleFile, WrittenAnswer, evaluate_tasks, find_tasks

CHOICES = MultipleChoice.Config(samples=listed(*QUESTIONS))


def run(cfg, model, folder, identity=IDENTITY, **options):
    return evaluate_tasks({"t": cfg}, model, identity, folder, **options)["t"]


def test_a_killed_evaluation_asks_only_what_was_not_answered(tmp_path):
    whole = run(CHOICES, KnownAnswers(), tmp_path / "whole")
    folder = tmp_path / "killed"
    run(evolve(CHOICES, limit=1), KnownAnswers(), folder)
    file = folder / "t.samples.jsonl"
    file.write_bytes(file.read_bytes() + b'{"index": 1, "ask')  # a line that was cut short
    model = KnownAnswers()
    found = run(CHOICES, model, folder)
    assert [one.continuation for one in model.asked] == [" x", " yyy"]
    assert (found.num_kept, found.metrics) == (1, whole.metrics)
    assert file.read_bytes() == (tmp_path / "whole/t.samples.jsonl").read_bytes()


def test_answers_of_another_model_are_not_mixed_in(tmp_path):
    run(CHOICES, KnownAnswers(), tmp_path)
    other = attrs.evolve(IDENTITY, weights="2")
    with pytest.raises(DataError, match=r"of another model: known\n.*\n.*--restart"):
        run(CHOICES, KnownAnswers(), tmp_path, other)
    assert run(CHOICES, KnownAnswers(), tmp_path, other, restarts=True).num_kept == 0


def test_answers_to_another_task_are_not_mixed_in(tmp_path):
    run(CHOICES, KnownAnswers(), tmp_path)
    with pytest.raises(DataError, match=r"to another t: its config was changed"):
        run(evolve(CHOICES, description="Choose."), KnownAnswers(), tmp_path)


def test_a_sample_that_was_changed_in_its_file_is_noticed(tmp_path):
    file = tmp_path / "rows.jsonl"
    task = tmp_path / "rows.yaml"
    task.write_text("kind: multiple_choice\nsamples: rows.jsonl\n")
    file.write_text("".join(json.dumps(one) + "\n" for one in QUESTIONS))
    cfg = find_tasks([str(task)])["rows"]
    run(cfg, KnownAnswers(), tmp_path / "out")
    file.write_text(json.dumps({**QUESTIONS[0], "prompt": "another"}) + "\n")
    with pytest.raises(DataError, match=r"sample 0 differs from the one that was answered"):
        run(cfg, KnownAnswers(), tmp_path / "out")


def test_an_answer_that_never_comes_is_left_out_and_asked_again(tmp_path):
    rows = tuple({"prompt": text, "answer": "1"} for text in "ab")
    cfg = WrittenAnswer.Config(samples=listed(*rows))
    with pytest.warns(UserWarning, match="rows:0: no answer came within 2 s"):
        found = run(cfg, KnownAnswers(texts={"a": None, "b": "1"}), tmp_path, timeout_s=2)
    assert (found.num_unanswered, found.metrics["exact_match"].value) == (1, 1.0)
    model = KnownAnswers(texts={"a": "2"})
    again = run(cfg, model, tmp_path)
    assert ([one.prompt for one in model.asked], again.num_samples) == (["a"], 2)
    assert again.metrics["exact_match"].value == 0.5


def test_a_task_without_samples_is_an_error(tmp_path):
    with pytest.raises(DataError, match="the task has no samples"):
        run(MultipleChoice.Config(samples=listed()), KnownAnswers(), tmp_path)
    with (
        pytest.raises(DataError, match=r"none of 1 samples counts; the first is rows:0: torn"),
        pytest.warns(UserWarning, match="do not count"),
    ):
        run(MultipleChoice.Config(samples=listed("torn")), KnownAnswers(), tmp_path / "bad")


def test_a_task_whose_file_is_missing_leaves_nothing_that_blocks_the_right_path(tmp_path):
    def task(path):
        return {"one": MultipleChoice.Config(samples=SampleFile.Config(path=str(path)))}

    with pytest.raises(DataError, match="there is no such file"):
        evaluate_tasks(task(tmp_path / "no.jsonl"), KnownAnswers(), IDENTITY, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    right = tmp_path / "right.jsonl"
    right.write_text(json.dumps({"prompt": "a", "choices": ["b", "c"], "answer": 0}) + "\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/one.samples.jsonl").touch()  # an earlier version left it
    found = evaluate_tasks(task(right), KnownAnswers(), IDENTITY, tmp_path / "out")
    assert found["one"].num_samples == 1
