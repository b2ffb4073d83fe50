"""What `axcore launch slurm` writes runs on a real Slurm, over a lost process and a lost node."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from engine_run import STEPS, assert_whole, steps, wait_for, write_experiment
from marked_processes import is_stopped, kill_all_with, processes_with
from quick_flags import quick_environment
from several_processes import free_address
from slurm_cluster import SlurmCluster, missing_reason

from axcore.errors import ProcessError
from axcore.launch import Job
from axcore.launch.ray import Ray
from axcore.resilience import read_events
from axcore.resilience.faults import Hang, Raise, Signal, SlowStep

RESTARTED = "all processes start again, 10 restarts left"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing_reason()), reason=missing_reason())]


@pytest.fixture
def cluster(tmp_path_factory):
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def submit(cluster, script):
    path = os.pathsep.join([str(Path(sys.executable).parent), cluster.environment["PATH"]])
    options = ("--parsable", "--output=job.out")
    return cluster.call("sbatch", *options, text=script, **{**quick_environment(), "PATH": path})


def test_a_lost_process_and_a_lost_node_cost_no_step(cluster, cli, tmp_path):
    run, output = tmp_path / "run", cluster.folder / "job.out"
    experiment = write_experiment(tmp_path, Signal(at_step=8, process=1), Hang(at_step=18))
    setup = f"export AXCORE_COORDINATOR={free_address()}"  # names of nodes here do not resolve
    rendered = cli(
        *("launch", "slurm", experiment, "-n", "2", "--dir", run, "--option", "grace_s=60"),
        *("--option", f'setup=("{setup}",)'),
    )
    assert rendered.exit_code == 0, rendered.stderr
    job = submit(cluster, rendered.stdout).strip()

    def has_come_to(state):
        found = cluster.job(job)["JobState"]
        assert found not in {"FAILED", "TIMEOUT", "CANCELLED"}, output.read_text()
        return found == state

    wait_for(lambda: has_come_to("RUNNING") and 17 in steps(run), "step 17", output.read_text)
    assert output.read_text().count(RESTARTED) == 1
    cluster.call("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=lost")
    wait_for(lambda: has_come_to("COMPLETED"), "the end", output.read_text)
    assert cluster.job(job)["Restarts"] == "1"
    assert output.read_text().count("resuming at step") == 2
    assert_whole(run)


def test_agents_replace_a_lost_process_and_end_a_hang_within_one_step_of_slurm(
    cluster, cli, tmp_path
):
    run, output = tmp_path / "run", cluster.folder / "job.out"
    faults = (Signal(at_step=8, process=1), Hang(at_step=14, process=1))
    experiment = write_experiment(tmp_path, *faults)
    setup = f"export AXCORE_COORDINATOR={free_address()}"
    rendered = cli(
        *("launch", "slurm", experiment, "-n", "2", "--dir", run, "--supervise"),
        *("--policy", "step_s=10.0", "--option", f'setup=("{setup}",)'),
    )
    assert rendered.exit_code == 0, rendered.stderr
    job = submit(cluster, rendered.stdout).strip()

    def is_over():
        state = cluster.job(job)["JobState"]
        assert state not in {"FAILED", "TIMEOUT", "CANCELLED"}, output.read_text()
        return state == "COMPLETED"

    wait_for(is_over, "the end", output.read_text)
    lost = [one for one in read_events(run).events if one["event"] in ("process_lost", "hang")]
    assert [(one["lost_process"], one["cause"]) for one in lost] == [(1, "killed"), (1, "hung")]
    assert "all processes start again, 10 restarts left" not in output.read_text()
    assert_whole(run)


def test_slurms_own_signal_saves_a_supervised_run_once(cluster, cli, tmp_path):
    run, output = tmp_path / "run", cluster.folder / "job.out"
    faults = [SlowStep(at_step=step, seconds=0.5) for step in range(12, STEPS)]
    experiment = write_experiment(tmp_path, *faults)
    setup = f"export AXCORE_COORDINATOR={free_address()}"
    rendered = cli(
        *("launch", "slurm", experiment, "-n", "2", "--dir", run, "--supervise"),
        *("--option", f'setup=("{setup}",)'),
    )
    job = submit(cluster, rendered.stdout).strip()
    wait_for(lambda: 11 in steps(run), "step 11", output.read_text)
    cluster.call("scancel", "--signal=TERM", job)  # to all processes of the step, as at its limit
    wait_for(lambda: cluster.job(job)["JobState"] == "FAILED", "the end", output.read_text)
    newest = max(path.parent.name for path in run.glob("checkpoints/step_*/manifest.json"))
    assert 11 < int(newest.removeprefix("step_")) < STEPS
    assert (read_events(run).events[-1]["exit_code"]) == 130


MARK = "AXCORE_RUN_OF_A_TEST"
HAS_RAY = importlib.util.find_spec("ray") is not None

needs_ray = pytest.mark.skipif(not HAS_RAY, reason="no ray: pip install 'axcore[ray]'")


@pytest.fixture
def launch(tmp_path):
    """Starts two processes on a new Ray of this machine; nothing of it outlives the test."""

    def start(*faults, restarts=2):
        arguments = ("-n", "2", "--dir", tmp_path / "run", "--submit", "--option", "address=local")
        resources = 'resources={"num_cpus": 0.5}'
        with (tmp_path / "out").open("w") as out:
            return subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "axcore",
                    "launch",
                    "ray",
                    write_experiment(tmp_path, *faults),
                ]
                + [*arguments, "--option", resources, "--option", f"restarts={restarts}"],
                env={**quick_environment(), **settings, MARK: str(tmp_path)},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_DEDUP_LOGS": "0"}
    yield start
    kill_all_with(MARK, str(tmp_path))


def process_of(folder, index):
    (found,) = set(processes_with(MARK, folder)) & set(processes_with("AXCORE_PROCESS_ID", index))
    return found


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@needs_ray
@pytest.mark.slow
def test_a_killed_actor_takes_its_process_along_and_all_start_again(launch, tmp_path):
    started = launch(Hang(at_step=8))
    wait_for(lambda: 7 in steps(tmp_path / "run"), "step 7", (tmp_path / "out").read_text)
    process = process_of(tmp_path, 1)
    os.kill(parent(process), signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{process}").exists(), "the end of its process")
    assert started.wait(300) == 0, (tmp_path / "out").read_text()
    shown = (tmp_path / "out").read_text()
    assert shown.count("an actor was lost: The actor died") == 1
    assert shown.count("exit code 9: all processes start again, 2 restarts left") == 1
    assert shown.count("resuming at step 5") == 1
    assert_whole(tmp_path / "run")
    assert not processes_with(MARK, tmp_path)


@needs_ray
@pytest.mark.slow
def test_a_run_that_is_asked_to_stop_saves_first(launch, tmp_path):
    started = launch(Signal(at_step=8, process=1, signal="SIGSTOP"))
    wait_for(lambda: 7 in steps(tmp_path / "run"), "step 7", (tmp_path / "out").read_text)
    stopped = process_of(tmp_path, 1)
    wait_for(lambda: is_stopped(stopped), "the stop of process 1")
    started.send_signal(signal.SIGTERM)
    os.kill(stopped, signal.SIGCONT)
    assert started.wait(300) == 130, (tmp_path / "out").read_text()
    saved = sorted((tmp_path / "run/checkpoints").glob("step_*/manifest.json"))
    assert 7 < int(saved[-1].parent.name.removeprefix("step_")) < STEPS
    assert "all processes start again" not in (tmp_path / "out").read_text()


@needs_ray
@pytest.mark.slow
def test_a_run_whose_budget_is_spent_ends_with_the_code_of_what_failed(launch, tmp_path):
    started = launch(Raise(at_step=1), restarts=0)
    assert started.wait(300) == 1, (tmp_path / "out").read_text()
    assert "InjectedFaultError" in (tmp_path / "out").read_text()
    assert "all processes start again" not in (tmp_path / "out").read_text()


@pytest.mark.skipif(HAS_RAY, reason="ray is here")
def test_a_ray_that_is_not_installed_is_named():
    with pytest.raises(ProcessError, match="Ray cannot be imported") as refused:
        Ray().launch(Job(name="test", command=("true",)))
    assert 'pip install "axcore[ray]"' in refused.value.hint
