"""A supervisor starts all processes again where one is lost, and knows when to stop that."""

import itertools
import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from axcore.cli.main import group
from axcore.resilience.policy import EscalationLevel, Failure, Policy, Restarts
from axcore.resilience.this_machine import process_state


def pids(events):
    return [started["pids"] for started in events("processes_started")]


def is_alive(pid):
    return process_state(pid) not in ("", "Z")  # nobody may wait for an orphan


def test_a_run_without_faults_ends_well_and_is_logged(supervisor, events):
    assert supervisor(steps=100).run() == 0
    assert len(pids(events)) == 1
    assert [event["exit_code"] for event in events("supervision_ended")] == [0]
    assert len(events("stepping")) == 1


@pytest.mark.parametrize("index", [0, 1])
def test_all_start_again_where_one_is_killed(supervisor, events, index, tmp_path, capfd):
    assert supervisor([index, 5, "SIGKILL", 1]).run() == 0
    (lost,) = events("process_lost")
    assert (lost["lost_process"], lost["cause"], lost["step"]) == (index, "killed", 5)
    first, second = pids(events)
    assert not set(first) & set(second)
    assert not any(map(is_alive, first + second))
    assert {int((tmp_path / f"run/done_{i}").read_text()) for i in (0, 1)} == set(second)
    assert f"[supervisor] process {index} was ended by SIGKILL at step 5" in capfd.readouterr().err


def test_a_killed_process_is_noticed_and_replaced_at_once(supervisor, events, tmp_path):
    assert supervisor([1, 5, "SIGKILL", 1]).run() == 0
    died = (tmp_path / "run/struck_1_5_SIGKILL").stat().st_mtime  # just before it killed itself
    again = datetime.fromisoformat(events("processes_started")[1]["time"]).timestamp()
    assert again - died < 30, "long before it was silent for too long"


@pytest.mark.parametrize(
    ("name", "cause"), [("SIGSEGV", "crashed"), ("exit9", "lost"), ("exit15", "corrupted")]
)
def test_a_fault_of_the_program_and_a_lost_process_are_told_apart(supervisor, events, name, cause):
    assert supervisor([1, 3, name, 1]).run() == 0
    assert [lost["cause"] for lost in events("process_lost")] == [cause]


def test_a_loop_of_crashes_at_one_step_ends_with_what_is_known(supervisor, events, capfd):
    assert supervisor([1, 7, "raise", 99]).run() == 13
    assert len(pids(events)) == 3
    assert {lost["step"] for lost in events("process_lost")} == {7}
    (ended,) = events("supervision_ended")
    assert ended["reason"] == "3 attempts came no further than step 7"
    last = capfd.readouterr().err.partition("the run ends")[2]
    assert "3 attempts came no further than step 7" in last
    assert "ArithmeticError: a poisoned batch" in last


def test_ends_at_different_steps_are_no_loop_and_those_at_one_step_are():
    restarts = Restarts(Policy())
    killed = Failure(
        cause="killed", process=0, exit_code=9, step=0, phase="step", what="was ended by SIGKILL"
    )
    answers = [restarts.decide(killed, step).answer for step in (9, 7, 5, 3, 7, 7, 10, 10)]
    assert answers == ["restart_processes"] * 5 + ["stop"] + ["restart_processes"] * 2


@pytest.mark.slow
def test_progress_is_no_loop_but_the_budget_of_its_cause_counts(supervisor, events):
    faults = [[0, step, "SIGKILL", 1] for step in (3, 6, 9, 12)]
    escalation = {"killed": (EscalationLevel(times=3),)}
    assert supervisor(*faults, escalation=escalation).run() == 13
    assert len(pids(events)) == 4
    (ended,) = events("supervision_ended")
    assert ended["reason"] == "the restart budget for 'killed' is spent"


def test_a_lost_process_without_a_budget_is_exit_code_9_with_its_name(supervisor, capfd):
    assert (
        supervisor([1, 3, "SIGKILL", 1], escalation={"killed": (EscalationLevel(times=0),)}).run()
        == 9
    )
    assert "[supervisor] process 1 was ended by SIGKILL at step 3" in capfd.readouterr().err


