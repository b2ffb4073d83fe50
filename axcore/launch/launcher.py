"""`Launcher`: what every way to start a run has in common."""

from typing import ClassVar

from axcore.config import config, suggest_names
from axcore.errors import ConfigError
from axcore.launch.job import Job
from axcore.plugins import JobLauncher, plugin_host


@config
class Launcher:
    """Starts jobs on one engine; a subclass has a field for each thing the engine wants to know.

    `is_local` says that a job runs here and at once; other engines are asked by `--submit` only.
    """

    is_local: ClassVar[bool] = False

    def render(self, job: Job) -> str:
        """Returns what the engine is given, as people read it and keep it; it ends in a newline."""
        raise NotImplementedError

    def launch(self, job: Job) -> int:
        """Gives the job to the engine; returns the exit code.

        Raises:
            ProcessError: The engine is not here, or refused the job.
        """
        raise NotImplementedError

    def check(self, job: Job) -> None:
        """Looks for what the engine would refuse.

        Raises:
            ConfigError: Naming the fields that are wrong.
        """


def find_launcher(name: str) -> JobLauncher:
    """Returns the record of a launcher.

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
    """Returns the config class of a record.

    Raises:
        PluginError: It is no subclass of `Launcher`.
    """
    made = record.config.resolve()
    if not (isinstance(made, type) and issubclass(made, Launcher)):
        raise record.wrong_field("config", made, "a subclass of axcore.launch.Launcher")
    return made
