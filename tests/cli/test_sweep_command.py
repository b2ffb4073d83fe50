"""`axcore sweep`: trials are runs, what is done is left alone, and what fails is named."""

import json
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner
from quick_flags import quick_environment

from axcore.cli.main import group

SMALL = ("--set", "max_steps=2", "--set", "data.seq_len=32", "--set", "data.batch_size=16")


def invoke(*arguments):
    return CliRunner().invoke(group, ["sweep", "tiny", *arguments], catch_exceptions=False)


def test_the_commands_of_all_trials_can_be_shown(tmp_path):
    shown = invoke("--over", "learner.schedule.peak=1,2", "--show", "--dir", str(tmp_path / "s"))
    assert shown.output.splitlines()[0] == (
        f"axcore train tiny --dir {tmp_path}/s/peak-1 --set learner.schedule.peak=1"
    )
    assert not (tmp_path / "s").exists()


def test_an_engine_gets_a_job_for_each_trial(tmp_path):
    axis = ("--over", "learner.schedule.peak=1", "--dir", str(tmp_path))
    shown = invoke(*axis, "--show", "--engine", "slurm", "--option", "partition=gpu")
    assert shown.output.startswith(
        "axcore launch slurm --option partition=gpu --submit --name peak-1 tiny"
    )


def test_a_wrong_value_of_the_last_trial_is_refused_before_the_first_is_trained(tmp_path):
    run = CliRunner().invoke(
        group, ["sweep", "tiny", "--over", "max_steps=2,-1", "--dir", str(tmp_path / "s")]
    )
    assert run.exit_code != 0
    assert "max_steps" in str(run.exception or run.output)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("arguments", [(), ("--over", "seed=1", "--metric", "loss")])
def test_nothing_to_vary_and_a_metric_without_a_split_are_refused(arguments):
    assert CliRunner().invoke(group, ["sweep", "tiny", *arguments]).exit_code != 0


@pytest.mark.slow
def test_trials_are_compared_and_a_second_call_adds_what_is_new(cli):
    first = ("--over", "learner.schedule.peak=0.001", "--seeds", "2", "--jobs", "2", *SMALL)
    assert cli("sweep", "tiny", *first).exit_code == 0
    more = ("--over", "learner.schedule.peak=0.001,0.01", "--json", "--seeds", "2", *SMALL)
    done = cli("sweep", "tiny", *more)
    found = json.loads(done.stdout)
    assert [one["state"] for one in found] == ["done"] * 4
    assert all(one["step"] == 2 and 3 < one["value"] < 9 for one in found)
    assert done.stderr.count(": started") == 2


@pytest.mark.slow
def test_ctrl_c_stops_the_trials_which_save(tmp_path):
    arguments = ["sweep", "tiny", "--over", "max_steps=100000", "--dir", str(tmp_path)]
    environment = quick_environment()
    process = subprocess.Popen(
        [sys.executable, "-m", "axcore", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    metrics = tmp_path / "max_steps-100000" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and metrics.read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "the same command continues" in err
    assert any((metrics.parent / "checkpoints").iterdir())