def test_who_only_lost_another_is_not_blamed(supervisor, events):
    faults = ([0, 3, "exit9", 1], [1, 3, "late15", 1])
    assert supervisor(*faults).run() == 0
    (lost,) = events("process_lost")
    assert (lost["lost_process"], lost["cause"]) == (1, "corrupted")


def test_a_run_whose_devices_change_parameters_again_and_again_ends_with_code_15(supervisor):
    assert (
        supervisor([1, 3, "exit15", 1], escalation={"corrupted": (EscalationLevel(times=0),)}).run()
        == 15
    )


@pytest.mark.slow
def test_an_error_that_comes_again_ends_the_run_with_its_own_code(supervisor, events):
    assert supervisor([0, 3, "exit6", 1]).run() == 6
    assert len(pids(events)) == 1


START = """
import json, os, signal, sys
from pathlib import Path
from axcore.launch.children import ProcessStart
from axcore.resilience.policy import Policy
from axcore.resilience.supervisor import OnThisMachine, Supervisor
worker, run, steps = sys.argv[1:]
def starts(left_out):
    return [ProcessStart(command=(sys.executable, worker, run, str(index), "2", steps, "[]"),
                         environment={**os.environ, "ATTEMPT": "a"}, can_wait=True)
            for index in range(2)]
assert "jax" not in sys.modules
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
sys.exit(Supervisor(OnThisMachine(starts), Path(run), Policy()).run())
"""


@pytest.fixture
def started(tmp_path, events):
    """A supervisor as a process of its own, whose two processes are ready."""
    worker = Path(__file__).with_name("beating_worker.py")
    command = [sys.executable, "-c", START, str(worker), str(tmp_path / "run"), "5000"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert {process.stdout.readline() for _ in range(2)} == {"[0] ready\n", "[1] ready\n"}
        while not events("processes_started"):
            time.sleep(0.01)
        yield process
        process.kill()


def wait_until_dead(found):
    end = time.monotonic() + 120
    while time.monotonic() < end and any(map(is_alive, found)):
        time.sleep(0.01)
    return not any(map(is_alive, found))


def test_a_supervisor_that_is_killed_leaves_no_process(started, events):
    (found,) = pids(events)
    started.kill()
    assert wait_until_dead(found)


def test_a_supervisor_that_is_killed_leaves_no_process_that_is_stopped(started, events):
    (found,) = pids(events)
    os.kill(found[1], signal.SIGSTOP)
    started.kill()
    assert wait_until_dead(found)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_request_reaches_all_and_is_waited_for(started, events, number):
    (found,) = pids(events)
    started.send_signal(number)
    assert started.wait(300) == 130
    assert not any(map(is_alive, found))


def spares_of(run):
    """The processes that ever were standby workers, by index, the oldest first."""
    return [list(map(int, (run / f"standby_{i}").read_text().split())) for i in (0, 1)]


def test_spares_take_the_places_of_all_where_one_is_lost(supervisor, events, tmp_path):
    assert supervisor([1, 5, "spared", 1], can_wait=True).run() == 0
    first, second = pids(events)
    standby_workers = spares_of(tmp_path / "run")
    assert second == [one[0] for one in standby_workers]
    assert not any(map(is_alive, first + standby_workers[0] + standby_workers[1]))


@pytest.mark.slow
def test_spares_that_died_are_replaced_by_new_processes(supervisor, events, tmp_path):
    assert supervisor([1, 5, "bereft", 1], can_wait=True).run() == 0
    done = {int((tmp_path / f"run/done_{index}").read_text()) for index in (0, 1)}
    assert done == set(pids(events)[-1])
    assert not done & {one[0] for one in spares_of(tmp_path / "run")}


def test_a_policy_without_spares_starts_none(supervisor, tmp_path):
    assert supervisor(can_wait=True, standby_workers=False).run() == 0
    assert not list((tmp_path / "run").glob("spare_*"))


def test_a_supervisor_that_is_killed_leaves_no_spare(started, tmp_path):
    files = [tmp_path / f"run/standby_{index}" for index in (0, 1)]
    while not all(file.exists() and file.read_text() for file in files):
        time.sleep(0.01)
    started.kill()
    assert wait_until_dead([pid for one in spares_of(tmp_path / "run") for pid in one])


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
    escalation = {"killed": (EscalationLevel(times=1),)}
    assert answers(failure(0), failure(1), escalation=escalation) == [AGAIN, OUT]


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
