"""Kubernetes: a JobSet whose pods are the processes of one run."""

import posixpath
from collections.abc import Mapping
from secrets import token_hex
from typing import Any

from axcore.config import REQUIRED, config
from axcore.errors import ConfigError
from axcore.launch.children import MAY_PASS
from axcore.launch.job import Job, Launcher, submit, yaml_text
from axcore.launch.process_info import (
    COORDINATOR,
    NUM_PROCESSES,
    PORT,
    SECRET_VARIABLE,
    ProcessInfo,
    integer,
)

_INDEX = "JOB_COMPLETION_INDEX"
_WORKERS = "workers"


@config
class Kubernetes(Launcher):
    """A JobSet: one indexed job, a pod for each process, names by which they find each other.

    If a pod fails, all pods start again, up to `restarts` times; the run resumes from its last
    checkpoint, so its directory has to be on a volume that all pods share.

    Args:
        image: Of the container; it has axcore and the plugins installed.
        volume_claim: A claim that many pods may write to.
        mount: Where the volume is in the container; runs belong below it.
        resources: What each pod asks for, as `{"cpu": "8", "memory": "64Gi"}`; accelerators go by
            the names that their device plugins give them.
        node_selector: Labels of nodes that pods may run on.
        environment: Variables of every process.
        namespace: Of the JobSet; the client's own where left out.
        restarts: How often all pods are started again.
        grace_s: Seconds between the request to stop and the end.
    """

    image: str = REQUIRED
    volume_claim: str = REQUIRED
    mount: str = "/runs"
    resources: Mapping[str, str] = {}
    node_selector: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}
    namespace: str | None = None
    restarts: int = 10
    grace_s: int = 300

    def check(self, job: Job) -> None:
        """Look for what is missing, and for a run directory that pods would not share."""
        missing = [name for name in ("image", "volume_claim") if getattr(self, name) is REQUIRED]
        if missing:
            raise ConfigError(
                f"{' and '.join(missing)} not given",
                where="--option",
                hint=" ".join(f"--option {name}=..." for name in missing),
            )
        directory = job.directory or "runs"
        if not _is_below(directory, self.mount):
            raise ConfigError(
                f"the run directory {directory!r} is not on the volume at {self.mount}",
                where="--dir",
                hint=f"--dir {self.mount.rstrip('/')}/{job.name}",
            )

    def render(self, job: Job) -> str:
        """Return the JobSet as YAML, behind the secret of its agents where it has any."""
        parts = [*([self._secret(job)] if job.is_supervised else []), self.job_set(job)]
        return "---\n".join(map(yaml_text, parts))

    def launch(self, job: Job) -> int:
        """Give the JobSet to `kubectl apply`."""
        return submit(["kubectl", "apply", "-f", "-"], self.render(job))

    def _secret(self, job: Job) -> dict[str, Any]:
        """Return the object from which all pods of the job read what their agents know."""
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": self._metadata(job),
            "stringData": {SECRET_VARIABLE: token_hex(16)},
        }

    def _metadata(self, job: Job) -> dict[str, str]:
        namespace = {} if self.namespace is None else {"namespace": self.namespace}
        return {"name": job.name, **namespace}

    def job_set(self, job: Job) -> dict[str, Any]:
        """Return the JobSet as values."""
        return {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": self._metadata(job),
            "spec": {
                # Pods find each other by names that stay the same when they are made again.
                "network": {"enableDNSHostnames": True, "subdomain": job.name},
                "failurePolicy": {
                    "maxRestarts": self.restarts,
                    "restartStrategy": "BlockingRecreate",  # no pod of before holds the directory
                    **({"rules": [_FAIL_FOR_GOOD]} if job.is_supervised else {}),
                },
                "replicatedJobs": [
                    {"name": _WORKERS, "replicas": 1, "template": {"spec": self._job(job)}}
                ],
            },
        }

    def _job(self, job: Job) -> dict[str, Any]:
        return {
            "completionMode": "Indexed",
            "completions": job.processes,
            "parallelism": job.processes,
            # A new pod next to old ones could not join their run by itself. An agent in it can.
            "backoffLimit": self.restarts * job.processes if job.is_supervised else 0,
            **({"podFailurePolicy": {"rules": [_FAIL_JOB]}} if job.is_supervised else {}),
            "template": {"spec": self._pod(job)},
        }

    def _pod(self, job: Job) -> dict[str, Any]:
        return {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": self.grace_s,
            **({"nodeSelector": dict(self.node_selector)} if self.node_selector else {}),
            "containers": [self._container(job)],
            "volumes": [
                {"name": "runs", "persistentVolumeClaim": {"claimName": self.volume_claim}}
            ],
        }

    def _container(self, job: Job) -> dict[str, Any]:
        # The name that a JobSet gives the first pod.
        first = f"{job.name}-{_WORKERS}-0-0.{job.name}"
        several = {COORDINATOR: f"{first}:{PORT}", NUM_PROCESSES: str(job.processes)}
        variables = {**self.environment, **(several if job.processes > 1 else {})}
        resources = dict(self.resources)
        return {
            "name": "axcore",
            "image": self.image,
            "command": [_literal(word) for word in job.command],
            "env": [
                *({"name": name, "value": value} for name, value in variables.items()),
                *([_secret_variable(job)] if job.is_supervised else []),
            ],
            "ports": [{"containerPort": PORT}],
            **({"resources": {"requests": resources, "limits": resources}} if resources else {}),
            "volumeMounts": [{"name": "runs", "mountPath": self.mount}],
        }


# Agents end with what another attempt would meet again: that fails the job and the set, while
# a pod that is lost is made again, and its agent joins the others.
_FAIL_JOB = {
    "action": "FailJob",
    "onExitCodes": {"operator": "NotIn", "values": list(MAY_PASS)},
}
_FAIL_FOR_GOOD = {
    "name": "ended",
    "action": "FailJobSet",
    "onJobFailureReasons": ["PodFailurePolicy"],
}


def _secret_variable(job: Job) -> dict[str, Any]:
    reference = {"name": job.name, "key": SECRET_VARIABLE}
    return {"name": SECRET_VARIABLE, "valueFrom": {"secretKeyRef": reference}}


def _is_below(directory: str, mount: str) -> bool:
    """Whether a directory, its `..` followed, is on the volume."""
    path, root = posixpath.normpath(directory), posixpath.normpath(mount)
    return f"{path}/".startswith(f"{root.rstrip('/')}/")


def _literal(word: str) -> str:
    """Return a word of a command as a container writes it; `$(NAME)` would be a variable there."""
    # Kubernetes replaces $(NAME) in commands, and $$ is how it writes a dollar.
    return word.replace("$", "$$")


def kubernetes_process_info(environment: Mapping[str, str]) -> ProcessInfo | None:
    """Return the place of a pod of an indexed job.

    The job gives the index; coordinator and number are variables of the pod, which the JobSet that
    the launcher renders sets. A pod without them is a run of its own.
    """
    if _INDEX not in environment or COORDINATOR not in environment:
        return None
    return ProcessInfo(
        coordinator=environment[COORDINATOR],
        process_count=integer(environment, NUM_PROCESSES),
        process_index=integer(environment, _INDEX),
        source="Kubernetes",
    )
