"""`Job`: what a launcher starts, on any engine."""

import re
import shlex
from pathlib import Path

import attrs

from axcore.errors import ConfigError
from axcore.launch.launch_id import with_launch_id


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
        """Returns the job of `axcore train` with some arguments, the experiment first.

        Raises:
            ConfigError: There are no processes.
        """
        text = name or Path(arguments[0]).stem
        label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
        command = ("axcore", "train", *with_launch_id(arguments))
        return cls(name=f"{label}"[:40] or "run", command=command, processes=processes)

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


def default_run_directory(experiment: str) -> str:
    """Returns where `axcore train` keeps a run whose directory nobody named."""
    return str(Path("runs") / Path(experiment).stem)
