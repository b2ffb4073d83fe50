"""`axcore launch`, and `axcore train` as one of several processes."""

import os

import pytest
from click.testing import CliRunner
from several_processes import free_address

from axcore.cli.main import group
from axcore.cli.target import use_target
from axcore.errors import AxcoreError, PluginError
from axcore.hardware.families import COLLECTIVE_TIMEOUT, DEVICE_COUNT, device_count_flag
from axcore.plugins import Hardware


def launch(*arguments):
    """Returns what the command prints, or the error that it raises."""
    ran = CliRunner().invoke(group, ["launch", *arguments])
    return ran.exception if isinstance(ran.exception, AxcoreError) else ran.output


def test_help_lists_engines():
    text = launch("--help")
    for name in ("local", "slurm", "kubernetes", "skypilot"):
        assert f"\n  {name} " in text
    assert "a process on each node: partition, account, gres," in " ".join(text.split())


def test_help_shows_a_broken_launcher_and_the_others(make_dist):
    make_dist(
        "axl-acme",
        "from axcore.plugins import JobLauncher, Ref, hook\n"
        "@hook.launchers\n"
        "def launchers():\n"
        "    yield JobLauncher(name='grid', config=Ref('axl_acme.no:Grid'), summary='A grid')\n",
    )
    text = " ".join(launch("--help").split())
    assert "grid A grid (broken: plugin 'axl-acme' refers to 'axl_acme.no:Grid'" in text
    assert "slurm A script for sbatch" in text


def test_options_of_training_go_to_every_process():
    text = launch("slurm", "tiny", "-n", "3", "--set", "max_steps=7", "--modify", "int8_training")
    assert "#SBATCH --nodes=3\n" in text
    assert " axcore train tiny --set max_steps=7 --modify int8_training && exit\n" in text


def test_agents_get_the_training_their_policy_and_a_secret_that_is_in_no_file():
    options = ("--supervise", "--spare-hosts", "2", "--policy", "beat_s=9.0")
    text = launch("slurm", "tiny", "-n", "3", "--set", "max_steps=7", *options)
    assert "#SBATCH --nodes=5\n" in text
    assert " axcore agent tiny --set max_steps=7 -n 3 --policy beat_s=9.0 && exit\n" in text
    assert "\nexport AXCORE_LAUNCH_SECRET=$(od " in text
    assert "srun --kill-on-bad-exit=0 " in text


@pytest.mark.slow
def test_an_agent_of_one_host_supervises_it(cli):
    ran = cli("agent", "tiny", "--set", "max_steps=2", "--target", "cpu-1")
    assert ran.exit_code == 0, ran.stderr
    assert "done at step 2" in ran.stdout


@pytest.mark.parametrize(
    ("variables", "what"),
    [
        ({}, "AXCORE_LAUNCH_SECRET has 0 characters; agents of a launch know each other by 16"),
        ({"AXCORE_PROCESS_ID": "7"}, "this is process 7 of 2"),
        (
            {"AXCORE_COORDINATOR": "node", "AXCORE_LAUNCH_SECRET": "0123456789abcdef"},
            "expected host:port of process 0",
        ),
    ],
)
def test_an_agent_says_what_its_place_lacks(cli, variables, what):
    place = {
        "AXCORE_COORDINATOR": "localhost:29400",
        "AXCORE_NUM_PROCESSES": "2",
        "AXCORE_PROCESS_ID": "1",
    }
    ran = cli("agent", "tiny", **place | variables)
    assert (ran.exit_code, what in ran.stderr) == (2, True), ran.stderr


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("sluurm", "tiny"), "there is no launcher 'sluurm'; did you mean 'slurm'"),
        (("slurm", "tinny"), "there is no experiment 'tinny'; did you mean 'tiny'"),
        (("slurm", "tiny", "--set", "max_stepz=3"), "'max_stepz' matches nothing"),
        (("slurm", "tiny", "--set", "max_steps=x"), "max_steps"),
        (("slurm", "tiny", "--modify", "int7"), "'int7'"),
        (("slurm", "tiny", "--target", "acme-8"), "no plugin knows target 'acme-8'"),
        (("slurm", "tiny", "-n", "0"), "a run has 0 processes; expected 1 or more"),
        (("slurm", "tiny", "--option", "grace=3"), "did you mean 'grace_s'"),
        (("slurm", "tiny", "--option", "grace_s=x"), "grace_s"),
        (("kubernetes", "tiny"), "image and volume_claim not given"),
        (("slurm", "tiny", "--seet", "a=b"), "No such option '--seet'"),
        (("slurm", "tiny", "--policy", "beat_s=3"), "nobody reads --policy"),
        (("slurm", "tiny", "--spare-hosts", "1"), "nobody reads --spare-hosts"),
        (("slurm", "tiny", "--supervise", "--policy", "beat=3"), "did you mean 'beat_s'"),
        (("local", "tiny", "--supervise", "--spare-hosts", "1"), "a local run has one host"),
        (("local", "tiny", "--policy", "beat=3"), "did you mean 'beat_s'"),
    ],
)
def test_what_is_wrong_shows_before_anything_is_started(arguments, what):
    assert what in str(launch(*arguments))


