"""What engines are given is whole, and what they would refuse is refused here."""

import os
import shlex
import subprocess

import pytest
import yaml

from axcore.errors import ConfigError, PluginError, ProcessError
from axcore.launch import Job, find_launcher
from axcore.launch.job import launch_of, launcher_class
from axcore.launch.kubernetes import Kubernetes
from axcore.launch.local import Local
from axcore.launch.skypilot import SkyPilot
from axcore.launch.slurm import Slurm
from axcore.plugins import plugin_host

ARGUMENTS = ("tiny", "--dir", "/runs/tiny", "--set", "prompt='a \"b'")


def job(processes=4, arguments=ARGUMENTS):
    return Job.training(arguments, processes=processes)


def test_a_job_is_named_as_every_engine_takes_it():
    assert Job.training(("runs/My_Llama2.yaml",), processes=1).name == "my-llama2"
    assert Job.training(("___",), processes=1).name == "run"
    assert len(Job.training(("x" * 90,), processes=1).name) == 40


def test_the_directory_of_a_job_is_read_either_way():
    assert job().directory == "/runs/tiny"
    assert job(arguments=("tiny", "--dir=/a b")).directory == "/a b"
    assert job(arguments=("tiny",)).directory is None


def test_a_launch_that_goes_back_is_named_in_all_that_starts_it_again():
    arguments = (*ARGUMENTS, "--from-step=4")
    one, other = (job(arguments=arguments).command for _ in range(2))
    assert one[:-2] == other[:-2] == ("axcore", "train", *arguments)
    assert (one[-2], one[-1] == other[-1]) == ("--launch-id", False)
    given = (*arguments, "--launch-id", "mine")
    assert job(arguments=given).command == ("axcore", "train", *given)
    assert "--launch-id" not in job().command


def test_a_script_that_slurm_is_given_twice_is_two_launches_and_a_requeued_job_one():
    jobs = [launch_of("a1", {"SLURM_JOB_ID": number}) for number in ("7", "7", "8")]
    assert (jobs[0] == jobs[1], jobs[1] == jobs[2]) == (True, False)
    assert (launch_of("a1", {}), launch_of("", {"SLURM_JOB_ID": "7"})) == ("a1", "")


def test_the_slurm_script_is_shell_that_runs_the_very_command(tmp_path):
    setup = ("export GREETING=hello",)
    launcher = Slurm(partition="big", time="2-00", cpus=16, setup=setup, options={"exclusive": ""})
    text = launcher.render(job())
    directives = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    for wanted in (
        "job-name=tiny",
        "nodes=4",
        "ntasks-per-node=1",
        "partition=big",
        "time=2-00",
        "cpus-per-task=16",
    ):
        assert f"#SBATCH --{wanted}" in directives
    assert {"#SBATCH --exclusive", "#SBATCH --requeue"} < set(directives)
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nfor word in "$GREETING" "$@"; do echo "$word"; done\n')
    srun.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash"], input=text, env={"PATH": path}, capture_output=True, text=True, check=True
    )
    words = ran.stdout.splitlines()
    assert words[0] == "hello"
    assert words[words.index("axcore") :] == ["axcore", "train", *ARGUMENTS]
    assert {"--kill-on-bad-exit=1", "--cpus-per-task=16"} < set(words)


@pytest.mark.parametrize(
    ("codes", "ended", "starts"),
    [((137, 0), 0, 2), ((2, 0), 2, 1), ((130, 0), 130, 1), ((143, 9, 12), 12, 3)],
)
def test_the_slurm_script_starts_again_what_another_attempt_may_save(
    tmp_path, codes, ended, starts
):
    srun = tmp_path / "srun"
    list_of_codes = " ".join(map(str, codes))
    srun.write_text(
        f"#!/bin/bash\ncodes=({list_of_codes})\necho >> {tmp_path}/starts\n"
        f"exit ${{codes[$(wc -l < {tmp_path}/starts) - 1]}}\n"
    )
    srun.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    script = Slurm(restarts=2).render(job())
    ran = subprocess.run(["bash"], input=script, env={"PATH": path}, text=True, check=False)
    assert ran.returncode == ended
    assert len((tmp_path / "starts").read_text()) == starts


