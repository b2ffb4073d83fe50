"""A run continues without a process that keeps failing, where the policy allows it."""

import itertools

import pytest
from click.testing import CliRunner

from axcore.cli.main import group
from axcore.resilience.failure import Failure
from axcore.resilience.policy import Policy, Rung
from axcore.resilience.restarts import Restarts


def failure(process, cause="killed", exit_code=9):
    values = {"step": 0, "phase": "step", "what": "was ended by SIGKILL"}
    return Failure(cause=cause, process=process, exit_code=exit_code, **values)


@pytest.fixture
def answers():
    """Returns what is answered to failures one after the other, each a step later."""

    def given(*failures, processes=3, **policy):
        restarts = Restarts(Policy(**{"shrink_to": 2, **policy}))
        steps = itertools.count()
        return [restarts.decide(one, next(steps), processes).answer for one in failures]

    return given


AGAIN, OUT, STOP = "restart_processes", "leave_out", "stop"


def test_a_process_whose_own_the_newest_failures_are_is_left_out(answers):
    assert answers(*[failure(1)] * 3) == [AGAIN, AGAIN, OUT]
    assert answers(*[failure(1, "hung", 12)] * 2, failures_of_one=2) == [AGAIN, OUT]


def test_none_is_left_out_while_others_fail_too(answers):
    assert answers(*map(failure, (1, 1, 0, 1, 1, 0))) == [AGAIN] * 6


@pytest.mark.parametrize("policy", [{"shrink_to": 0}, {"processes": 2}])
def test_none_is_left_out_unless_asked_for_and_never_below_the_least_number(answers, policy):
    assert answers(*[failure(1)] * 4, **policy) == [AGAIN] * 4


@pytest.mark.parametrize("cause", ["crashed", "lost"])
def test_a_fault_of_the_program_and_a_loss_that_names_nobody_leave_none_out(answers, cause):
    assert answers(*[failure(1, cause)] * 4) == [AGAIN] * 4


def test_where_no_restarts_are_left_the_process_that_failed_is_left_out(answers):
    ladder = {"killed": (Rung(times=1),)}
    assert answers(failure(0), failure(1), ladder=ladder) == [AGAIN, OUT]


def test_a_number_that_does_not_fit_is_lowered_again_and_another_refusal_ends_the_run(answers):
    misfit, damaged = failure(0, "refused", 3), failure(0, "refused", 7)
    alone = {"failures_of_one": 1, "shrink_to": 1}
    assert answers(failure(1), misfit, damaged, **alone) == [OUT, OUT, STOP]
    assert answers(misfit, **alone) == [STOP]


def test_a_process_that_is_killed_again_and_again_is_left_out_for_real(
    supervisor, events, tmp_path, capfd
):
    faults = [[1, step, "SIGKILL", 1] for step in (3, 6)]
    assert supervisor(*faults, shrink_to=1, failures_of_one=2, can_wait=True).run() == 0
    assert [len(started["pids"]) for started in events("processes_started")] == [2, 2, 1]
    (left_out,) = events("left_out")
    assert (left_out["left_out"], left_out["processes"]) == (1, 1)
    line = "the run continues without process 1, with 1 in all"
    assert line in capfd.readouterr().err
    why = CliRunner().invoke(group, ["runs", "why", str(tmp_path / "run")]).output
    assert f"{line}: it failed 2 times in a row" in why