@pytest.mark.slow
def test_a_run_on_this_machine_ends_with_the_code_of_what_failed(cli):
    ran = cli("launch", "local", "tiny", "-n", "2", "--target", "cpu-3")
    assert ran.exit_code == PluginError.exit_code
    assert "] PluginError: cpu-3 has 3 devices, which 2 processes cannot share" in ran.stderr
    assert "all processes start again" not in ran.stderr


@pytest.mark.slow
def test_what_is_wrong_shows_before_a_supervisor_starts_anything(cli):
    ran = cli("launch", "local", "tiny", "-n", "2", "--set", "max_stepz=3")
    assert ran.exit_code == 2
    assert "'max_stepz' matches nothing" in ran.stderr
    assert "[supervisor]" not in ran.stderr


@pytest.mark.slow
def test_a_process_that_never_joins_is_one_clear_error(cli):
    ran = cli(
        *("train", "tiny", "--coordinator", free_address(), "--num-processes", "3"),
        *("--process-id", "0", "--join-timeout", "0.5"),
    )
    assert ran.exit_code == 9
    assert ran.stderr.startswith(
        "ProcessError: processes 1, 2 of 3 did not reach 'rendezvous' within 0.5 s\n"
    )
    assert "Traceback" not in ran.stderr
    assert not (cli.folder / "runs").exists()


def test_flags_of_processes_come_together_or_not_at_all(cli):
    ran = cli("train", "tiny", "--num-processes", "2")
    assert ran.exit_code == 2
    assert "--num-processes without --coordinator, --process-id" in ran.stderr


def test_processes_share_the_devices_of_a_target():
    eight = Hardware.parse("cpu-8")
    assert device_count_flag(eight) == {DEVICE_COUNT: "8"}
    shared = device_count_flag(eight.resized(8, 2))
    assert shared.pop(COLLECTIVE_TIMEOUT) == "600"
    assert shared == {DEVICE_COUNT: "2"}


def test_processes_without_a_target_have_limits_of_time_and_the_devices_they_had(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"{DEVICE_COUNT}=3")
    monkeypatch.setattr("axcore.plugins.flags.devices_have_started", lambda: False)
    assert use_target(None) is None
    assert os.environ["XLA_FLAGS"] == f"{DEVICE_COUNT}=3"
    assert use_target(None, num_processes=2) is None
    assert os.environ["XLA_FLAGS"] == f"{DEVICE_COUNT}=3 {COLLECTIVE_TIMEOUT}=600"


def test_a_target_that_processes_cannot_share_is_refused(monkeypatch):
    monkeypatch.delitem(__import__("sys").modules, "jax")
    with pytest.raises(PluginError, match="cpu-6 has 6 devices, which 4 processes cannot") as error:
        use_target("cpu-6", num_processes=4)
    assert error.value.hint == "--target cpu-4, or a multiple of it"
