"""What tasks ask, and how they score what they are answered."""

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from known_answers import IDENTITY, QUESTIONS, KnownAnswers, listed

from axcore.cli.evaluate import evaluate
from axcore.errors import DataError
from axcore.evaluation import (
    CodeExecution,
    MultipleChoice,
    Perplexity,
    WrittenAnswer,
    evaluate_tasks,
)
from axcore.evaluation.scored_task import mean, ratio
from axcore.evaluation.tasks import pass_at, word_f1
from axcore.sandbox import MECHANISMS, ProgramLimits, programs, why_not


def result(cfg, model, folder, **options):
    return evaluate_tasks({"t": cfg}, model, IDENTITY, folder, **options)["t"]


def test_the_likeliest_choice_counts_and_normalised_scores_divide_by_its_size(tmp_path):
    liked = {" xx": -3.0, " y": -2.0, " x": -1.0, " yyy": -2.9}
    found = result(
        MultipleChoice.Config(samples=listed(*QUESTIONS)),
        KnownAnswers(logprob=liked.__getitem__),
        tmp_path,
    )
    values = {name: one.value for name, one in found.metrics.items()}
    # of bytes: -1.5 against -2.0, and -1.0 against -0.97; of tokens, the space among them:
    # -1.0 against -1.0, the first of equals, and -0.5 against -0.725
    assert values == {
        "accuracy": 0.5,
        "accuracy_per_byte": 0.5,
        "accuracy_per_character": 0.5,
        "accuracy_per_token": 1.0,
    }
    assert found.metrics["accuracy"].standard_error == pytest.approx(0.5)


def test_solved_examples_precede_a_question_and_are_never_the_question_itself(tmp_path):
    model = KnownAnswers()
    cfg = MultipleChoice.Config(samples=listed(*QUESTIONS), num_shots=1, description="Choose.\n")
    result(cfg, model, tmp_path)
    assert [one.context for one in model.asked[::2]] == ["Choose.\nb x\n\na", "Choose.\na xx\n\nb"]


def test_perplexities_are_of_totals_and_bits_per_byte_of_each_source(tmp_path):
    rows = ({"text": "ab cd", "from": "one"}, {"text": "é", "from": "two"})
    cfg = Perplexity.Config(samples=listed(*rows), source="from")
    found = result(cfg, KnownAnswers(logprob=lambda text: -2.0 * len(text)), tmp_path).metrics
    assert found["token_perplexity"].value == pytest.approx(math.exp(12 / 6))
    assert found["word_perplexity"].value == pytest.approx(math.exp(12 / 3))
    assert found["bits_per_byte"].value == pytest.approx(12 / 7 / math.log(2))
    assert found["bits_per_byte/two"].value == pytest.approx(1 / math.log(2))


def test_written_answers_are_extracted_and_compared(tmp_path):
    rows = tuple({"prompt": text, "answer": "1,200"} for text in "abc")
    cfg = WrittenAnswer.Config(
        samples=listed(*rows), pattern=r"-?[\d,]+", takes_last=True, ignored=(",",)
    )
    model = KnownAnswers(texts={"a": " 3 and 1200", "b": " 1200, no 7", "c": " none"})
    found = result(cfg, model, tmp_path)
    assert found.metrics["exact_match"].value == pytest.approx(1 / 3)


def test_f1_counts_shared_words_without_case_punctuation_and_articles():
    assert word_f1("The cat sat.", "a cat") == pytest.approx(2 / 3)
    assert word_f1("dog", "cat") == 0
    assert word_f1("", "") == 1


def test_standard_errors_are_those_that_resampling_finds():
    draws = np.random.default_rng(0)
    below = draws.uniform(1, 5, 400)
    above = below * draws.uniform(0.5, 1.5, 400)
    picks = draws.integers(0, 400, (2000, 400))
    ratios = above[picks].sum(1) / below[picks].sum(1)
    assert ratio(above, below).standard_error == pytest.approx(ratios.std(), rel=0.1)
    assert mean(above).standard_error == pytest.approx(above[picks].mean(1).std(), rel=0.1)


def test_malformed_samples_are_set_aside_by_name_and_the_others_count(tmp_path):
    rows = (*QUESTIONS, "it is not valid JSON", {"prompt": "c", "choices": ["x", "y"], "answer": 2})
    cfg = MultipleChoice.Config(samples=listed(*rows))
    with pytest.warns(
        UserWarning, match=r"t: 2 samples do not count.*rows:2: it is not valid JSON"
    ):
        found = result(cfg, KnownAnswers(), tmp_path)
    assert (found.num_samples, found.num_bad) == (2, 2)
    kept = (tmp_path / "t.bad.jsonl").read_text().splitlines()
    assert "rows:2" in kept[0]
    assert "'answer' is 2; expected one of the choices, or a number from 0 to 1" in kept[1]


pytestmark = pytest.mark.skipif(all(map(why_not, MECHANISMS)), reason="no sandbox works here")

LIMITS = ProgramLimits(seconds=20, memory_mib=256, file_mib=1)


PROMPT = """def double(x):
    return 2 * x
def f(x):
    \'\'\'Adds numbers.\'\'\'
"""
ANSWERS = {
    "right": "    return x + x",
    "wrong": "    return x + 1",
    "replaces a function of its checks": "    return 1\ndef double(x):\n    return 1",
    "ends at once": "    return 1\nimport os\nos._exit(0)",
}


def test_programs_are_counted_by_whether_their_tests_pass(tmp_path):
    test = "def check(candidate):\n    assert candidate(2) == f(2) == double(2)"
    prompts = {f"# {name}\n{PROMPT}": answer for name, answer in ANSWERS.items()}
    rows = [{"prompt": one, "test": test, "entry_point": "f"} for one in prompts]
    cfg = CodeExecution.Config(samples=listed(*rows), limits=LIMITS)
    found = evaluate_tasks({"t": cfg}, KnownAnswers(texts=prompts), IDENTITY, tmp_path)["t"]
    assert found.metrics["pass@1"].value == 1 / len(ANSWERS)


def test_checks_that_need_the_answer_are_refused():
    row = {"prompt": "def f", "test": "assert f(1)", "entry_point": "f"}
    task = CodeExecution.Config(samples=listed(row)).build()
    with pytest.raises(DataError, match="checks are not Python without the answer"):
        task.questions(next(iter(task.samples())), "")


def test_one_of_several_passes_as_often_as_draws_say():
    assert pass_at(1, 4, 1) == pytest.approx(1 / 4)
    assert pass_at(2, 4, 1) == pytest.approx(1 / 2)
    assert pass_at(4, 4, 1) == 1
    assert pass_at(2, 4, 0) == 0


def test_the_flag_lets_code_run_where_nothing_confines_it(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "why_not", lambda mechanism: "the kernel has none")
    file = tmp_path / "HumanEval.jsonl"
    row = {"prompt": "def f():\n    'One.'\n", "test": "assert f()", "entry_point": "f"}
    file.write_text(json.dumps(row))
    asked = (str(tmp_path / "no-model"), "--tasks", f"humaneval:{file}")
    refused = CliRunner().invoke(evaluate, asked).exception
    assert refused.where == "allow_unsandboxed_code"
    later = CliRunner().invoke(evaluate, (*asked, "--allow-unsandboxed-code")).exception
    assert "no-model" in str(later)
