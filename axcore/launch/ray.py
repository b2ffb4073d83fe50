"""Ray: an actor for each process of a run; all start again where one is lost."""

import contextlib
import importlib
import os
import secrets
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from axcore.config import NonNegativeInt, config
from axcore.errors import ConfigError, ProcessError
from axcore.launch.children import MAY_PASS, Child, ProcessStart, StopRequests, shell_exit_code
from axcore.launch.job import Job, Launcher, yaml_text
from axcore.launch.local import found, free_port, mark_of
from axcore.launch.process_info import COORDINATOR, NUM_PROCESSES, PROCESS_ID, SECRET_VARIABLE

_POLL_S = 0.2

# A process that outlives its killed actor keeps its devices, and Ray gives them to the
# next attempt. `exec` keeps the request: it is for the process, not for the program.
_DYING_WITH_ACTOR = """\
import ctypes, os, sys
PR_SET_PDEATHSIG, SIGKILL = 1, 9
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
os.execvp(sys.argv[1], sys.argv[1:])
"""


@config
class Ray(Launcher):
    """A job on a Ray cluster, followed until it ends.

    If a process or an actor is lost, all processes start again, up to `restarts` times; the run
    resumes from its last checkpoint, so all nodes have to see its directory.

    Args:
        address: Of the cluster; Ray's own choice where left out, a new one on this machine at last.
        resources: What Ray reserves for each process: `num_cpus` and others of Ray's own, as
            `ray.remote` takes them, and resources that nodes name.
        environment: Variables of every process.
        restarts: How often all processes are started again.
        grace_s: Seconds that the others have to end by themselves after one has failed.
    """

    address: str | None = None
    resources: Mapping[str, float] = {"num_cpus": 1.0}
    environment: Mapping[str, str] = {}
    restarts: NonNegativeInt = 10
    grace_s: float = 5.0

    def check(self, job: Job) -> None:
        """Look for a run directory that actors, each in a directory of its own, would not share.

        Raises:
            ConfigError: It is not an absolute path.
        """
        if not job.run_directory.is_absolute():
            raise ConfigError(
                f"the run directory {str(job.run_directory)!r} is not the same in all processes",
                where="--dir",
                hint=f"--dir /shared/{job.name}, a place that all nodes see",
            )

    def render(self, job: Job) -> str:
        """Return what Ray is asked for, as YAML."""
        return yaml_text(
            {
                "name": job.name,
                **({"address": self.address} if self.address else {}),
                "actors": job.processes,
                "resources": dict(self.resources),
                **({"environment": dict(self.environment)} if self.environment else {}),
                "restarts": self.restarts,
                "command": job.shell_line,
            }
        )

    def launch(self, job: Job) -> int:
        """Run the job to its end; return the exit code of the process that failed first."""
        with _connected(self.address) as ray, StopRequests() as stop:
            for left in range(self.restarts, -1, -1):
                code = self._attempt(ray, job, stop)
                if code not in MAY_PASS or stop.count or not left:
                    break
                print(
                    f"exit code {code}: all processes start again, {left} restarts left",
                    file=sys.stderr,
                )
            return code

    def _attempt(self, ray: Any, job: Job, stop: StopRequests) -> int:
        try:
            with self._actors(ray, job) as actors:
                started = zip(actors, self._variables(ray, job, actors), strict=True)
                running = [
                    actor.run.remote(job.command, variables, mark_of(index, job.processes))
                    for index, (actor, variables) in enumerate(started)
                ]
                return self._wait(ray, job, actors, running, stop)
        except ray.exceptions.RayActorError as error:
            print(f"an actor was lost: {str(error).splitlines()[0]}", file=sys.stderr)
            return ProcessError.exit_code

    @contextlib.contextmanager
    def _actors(self, ray: Any, job: Job) -> Iterator[Sequence[Any]]:
        """Reserve what all processes need, at once, and end them and their actors at last."""
        own, named = _divided(self.resources)
        bundle = {**{_bundle_name(name): amount for name, amount in own.items()}, **named}
        # One placement group: where actors are placed one by one, two jobs could each get half of
        # what they need, and both would wait forever.
        bundles = [bundle] * job.processes
        # SPREAD, as each process is to have a host's accelerators to itself.
        group = ray.util.placement_group(bundles, strategy="SPREAD", name=job.name)
        ray.get(group.ready())
        placed = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        actors = [
            ray.remote(_ProcessActor)
            .options(
                max_concurrency=2,  # a signal gets through while the process runs
                # An agent that starts again joins the others, as no single trainer could.
                max_restarts=self.restarts if job.is_supervised else 0,
                max_task_retries=self.restarts if job.is_supervised else 0,
                **own,
                resources=named,
                scheduling_strategy=placed(group, placement_group_bundle_index=index),
            )
            .remote()
            for index in range(job.processes)
        ]
        try:
            yield actors
        finally:
            # An actor that is killed leaves its process behind, so it is asked to end it first,
            # within a limit, since its node may be gone.
            ended = [actor.end.remote() for actor in actors]
            ray.wait(ended, num_returns=len(ended), timeout=60)
            ray.util.remove_placement_group(group)

    def _variables(self, ray: Any, job: Job, actors: Sequence[Any]) -> list[dict[str, str]]:
        secret = {SECRET_VARIABLE: secrets.token_hex(16)} if job.is_supervised else {}
        if job.processes == 1:
            return [{**self.environment, **secret}]
        several = {
            **secret,
            **self.environment,
            # Asked for on the node of the first process, which is where it has to be free.
            COORDINATOR: ray.get(actors[0].free_address.remote()),
            NUM_PROCESSES: str(job.processes),
        }
        return [{**several, PROCESS_ID: str(index)} for index in range(job.processes)]

    def _wait(
        self, ray: Any, job: Job, actors: Sequence[Any], running: list[Any], stop: StopRequests
    ) -> int:
        """Return the first exit code that is not 0; the others have ended by then, or had time.

        Agents are waited for until the last one has ended, whose code is that of the run.
        """
        passed_on = last = 0
        while running:
            done, running = ray.wait(running, timeout=_POLL_S)
            if stop.count > passed_on:
                passed_on = stop.count
                for actor in actors:
                    actor.send.remote(signal.SIGTERM if passed_on == 1 else signal.SIGKILL)
            if job.is_supervised:
                for one in done:
                    last = self._code_of_agent(ray, one)
                continue
            code = next(filter(None, ray.get(done)), 0)
            if code:
                ray.wait(running, num_returns=len(running), timeout=self.grace_s)
                return code
        return last

    @staticmethod
    def _code_of_agent(ray: Any, ended: Any) -> int:
        try:
            return int(ray.get(ended))
        except ray.exceptions.RayActorError as error:
            print(f"an actor was lost for good: {str(error).splitlines()[0]}", file=sys.stderr)
            return ProcessError.exit_code


