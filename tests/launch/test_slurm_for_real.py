"""What `axcore launch slurm` writes runs on a real Slurm, over a lost process and a lost node."""

import os
import sys
from pathlib import Path

import pytest
from engine_run import assert_whole, steps, wait_for, write_experiment
from quick_flags import quick_environment
from several_processes import free_address
from slurm_cluster import SlurmCluster, missing_reason

from axcore.resilience.faults import Hang, Signal

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
