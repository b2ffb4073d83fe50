"""`axcore fault-test`: faults of a plan are triggered in a run, and the report says so."""

import subprocess
import sys

import pytest
from click.testing import CliRunner
from guarded_run import guarded_config
from quick_flags import quick_environment

from axcore.cli.fault_test import fault_test
from axcore.config import to_yaml
from axcore.errors import ConfigError
from axcore.resilience.faults import FaultPlan, PoisonBatch, Signal


@pytest.fixture
def experiment(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(to_yaml(guarded_config(tmp_path / "text")))
    return file


def test_a_file_that_holds_no_plan_is_refused(tmp_path, experiment):
    arguments = [str(experiment), f"--faults={experiment}", f"--dir={tmp_path / 'run'}"]
    ran = CliRunner().invoke(fault_test, arguments)
    assert isinstance(ran.exception, ConfigError)
    assert "the file contains a Trainer.Config; expected a FaultPlan.Config" in ran.exception.what


@pytest.mark.slow
def test_a_run_that_a_fault_kills_is_started_again_and_the_report_says_so(tmp_path, experiment):
    plan = tmp_path / "plan.yaml"
    faults = (Signal(at_step=6, signal="SIGKILL"), PoisonBatch(at_step=7))
    plan.write_text(to_yaml(FaultPlan.Config(faults=faults)))
    ran = subprocess.run(
        [sys.executable, "-m", "axcore", "fault-test", str(experiment)]
        + [f"--faults={plan}", f"--dir={tmp_path / 'run'}"],
        env=quick_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    report = ran.stdout.split("what happened in")[1]
    for wanted in ("kind=Signal step=6 time_of=1", "process_lost", "kind=PoisonBatch step=7"):
        assert report.count(wanted) == 1
    assert "in 2 starts; lost: " in report
    assert report.endswith("the run ended with exit code 0\n")
