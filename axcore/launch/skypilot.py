"""SkyPilot: a task for machines of any cloud."""

import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any

from axcore.config import config
from axcore.launch.job import Job, Launcher, submit, yaml_text
from axcore.launch.process_info import PORT, SECRET_VARIABLE, ProcessInfo, integer

_RANK, _COUNT, _IPS = "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_IPS"


@config
class SkyPilot(Launcher):
    """A task for `sky`: as many nodes as the run has processes.

    Args:
        accelerators: Name and number on each node, as SkyPilot writes them: `NAME:8`. Of several,
            SkyPilot takes the first that it gets, as of an order that `axcore plan` found.
        infra: Cloud, region or cluster to use; SkyPilot chooses where left out.
        use_spot: Whether nodes may be taken back at any time; then use `sky jobs`.
        managed: Whether SkyPilot's controller watches the job and starts it again when nodes are
            taken back (`sky jobs launch`), instead of `sky launch`.
        setup: Lines of shell that install axcore and the plugins on a node.
        bucket: A bucket to mount, as `s3://name`, so that all nodes share run directories.
        mount: Where the bucket is on a node; runs belong below it.
        environment: Variables of every process.
    """

    accelerators: str | tuple[str, ...] | None = None
    infra: str | None = None
    use_spot: bool = False
    managed: bool = False
    setup: tuple[str, ...] = ("pip install axcore",)
    bucket: str | None = None
    mount: str = "/runs"
    environment: Mapping[str, str] = {}

    def render(self, job: Job) -> str:
        """Return the task as YAML."""
        return yaml_text(self.task(job))

    def launch(self, job: Job) -> int:
        """Give the task to `sky launch`, or to `sky jobs launch`."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{job.name}.yaml"
            file.write_text(self.render(job), encoding="utf-8")
            command = ["sky", "jobs", "launch"] if self.managed else ["sky", "launch"]
            return submit([*command, "--yes", "--name", job.name, str(file)], "")

    def task(self, job: Job) -> dict[str, Any]:
        """Return the task as values."""
        one = self.accelerators if isinstance(self.accelerators, str) else None
        several = () if one else self.accelerators or ()
        resources = {
            "accelerators": one,
            "ordered": [{"accelerators": name} for name in several] or None,
            "infra": self.infra,
            "use_spot": self.use_spot or None,
        }
        given = {name: value for name, value in resources.items() if value is not None}
        return {
            "name": job.name,
            "num_nodes": job.processes,
            **({"resources": given} if given else {}),
            **({"envs": dict(self.environment)} if self.environment else {}),
            **({"secrets": {SECRET_VARIABLE: token_hex(16)}} if job.is_supervised else {}),
            **({"file_mounts": {self.mount: self._bucket()}} if self.bucket else {}),
            "setup": "\n".join(self.setup) + "\n",
            "run": shlex.join(job.command) + "\n",
        }

    def _bucket(self) -> dict[str, str | None]:
        return {"source": self.bucket, "mode": "MOUNT"}


def skypilot_process_info(environment: Mapping[str, str]) -> ProcessInfo | None:
    """Return the place of a node of a task; None where the task has one node."""
    if environment.get(_COUNT, "1") == "1":
        return None
    (first, *_) = environment.get(_IPS, "").split() or [""]
    return ProcessInfo(
        coordinator=f"{first}:{PORT}",
        process_count=integer(environment, _COUNT),
        process_index=integer(environment, _RANK),
        source="SkyPilot",
    )
