"""Runs are listed with what their directories say, and a run's story is its events."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from axcore.checkpoint.lock import FileLock
from axcore.cli.main import group
from axcore.errors import CheckpointError
from axcore.resilience import EventLog
from axcore.resilience.run_summary import find_runs, summarise_run


@pytest.fixture
def make_run(tmp_path):
    """Makes a run directory as training leaves it, as far as it is read."""

    def make(name, *, step=None, max_steps=10):
        run = tmp_path / name
        run.mkdir()
        (run / "axcore.lock").touch()
        (run / "config.json").write_text(json.dumps({"max_steps": max_steps}))
        if step is not None:
            lines = [json.dumps({"step": one}) for one in range(1, step + 1)]
            (run / "metrics.jsonl").write_text(
                "\n".join([*lines, '{"step": 99'])
            )  # a line cut short
        return run

    return make


def test_a_run_is_done_stopped_or_running(make_run, tmp_path):
    assert summarise_run(make_run("new")).state == "stopped"
    assert summarise_run(make_run("done", step=10)).state == "done"
    half = make_run("half", step=4)
    assert (summarise_run(half).state, summarise_run(half).last_step) == ("stopped", 4)
    lock = FileLock(half / "axcore.lock", doing="training here")
    assert summarise_run(half).state == "running"
    lock.release()
    assert summarise_run(half).state == "stopped"
    (tmp_path / "no_run").mkdir()
    assert [path.name for path in find_runs(tmp_path)] == ["done", "half", "new"]


def test_a_run_over_hosts_says_who_leads_and_when_it_grows(make_run):
    log = EventLog(make_run("wide", step=3), "supervisor")
    log.write("leader_changed", host=2)
    log.write("growing", step=3)
    said = CliRunner().invoke(group, ["runs", "why", str(log.directory)]).output
    assert "the leader was lost, and the agent of host 2 leads" in said
    assert "another host is there: the run saves, and continues on it, too" in said


def test_a_supervised_run_is_listed_with_its_last_death_and_tells_its_story(supervisor, tmp_path):
    assert supervisor([1, 5, "SIGKILL", 1]).run() == 0
    (tmp_path / "run" / "axcore.lock").touch()
    listed = CliRunner().invoke(group, ["runs", str(tmp_path)]).output
    assert "process 1 was ended by SIGKILL at step 5 (step)" in listed
    told = CliRunner().invoke(group, ["runs", "why", str(tmp_path / "run")]).output.splitlines()
    assert "attempt 1: processes" in told[0]
    assert "process 1 was ended by SIGKILL at step 5 (step)" in "\n".join(told)
    assert told[-1].endswith("the run ended with exit code 0")


def test_events_of_other_versions_and_damage_are_shown_as_they_are(make_run):
    run = make_run("run")
    EventLog(run, 0).write("hang", since="before")
    EventLog(run, 3).write("snapshot", step=4)
    with (run / "events.jsonl").open("a") as file:
        file.write("no json\n")
    told = CliRunner().invoke(group, ["runs", "why", str(run)]).output
    assert "hang process=0 since=before" in told
    assert "snapshot process=3 step=4" in told
    assert "line 3 of events.jsonl is damaged" in told


def test_a_directory_without_events_and_starts_is_an_error(tmp_path):
    ran = CliRunner().invoke(group, ["runs", "why", str(tmp_path)])
    assert isinstance(ran.exception, CheckpointError)
    assert "there are no events, and no starts" in str(ran.exception)


def test_a_run_that_nobody_supervised_has_its_starts_for_a_story(make_run):
    run = make_run("run", step=3)
    starts = [{"time": f"2026-05-0{day}T10:00:00+00:00", "step": day} for day in (1, 2)]
    (run / "run_history.jsonl").write_text("".join(json.dumps(one) + "\n" for one in starts))
    told = CliRunner().invoke(group, ["runs", "why", str(run)]).output
    assert told.splitlines() == [
        "2026-05-01 10:00:00  started at step 1",
        "2026-05-02 10:00:00  started at step 2",
        "the newest metrics are of step 3 of 10: it stopped, and the same command resumes it",
        "no supervisor watched it: why a process ended is only in what the process printed",
    ]


@pytest.mark.parametrize("words", [["nowhere"], ["nowhere", "--json"]])
def test_a_folder_that_is_not_there_is_an_error(words):
    ran = CliRunner().invoke(group, ["runs", *words])
    assert isinstance(ran.exception, CheckpointError)
    assert ran.exception.where == "nowhere"


def test_the_command_loads_no_jax(make_run, tmp_path):
    make_run("run", step=3)
    code = (
        "import sys; from axcore.cli.main import main\n"
        "try: main(['runs', sys.argv[1]])\n"
        "finally: assert 'jax' not in sys.modules"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[1].split()[:5] == ["run", "stopped", "3", "of", "10"]


def deep(run):
    (run / "config.json").write_text('{"a":' * 100_000)


def fifo(run):
    for name in ("config.json", "metrics.jsonl", "events.jsonl", "goodput.json", "axcore.lock"):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)


def without_steps(run):
    (run / "config.json").write_text('{"max_steps": []}')


@pytest.mark.parametrize("broken", [deep, fifo, without_steps])
def test_a_broken_run_is_named_and_hides_no_other(make_run, tmp_path, broken):
    make_run("good", step=4)
    broken(make_run("odd", step=3))
    with pytest.warns(UserWarning, match=r"odd/[\w.]+ (cannot be read|is damaged)"):
        ran = CliRunner().invoke(group, ["runs", str(tmp_path)], catch_exceptions=False)
    assert "4 of 10" in ran.output
    assert "odd" in ran.output
