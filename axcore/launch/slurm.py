"""Slurm: a batch script with one process on each node."""

import re
import shlex
from collections.abc import Mapping

from axcore.config import NonNegativeInt, config
from axcore.errors import ConfigError
from axcore.launch.children import MAY_PASS
from axcore.launch.job import Job, Launcher, submit
from axcore.launch.process_info import SECRET_VARIABLE, ProcessInfo, integer

_FIRST_PORT = 20000
_NUM_PORTS = 12000  # below the ports that systems hand out to anybody

_OPTION = re.compile(r"[a-z][a-z-]*")

_SECRET = f"export {SECRET_VARIABLE}=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')"

_RESTARTING = """\
for ((left = {restarts}; ; left--)); do
  {srun} && exit
  code=$?
  case $code in
    {may_pass}) ((left > 0)) || exit $code ;;
    *) exit $code ;;
  esac
  echo "exit code $code: all processes start again, $left restarts left" >&2
done
"""


@config
class Slurm(Launcher):
    """A script for `sbatch`.

    If a process is lost, the script starts all processes again on the same nodes, up to `restarts`
    times. A node that fails, and a run that is preempted, put the job back into the queue. The run
    resumes from its last checkpoint.

    Args:
        partition: Where to run; Slurm's default where left out.
        account: Who pays.
        gres: What each node is to have, as Slurm writes it.
        cpus: Processors of each node that the run may use; Slurm's default, often one, where left
            out and `options` says nothing of them, as `exclusive` does.
        options: More options of `sbatch` by their long names, `{"mem": "0", "exclusive": ""}`; an
            empty value is an option without one.
        time: Limit of the job, as Slurm writes it: minutes, or `days-hours`.
        setup: Lines of shell before the run, `module load` or `source venv/bin/activate`.
        restarts: How often the script starts all processes again.
        grace_s: Seconds before the end at which processes are asked to save and stop.
    """

    partition: str | None = None
    account: str | None = None
    gres: str | None = None
    cpus: int | None = None
    options: Mapping[str, str] = {}
    time: str | None = None
    setup: tuple[str, ...] = ()
    restarts: NonNegativeInt = 10
    grace_s: int = 300

    def check(self, job: Job) -> None:
        """Look for options that are none, or that the script sets itself."""
        own = dict(self._own_options(job))
        problems = [
            f"options names {name!r}; "
            + ("the launcher sets it" if name in own else "expected a long option without dashes")
            for name in self.options
            if name in own or not _OPTION.fullmatch(name)
        ]
        if problems:
            raise ConfigError("\n".join(problems), where="options", hint="leave those out")
        self._directives(job)

    def render(self, job: Job) -> str:
        """Return the script.

        Raises:
            ConfigError: A value would be more than its own line of the script.
        """
        lines = [
            "#!/bin/bash",
            *self._directives(job),
            "",
            "set -euo pipefail",
            *self.setup,
            # Made where the job runs, so that it is in no file; `srun` hands it on.
            *([_SECRET] if job.is_supervised else []),
        ]
        return "\n".join(lines) + "\n" + self._restarting(job)

    def launch(self, job: Job) -> int:
        """Give the script to `sbatch`."""
        return submit(["sbatch"], self.render(job))

    def _restarting(self, job: Job) -> str:
        # Without it a step whose process fails waits for the others, which wait for that process.
        # Agents do not: those that are left continue, and find the step's end together.
        kills = f"--kill-on-bad-exit={int(not job.is_supervised)}"
        srun = f"srun {kills} --label{self._cpus()} {job.shell_line}"
        may_pass = " | ".join(map(str, MAY_PASS))
        return _RESTARTING.format(restarts=self.restarts, srun=srun, may_pass=may_pass)

    def _cpus(self) -> str:
        """Return the options that a step does not inherit from its job."""
        # Since Slurm 22.05 `srun` no longer inherits them from `sbatch`.
        return "" if self.cpus is None else f" --cpus-per-task={self.cpus}"

    def _directives(self, job: Job) -> list[str]:
        options = [*self._own_options(job), *self.options.items()]
        return [_directive(name, value) for name, value in options]

    def _own_options(self, job: Job) -> list[tuple[str, str]]:
        named = {name: getattr(self, name) for name in ("partition", "account", "gres", "time")}
        return [
            ("job-name", job.name),
            ("nodes", str(job.processes)),
            # One process for each host; it drives all its devices.
            ("ntasks-per-node", "1"),
            *((name, value) for name, value in named.items() if value is not None),
            *([("cpus-per-task", str(self.cpus))] if self.cpus is not None else []),
            # To every step of the job, `grace_s` before the end; not to
            # the batch script, which would end without its processes.
            ("signal", f"TERM@{self.grace_s}"),
            # A node that fails puts the job back into the queue, and the run resumes.
            ("requeue", ""),
            # After a requeue the log must continue, or what happened before is lost.
            ("open-mode", "append"),
        ]


def _directive(name: str, value: str) -> str:
    if not (name.isprintable() and value.isprintable()):
        raise ConfigError(
            f"{name!r} is {value!r}; a newline or control character would write lines of its own "
            "into the script",
            where="--option",
            hint="give a value of one printable line",
        )
    return f"#SBATCH --{name}={shlex.quote(value)}" if value else f"#SBATCH --{name}"


def slurm_process_info(environment: Mapping[str, str]) -> ProcessInfo | None:
    """Return the place of a task of `srun`; None outside of a step of several tasks.

    A batch script itself is not a step, so what it runs without `srun` is a run of one process.
    """
    # A step of one task is a run of its own, and need not find anybody.
    if environment.get("SLURM_STEP_NUM_TASKS", "1") == "1":
        return None
    job, step = (integer(environment, f"SLURM_{name}_ID") for name in ("JOB", "STEP"))
    # The port is a function of the step, so that all tasks agree without talking, and two steps on
    # one node seldom collide.
    host = first_host(environment.get("SLURM_STEP_NODELIST", ""))
    return ProcessInfo(
        coordinator=f"{host}:{_FIRST_PORT + (job + step) % _NUM_PORTS}",
        process_count=integer(environment, "SLURM_STEP_NUM_TASKS"),
        process_index=integer(environment, "SLURM_PROCID"),
        source="Slurm",
    )


def first_host(hosts: str) -> str:
    """Return the first of Slurm's list of hosts: `node-07` of `node-[07-09,12],other`.

    Raises:
        ConfigError: The list is empty.
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", hosts)
    if first is None:
        raise ConfigError(
            f"SLURM_STEP_NODELIST is {hosts!r}; expected names of hosts",
            where="environment",
            hint="start processes by srun, or name --coordinator",
        )
    # The first name of a range: its numbers may have leading zeros, which stay.
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0])