class _ProcessActor:
    """One process of a run on a node, which dies with it."""

    def __init__(self) -> None:
        self._child: Child | None = None

    def free_address(self) -> str:
        """Return `host:port` of a port that is free on this node."""
        return f"{importlib.import_module('ray').util.get_node_ip_address()}:{free_port()}"

    def run(self, command: tuple[str, ...], variables: Mapping[str, str], mark: str) -> int:
        """Run a command to its end; return its exit code."""
        dying = (sys.executable, "-c", _DYING_WITH_ACTOR, *found(command))
        start = ProcessStart(command=dying, environment={**os.environ, **variables})
        self._child = Child(start, 0, mark)
        while not self._child.wait(_POLL_S):
            pass
        code = self._child.exit_code() or 0
        self._child.end()
        return shell_exit_code(code)

    def send(self, number: int) -> None:
        """Send the process a signal."""
        if self._child is not None:
            self._child.send(number)

    def end(self) -> None:
        """Kill the process, if it lives."""
        if self._child is not None:
            self._child.end()


def _divided(resources: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Return what `ray.remote` has arguments for, and the resources that nodes name."""
    own = {name: amount for name, amount in resources.items() if name.startswith("num_")}
    return own, {name: amount for name, amount in resources.items() if name not in own}


def _bundle_name(argument: str) -> str:
    """Return what a placement group calls an argument of `ray.remote`: CPU for `num_cpus`."""
    return argument.removeprefix("num_").removesuffix("s").upper()


@contextlib.contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Give Ray, connected to a cluster for as long as the context lasts.

    Raises:
        ProcessError: Ray is not installed, or there is no cluster at the address.
    """
    try:
        ray: Any = importlib.import_module("ray")
        importlib.import_module("ray.util.scheduling_strategies")
    except ImportError as error:
        raise ProcessError(
            f"Ray cannot be imported: {error}",
            where="launch ray",
            hint='pip install "axcore[ray]"; Ray may not support this version of Python yet',
        ) from error
    try:
        ray.init(address=address)
    except ConnectionError as error:
        raise ProcessError(
            f"no Ray cluster answers: {error}",
            where="--option address",
            hint="start one by `ray start --head`, or leave address out",
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()
