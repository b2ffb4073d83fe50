"""Programs and their checks: what passes, what the two can exchange, and what is refused."""

import pytest

from axcore.errors import ConfigError, ProcessError
from axcore.sandbox import (
    MECHANISMS,
    ProgramLimits,
    choose_mechanism,
    programs,
    run_program,
    why_not,
)

pytestmark = pytest.mark.skipif(all(map(why_not, MECHANISMS)), reason="no sandbox works here")

LIMITS = ProgramLimits(seconds=20, memory_mib=256, file_mib=1)


def test_checks_that_run_to_their_end_pass_a_program_and_others_do_not():
    program = "def f(x):\n    return x + 1"
    assert run_program(program, "assert f(1) == 2", LIMITS).status == "passed"
    failed = run_program(program, "assert f(1) == 3, 'one more'", LIMITS)
    assert (failed.status, "one more" in failed.reason) == ("failed", True)


def test_values_arrive_as_they_are():
    values = (
        "[None, True, 3, -(10**400), 0.1, float('inf'), 2j, 'ü\\ud800', b'\\xff', bytearray(b'a'), "
        "(1, (2,)), {1, 2}, frozenset({3}), {(1, 'a'): [2], None: {}}, range(1, 9, 2)]"
    )
    checks = f"sent = {values}\ngot = f(sent)\nassert got == sent\n"
    checks += "assert [type(one) for one in got] == [type(one) for one in sent]"
    assert run_program("def f(x):\n    return x", checks, LIMITS).reason == ""


def test_objects_stay_with_the_program_and_can_be_used():
    program = """
class Stack:
    def __init__(self):
        self.items, self.name = [], "a"
    def push(self, item, times=1):
        self.items += [item] * times
        return self
    def __len__(self):
        return len(self.items)
def count(n):
    yield from range(n)
"""
    checks = """
stack = Stack()
assert stack.push(1).push("b", times=2) is stack
assert (stack.items, len(stack), stack.name) == ([1, "b", "b"], 3, "a")
stack.name = "c"
assert stack.name == "c"
assert list(count(3)) == [0, 1, 2]
assert 1 in count(3) and not Stack()
"""
    assert run_program(program, checks, LIMITS).reason == ""


def test_an_argument_that_the_program_changes_is_changed_in_its_checks():
    program = "def f(xs, d):\n    xs.sort()\n    d['a'] = 1"
    checks = "xs, d = [2, 1], {}\nf(xs, d)\nassert (xs, d) == ([1, 2], {'a': 1})"
    assert run_program(program, checks, LIMITS).reason == ""


def test_an_exception_of_the_program_is_raised_in_its_checks():
    program = """
class Bad(ValueError): pass
class Other(Exception): pass
def f(x):
    raise Bad("no") if x else Other("neither")
"""
    checks = """
for x, cls, text in ((1, ValueError, "no"), (0, Exception, "Other: neither")):
    try:
        f(x)
    except cls as error:
        assert str(error) == text
    else:
        raise AssertionError
"""
    assert run_program(program, checks, LIMITS).reason == ""


def test_what_a_program_prints_is_kept_and_is_no_answer():
    verdict = run_program("print('hello')\ndef f(): print('[\"passed\"]')", "f()\nassert 0", LIMITS)
    assert (verdict.status, verdict.output) == ("failed", 'hello\n["passed"]\n')


def test_a_program_may_use_its_folder_and_what_a_computation_needs():
    program = """
import asyncio, dataclasses, os, tempfile
@dataclasses.dataclass
class Point: x: int
async def one(): return Point(1).x
def f():
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "a"), "w") as file:
            file.write("1" * 1000)
        os.rename(os.path.join(folder, "a"), "b")
    return asyncio.run(one()) + len(open("b").read()), __name__
"""
    assert run_program(program, "assert f() == (1001, '__main__')", LIMITS).reason == ""


def test_a_program_without_checks_is_refused():
    with pytest.raises(ConfigError, match="no checks"):
        run_program("pass", " \n", LIMITS)


def test_a_sandbox_that_does_not_start_is_no_verdict():
    with pytest.raises(ProcessError, match="the sandbox did not start"):
        run_program("pass", "pass", LIMITS, mechanism="chroot")


def test_code_is_refused_where_nothing_confines_it_unless_that_is_allowed(monkeypatch):
    monkeypatch.setattr(programs, "why_not", lambda mechanism: "the kernel has none")
    with pytest.raises(ConfigError, match="nothing on this machine") as refused:
        choose_mechanism()
    assert all(f"{name}: the kernel has none" in refused.value.what for name in MECHANISMS)
    assert "apt install bubblewrap" in refused.value.hint
    assert "--allow-unsandboxed-code" in refused.value.hint
    checks = "assert f() == 1"
    allowed = run_program("def f(): return 1", checks, LIMITS, allow_unsandboxed=True)
    assert allowed.status == "passed"
