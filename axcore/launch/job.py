"""`Job`, what a launcher starts, and `Launcher`, what every way to start a run has in common."""

import re
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs
import yaml

from axcore.config import config, suggest_names
from axcore.errors import ConfigError, ProcessError
from axcore.plugins import JobLauncher, plugin_host


def _positive(job: "Job", attribute: "attrs.Attribute[int]", value: int) -> None:
    if value < 1:
        raise ConfigError(
            f"a run has {value} processes; expected 1 or more", where="--processes", hint="-n 1"
        )


@attrs.frozen(kw_only=True)
class Job:
    """One command, run once for each process of a run.

    Args:
        name: Small letters, digits and dashes, as every engine takes it.
        command: Program and arguments, the same in every process.
        processes: How many; one on each host, but for engines that have one host.
    """

    name: str
    command: tuple[str, ...]
    processes: int = attrs.field(default=1, validator=_positive)

    @classmethod
    def training(cls, arguments: tuple[str, ...], *, processes: int, name: str = "") -> "Job":
        """Return the job of `axcore train` with some arguments, the experiment first.

        Raises:
            ConfigError: There are no processes.
        """
        text = name or Path(arguments[0]).stem
        label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
        # Forty letters: Kubernetes adds a suffix for each pod, and names of hosts end at 63.
        command = ("axcore", "train", *_with_launch_id(arguments))
        return cls(name=f"{label}"[:40] or "run", command=command, processes=processes)

    @classmethod
    def supervised(
        cls,
        arguments: tuple[str, ...],
        *,
        processes: int,
        spare_hosts: int = 0,
        policies: tuple[str, ...] = (),
        name: str = "",
    ) -> "Job":
        """Return the job of an `axcore agent` on each host, which start the same training.

        Args:
            arguments: Of `axcore train`, the experiment first.
            processes: Hosts that train at a time.
            spare_hosts: Hosts that wait to replace one of them.
            policies: Settings of the agents' policy, as `NAME=VALUE`.
            name: Of the job; by default the experiment's.

        Raises:
            ConfigError: There are no processes.
        """
        training = cls.training(arguments, processes=processes, name=name)
        wanted = ("-n", str(processes)) if spare_hosts else ()
        settings = (word for one in policies for word in ("--policy", one))
        command = ("axcore", "agent", *training.command[2:], *wanted, *settings)
        return attrs.evolve(training, command=command, processes=processes + spare_hosts)

    @property
    def is_supervised(self) -> bool:
        """Whether agents of axcore run on the hosts, which need a secret of their launch."""
        return self.command[:2] == ("axcore", "agent")

    @property
    def directory(self) -> str | None:
        """The run directory that the command names; None where it names none."""
        for word, following in zip(self.command, (*self.command[1:], ""), strict=True):
            if word == "--dir":
                return following
            if word.startswith("--dir="):
                return word.removeprefix("--dir=")
        return None

    @property
    def run_directory(self) -> Path:
        """The run directory of a job of `axcore train`."""
        return Path(self.directory or default_run_directory(self.command[2]))

    @property
    def shell_line(self) -> str:
        """The command as a shell reads it."""
        return shlex.join(self.command)


def experiment_label(experiment: str) -> str:
    """Return what an experiment is called: its name, or that of its file without the suffix."""
    path = Path(experiment)
    # A name may have a dot, as llama3.1-8b: only what is read as a file has a suffix.
    return path.stem if path.suffix in (".json", ".yaml", ".yml") else path.name


def default_run_directory(experiment: str) -> str:
    """Return where `axcore train` keeps a run whose directory nobody named."""
    return str(Path("runs") / experiment_label(experiment))


_OPTION = "--launch-id"


def _with_launch_id(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return arguments of `axcore train` that name this launch, where a restart must know it."""
    named = {one.partition("=")[0] for one in arguments}
    # Only where a restart would otherwise go back
    # again; all other commands stay as they were typed.
    is_wanted = "--from-step" in named and _OPTION not in named
    return (*arguments, *((_OPTION, secrets.token_hex(4)) if is_wanted else ()))


def launch_of(launch_id: str, environment: Mapping[str, str]) -> str:
    """Return the launch of this start; "" if it is of none.

    A script that is given to Slurm twice is two launches; a job that is requeued stays one.
    """
    job = environment.get("SLURM_JOB_ID")
    return f"{launch_id}-{job}" if launch_id and job else launch_id


@config
class Launcher:
    """A way to start jobs on one engine; a subclass has a field for each of the engine's settings.

    `is_local` says that a job runs here and at once; other engines are asked by `--submit` only.
    """

    is_local: ClassVar[bool] = False

    def render(self, job: Job) -> str:
        """Return what the engine is given, as people read it and keep it; it ends in a newline."""
        raise NotImplementedError

    def launch(self, job: Job) -> int:
        """Give the job to the engine; return the exit code.

        Raises:
            ProcessError: The engine is not installed, or refused the job.
        """
        raise NotImplementedError

    def check(self, job: Job) -> None:
        """Look for what the engine would refuse.

        Raises:
            ConfigError: Naming the fields that are wrong.
        """


def find_launcher(name: str) -> JobLauncher:
    """Return the record of a launcher.

    Raises:
        ConfigError: There is none of that name.
    """
    known = {record.name: record for record in plugin_host().records(JobLauncher)}
    if name not in known:
        raise ConfigError(
            f"there is no launcher {name!r}; {suggest_names(name, known)}",
            hint="`axcore launch --help` lists them; a plugin may bring others",
        )
    return known[name]


def launcher_class(record: JobLauncher) -> type[Launcher]:
    """Return the config class of a record.

    Raises:
        PluginError: It is not a subclass of `Launcher`.
    """
    made = record.config.resolve()
    if not (isinstance(made, type) and issubclass(made, Launcher)):
        raise record.wrong_field("config", made, "a subclass of axcore.launch.Launcher")
    return made


def submit(command: Sequence[str], text: str) -> int:
    """Run a program with some text as its input; what it prints goes where ours goes.

    Returns:
        Its exit code, 0.

    Raises:
        ProcessError: The program is not installed, or refused the text.
    """
    if shutil.which(command[0]) is None:
        raise ProcessError(
            f"there is no {command[0]!r} on this machine",
            where="--submit",
            hint=f"install it, or leave --submit out and give what is printed to {command[0]} "
            "where it is",
        )
    done = subprocess.run(list(command), input=text, text=True, check=False)
    if done.returncode:
        raise ProcessError(
            f"{' '.join(command)} ended with {done.returncode}",
            where="--submit",
            hint="see what it says above; leave --submit out to see what it was given",
        )
    return done.returncode


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def yaml_text(values: Any) -> str:
    """Return values as YAML, in their own order."""
    return str(yaml.dump(values, Dumper=_Dumper, sort_keys=False, width=1000))