def test_slurm_options_that_cannot_be_are_refused():
    with pytest.raises(ConfigError) as refused:
        Slurm(options={"--mem": "0", "nodes": "2"}).check(job())
    assert "options names '--mem'; expected a long option without dashes" in refused.value.what
    assert "options names 'nodes'; the launcher sets it" in refused.value.what


@pytest.mark.parametrize(
    "launcher",
    [
        Slurm(partition="big\nsrun rm -r /"),
        Slurm(options={"mem": "0\n#SBATCH --uid=0"}),
        Slurm(time="1\r2"),
        Slurm(options={"comment": "a\x00b"}),
    ],
)
def test_a_slurm_option_never_writes_a_line_of_its_own(launcher):
    for refuse in (launcher.check, launcher.render):
        with pytest.raises(ConfigError, match="would write lines of its own"):
            refuse(job())


def test_a_name_with_a_newline_writes_no_line_of_a_slurm_script():
    with pytest.raises(ConfigError, match=r"'job-name' is 'a.nb'"):
        Slurm().render(Job(name="a\nb", command=("true",)))


def test_the_job_set_runs_the_command_in_a_pod_for_each_process():
    launcher = Kubernetes(
        image="me/axcore",
        volume_claim="runs",
        resources={"cpu": "8"},
        node_selector={"pool": "big"},
        namespace="team",
        environment={"GREETING": "hello"},
    )
    launcher.check(job())
    made = yaml.safe_load(launcher.render(job()))
    assert (made["apiVersion"], made["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert made["metadata"] == {"name": "tiny", "namespace": "team"}
    assert made["spec"]["network"] == {"enableDNSHostnames": True, "subdomain": "tiny"}
    (workers,) = made["spec"]["replicatedJobs"]
    spec = workers["template"]["spec"]
    assert (spec["completions"], spec["parallelism"]) == (4, 4)
    assert (spec["completionMode"], spec["backoffLimit"]) == ("Indexed", 0)
    pod = spec["template"]["spec"]
    assert (pod["restartPolicy"], pod["nodeSelector"]) == ("Never", {"pool": "big"})
    (container,) = pod["containers"]
    assert container["command"] == ["axcore", "train", *ARGUMENTS]
    assert container["resources"] == {"requests": {"cpu": "8"}, "limits": {"cpu": "8"}}
    assert {one["name"]: one["value"] for one in container["env"]} == {
        "GREETING": "hello",
        "AXCORE_COORDINATOR": f"tiny-{workers['name']}-0-0.tiny:29400",
        "AXCORE_NUM_PROCESSES": "4",
    }
    (volume,) = pod["volumes"]
    assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/runs"}]
    assert volume["persistentVolumeClaim"] == {"claimName": "runs"}


def test_a_job_set_of_one_pod_is_no_run_of_several():
    made = yaml.safe_load(Kubernetes(image="a", volume_claim="b").render(job(1)))
    pod = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["env"] == []


def test_what_a_job_set_lacks_is_named():
    with pytest.raises(ConfigError, match="image and volume_claim not given") as refused:
        Kubernetes().check(job())
    assert refused.value.hint == "--option image=... --option volume_claim=..."


def test_a_word_that_looks_like_a_variable_of_kubernetes_stays_as_it_is():
    words = ("tiny", "--dir=/runs/$(HOME)", "--set", "prompt=$$1 $x")
    made = yaml.safe_load(Kubernetes(image="a", volume_claim="b").render(job(1, words)))
    pod = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    command = pod["containers"][0]["command"]
    assert command[2:] == ["tiny", "--dir=/runs/$$(HOME)", "--set", "prompt=$$$$1 $$x"]


@pytest.mark.parametrize("directory", ["/runs/a/../b", "/runs/./a", "/runs//a/"])
def test_a_run_directory_below_the_volume_is_taken_however_it_is_written(directory):
    Kubernetes(image="a", volume_claim="b").check(job(arguments=("tiny", f"--dir={directory}")))


@pytest.mark.parametrize(
    "directory", ["/elsewhere", "runs/tiny", "/runs2", "/runs/../etc", "/runs/a/../../runs2", None]
)
def test_a_run_directory_that_pods_would_not_share_is_refused(directory):
    arguments = ("tiny",) if directory is None else ("tiny", f"--dir={directory}")
    with pytest.raises(ConfigError, match="is not on the volume at /runs") as refused:
        Kubernetes(image="a", volume_claim="b").check(job(arguments=arguments))
    assert refused.value.hint == "--dir /runs/tiny"


def test_the_skypilot_task_has_a_node_for_each_process():
    launcher = SkyPilot(
        accelerators="X1:8",
        use_spot=True,
        setup=("pip install axcore", "echo done"),
        bucket="b://c",
    )
    text = launcher.render(job())
    made = yaml.safe_load(text)
    assert (made["name"], made["num_nodes"]) == ("tiny", 4)
    assert made["resources"] == {"accelerators": "X1:8", "use_spot": True}
    assert made["file_mounts"] == {"/runs": {"source": "b://c", "mode": "MOUNT"}}
    assert made["setup"] == "pip install axcore\necho done\n"
    assert shlex.split(made["run"]) == ["axcore", "train", *ARGUMENTS]
    assert "setup: |\n  pip install axcore\n" in text


def test_skypilot_takes_the_first_of_several_accelerators():
    made = yaml.safe_load(SkyPilot(accelerators=("X1:8", "Y2:4"), infra="z").render(job()))
    ordered = [{"accelerators": "X1:8"}, {"accelerators": "Y2:4"}]
    assert made["resources"] == {"ordered": ordered, "infra": "z"}


@pytest.mark.parametrize("launcher", [Slurm(), Kubernetes(image="a", volume_claim="b"), SkyPilot()])
def test_an_engine_that_is_not_here_is_named(monkeypatch, tmp_path, launcher):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProcessError, match=r"there is no '(sbatch|kubectl|sky)' on this machine"):
        launcher.launch(job())


def test_an_engine_is_given_what_is_shown_and_its_refusal_is_an_error(monkeypatch, tmp_path):
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f"#!/bin/sh\ncat > {tmp_path}/given\nexit ${{CODE:-0}}\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert Slurm().launch(job()) == 0
    assert (tmp_path / "given").read_text() == Slurm().render(job())
    monkeypatch.setenv("CODE", "3")
    with pytest.raises(ProcessError, match="sbatch ended with 3"):
        Slurm().launch(job())


def test_the_commands_of_local_are_shown_as_a_shell_reads_them():
    lines = Local(environment={"A": "b c"}).render(job(2)).splitlines()
    assert lines[-1] == "wait"
    first, second = (shlex.split(line) for line in lines[:-1])
    assert first[:4] == [
        "A=b c",
        "AXCORE_COORDINATOR=localhost:PORT",
        "AXCORE_NUM_PROCESSES=2",
        "AXCORE_PROCESS_ID=0",
    ]
    assert second[3:] == ["AXCORE_PROCESS_ID=1", "axcore", "train", *ARGUMENTS, "&"]


def test_a_launcher_that_is_not_there_is_an_error():
    with pytest.raises(ConfigError, match="there is no launcher 'slrum'; did you mean 'slurm'"):
        find_launcher("slrum")


def test_a_launcher_of_another_kind_is_an_error(make_dist):
    make_dist(
        "axl-acme",
        "from axcore.plugins import JobLauncher, Ref, hook\n"
        "@hook.launchers\n"
        "def launchers():\n"
        "    config = Ref('axcore.launch:Job')\n"
        "    yield JobLauncher(name='grid', config=config, summary='A grid')\n",
    )
    assert plugin_host().plugin("axl-acme").trouble == ""
    with pytest.raises(
        PluginError, match=r"launcher 'grid' of plugin .*expected a subclass of axcore"
    ):
        launcher_class(find_launcher("grid"))
