"""Programs that models write, counted by whether their checks pass; tests/sandbox runs them."""

import json

import pytest
from click.testing import CliRunner
from known_answers import IDENTITY, KnownAnswers, listed

from axcore.cli.evaluate import evaluate
from axcore.errors import DataError
from axcore.evaluation import CodeExecution, evaluate_tasks
from axcore.evaluation.code_execution import pass_at
from axcore.sandbox import MECHANISMS, ProgramLimits, programs, why_not

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
