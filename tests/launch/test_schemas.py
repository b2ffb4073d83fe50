"""What is written for engines that are not available passes their own schemas."""

import importlib.util
import json
import subprocess
import sys

import jsonschema
import kubernetes_validate
import pytest
import yaml

from axcore.launch import Job
from axcore.launch.kubernetes import Kubernetes
from axcore.launch.skypilot import SkyPilot

KUBERNETES_VERSIONS = ("1.29", "1.33", kubernetes_validate.latest_version())
JOB = Job.training(("tiny", "--dir", "/runs/tiny", "--set", "prompt='a $(B)'"), processes=4)
PLAIN = Kubernetes(image="me/axcore", volume_claim="runs")
FULL = Kubernetes(
    image="me/axcore",
    volume_claim="runs",
    resources={"cpu": "8", "memory": "64Gi", "acme.com/chip": "8"},
    node_selector={"pool": "big"},
    environment={"GREETING": "hello"},
    namespace="team",
)

JOB_SET = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "jobset.x-k8s.io/v1alpha2"},
        "kind": {"const": "JobSet"},
        "metadata": {
            "type": "object",
            "additionalProperties": False,
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "namespace": {"type": "string"}},
        },
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "network": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "enableDNSHostnames": {"type": "boolean"},
                        "subdomain": {"type": "string"},
                        "publishNotReadyAddresses": {"type": "boolean"},
                    },
                },
                "failurePolicy": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "maxRestarts": {"type": "integer"},
                        "restartStrategy": {"enum": ["Recreate", "BlockingRecreate"]},
                        "rules": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "additionalProperties": False,
                                "required": ["name", "action"],
                                "properties": {
                                    "name": {"type": "string"},
                                    "action": {"enum": ["FailJobSet", "RestartJobSet"]},
                                    "onJobFailureReasons": {
                                        "type": "array",
                                        "items": {"enum": ["PodFailurePolicy"]},
                                    },
                                },
                            },
                        },
                    },
                },
                "replicatedJobs": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["name", "template"],
                        "properties": {
                            "name": {"type": "string"},
                            "replicas": {"type": "integer"},
                            "template": {"type": "object"},  # a Job's, checked as one
                        },
                    },
                },
            },
        },
    },
}
"""The fields of a JobSet that a run may use, and no others.

Source: kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go.
"""


def check(job_set, version):
    """Raises unless a JobSet and its Jobs have the fields that a version of Kubernetes knows."""
    jsonschema.validate(job_set, JOB_SET)
    for replicated in job_set["spec"]["replicatedJobs"]:
        head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "run"}}
        job = {**head, **replicated["template"]}
        kubernetes_validate.validate(job, version, strict=True)


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("launcher", [PLAIN, FULL], ids=["plain", "full"])
def test_a_job_set_and_its_pods_are_as_kubernetes_wants_them(launcher, version):
    check(yaml.safe_load(launcher.render(JOB)), version)


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("launcher", [PLAIN, FULL], ids=["plain", "full"])
def test_agents_share_a_secret_and_a_lost_pod_is_made_again_alone(launcher, version):
    job = Job.supervised(("tiny", "--dir", "/runs/tiny"), processes=3, spare_hosts=1)
    secret, job_set = yaml.safe_load_all(launcher.render(job))
    kubernetes_validate.validate(secret, version, strict=True)
    check(job_set, version)
    spec = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]
    variables = spec["template"]["spec"]["containers"][0]["env"]
    (value,) = secret["stringData"].values()
    assert variables[-1]["valueFrom"]["secretKeyRef"]["name"] == secret["metadata"]["name"]
    assert (len(value), value in yaml.safe_dump(job_set)) == (32, False)
    assert (spec["parallelism"], spec["backoffLimit"]) == (4, 40)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("restartPolicy: Never", "restartPolicyy: Never", "'restartPolicyy' was unexpected"),
        ("containerPort: 29400", "containerPort: high", "'high' is not of type"),
        ("value: hello", "value: 5", "5 is not of type"),
        ("backoffLimit", "backOffLimit", "'backOffLimit' was unexpected"),
        ("maxRestarts", "maxRestart", "'maxRestart' was unexpected"),
        ("BlockingRecreate", "Blocking", "'Blocking' is not one of"),
        ("enableDNSHostnames", "enableDnsHostnames", "'enableDnsHostnames' was unexpected"),
    ],
)
def test_the_schemas_find_what_is_wrong(old, new, why):
    text = FULL.render(JOB)
    assert old in text
    wrong = yaml.safe_load(text.replace(old, new))
    errors = (jsonschema.ValidationError, kubernetes_validate.ValidationError)
    with pytest.raises(errors, match=why):
        check(wrong, KUBERNETES_VERSIONS[-1])


READ_TASK = """
import json, sys, sky
task = sky.Task.from_yaml(sys.argv[1])
resources = list(task.resources)
mounts = {place: storage.source for place, storage in task.storage_mounts.items()}
accelerators = [one.accelerators for one in resources]
print(json.dumps([task.name, task.num_nodes, task.run, accelerators, mounts]))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("sky") is None, reason="no SkyPilot: pip install skypilot"
)
@pytest.mark.parametrize("accelerators", [("H100:8",), ("H100:8", "A100-80GB:8")])
def test_skypilot_reads_the_task(tmp_path, accelerators):
    launcher = SkyPilot(
        accelerators=accelerators if accelerators[1:] else accelerators[0],
        infra="aws",
        use_spot=True,
        environment={"A": "b"},
        bucket="s3://runs",
    )
    (tmp_path / "task.yaml").write_text(launcher.render(JOB), encoding="utf-8")
    command = [sys.executable, "-c", READ_TASK, tmp_path / "task.yaml"]
    read = subprocess.run(command, capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
    name, nodes, run, read_accelerators, mounts = json.loads(read.stdout.splitlines()[-1])
    assert (name, nodes, run) == ("tiny", 4, JOB.shell_line + "\n")
    assert read_accelerators == [{one.partition(":")[0]: 8} for one in accelerators]
    assert mounts == {"/runs": "s3://runs"}
