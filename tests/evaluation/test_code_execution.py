"""Programs that models write: they pass, fail, hang, or do what they may not."""

import pytest
from known_answers import IDENTITY, KnownAnswers, listed

from axcore.evaluation import CodeExecution, evaluate_tasks
from axcore.evaluation.code_execution import pass_at
from axcore.evaluation.sandbox import ProgramLimits, run_program

LIMITS = ProgramLimits(seconds=20, memory_mib=256, file_mib=1)

FORBIDDEN = {
    "socket": "import socket; socket.socket()",
    "process": "import subprocess; subprocess.run(['true'])",
    "fork": "import os; os.fork()",
    "file": "open('/tmp/axcore-escaped', 'w')",
    "memory": "bytearray(1 << 29)",
    "output": "print('x' * (3 << 20), flush=True)",
    "exit": "import os; os._exit(0)",
}


@pytest.mark.parametrize("code", FORBIDDEN.values(), ids=FORBIDDEN)
def test_what_a_program_may_not_do_fails_it(code):
    assert run_program(code, LIMITS).status == "failed"


def test_a_program_that_runs_to_its_end_passes_and_may_write_into_its_folder():
    code = "open('made', 'w').write('1')\nassert open('made').read() == '1'"
    assert run_program(code, LIMITS).status == "passed"


def test_a_program_that_hangs_is_ended():
    limits = ProgramLimits(seconds=0.5)
    assert run_program("import time\ntime.sleep(1000)", limits).status == "timeout"


def test_programs_are_counted_by_whether_their_tests_pass(tmp_path):
    test = "def check(f):\n    assert f(2) == 4"
    rows = tuple({"prompt": one, "test": test, "entry_point": "f"} for one in ("def f", "def  f"))
    texts = {"def f": "(x): return x + x", "def  f": "(x): return x + 1"}
    cfg = CodeExecution.Config(samples=listed(*rows), limits=LIMITS)
    model = KnownAnswers(texts=texts)
    found = evaluate_tasks({"t": cfg}, model, IDENTITY, tmp_path)["t"]
    assert found.metrics["pass@1"].value == 0.5


def test_one_of_several_passes_as_often_as_draws_say():
    assert pass_at(1, 4, 1) == pytest.approx(1 / 4)
    assert pass_at(2, 4, 1) == pytest.approx(1 / 2)
    assert pass_at(4, 4, 1) == 1
    assert pass_at(2, 4, 0) == 0
