"""`axcore launch`: start a training run on an engine, or show what the engine would be given."""

import subprocess
import sys
from typing import Any, TypeGuard

import attrs
import click

from axcore.cli import options
from axcore.config import apply_overrides, field_names
from axcore.errors import ConfigError, PluginError
from axcore.launch import Job, find_launcher
from axcore.launch.children import ProcessStart
from axcore.launch.job import Launcher, launcher_class
from axcore.launch.local import Local
from axcore.plugins import Hardware, JobLauncher, Modifier, plugin_host
from axcore.resilience.policy import Policy
from axcore.resilience.supervisor import Supervisor


class _LaunchCommand(click.Command):
    """A command whose help ends with the engines there are and the settings of each."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the engines, by name, with what `--option` takes for each."""
        with formatter.section("Engines"):
            formatter.write_dl([(record.name, _described(record)) for record in _engines()])


def _engines() -> tuple[JobLauncher, ...]:
    return plugin_host().records(JobLauncher)


def _described(record: JobLauncher) -> str:
    try:
        return f"{record.summary}: {', '.join(field_names(launcher_class(record)))}"
    except PluginError as error:
        return f"{record.summary} (broken: {error.what})"


@click.command(cls=_LaunchCommand, context_settings={"ignore_unknown_options": True})
@click.argument("engine")
@options.experiment
@click.argument("training", nargs=-1, type=click.UNPROCESSED)
@click.option("-n", "--processes", default=1, show_default=True, help="One a host, or all local.")
@click.option("--name", default="", help="Of the job; by default the experiment's.")
@click.option(
    "--option",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    help="A setting of the engine, such as partition or image. Repeatable.",
)
@click.option(
    "--supervise/--no-supervise",
    "supervises",
    default=None,
    help="Restart processes that die or hang. On by default for local runs of several processes.",
)
@click.option(
    "--policy",
    "policies",
    metavar="NAME=VALUE",
    multiple=True,
    help="Settings of the supervisor; see docs/reliability.md. Repeatable.",
)
@click.option(
    "--submit/--show",
    "submits",
    default=None,
    help="Submit the job to the engine, or print it. By default only local submits.",
)
def launch(
    engine: str,
    experiment: str,
    training: tuple[str, ...],
    processes: int,
    name: str,
    settings: tuple[str, ...],
    supervises: bool | None,
    policies: tuple[str, ...],
    submits: bool | None,
) -> None:
    """Start `axcore train EXPERIMENT` on ENGINE.

    Options that are not listed here are those of `axcore train`: --dir, --set, --modify, --target.
    They are checked before anything is started.
    """
    plugin_host().require_healthy()
    launcher = configured(find_launcher(engine), settings)
    job = Job.training((experiment, *training), processes=processes, name=name)
    policy: Policy = apply_overrides(Policy(), policies, set_in="--policy")
    if submits is not False and _is_supervised(launcher, processes, supervises):
        sys.exit(_supervise(launcher, job, policy))
    _check_training((experiment, *training))
    launcher.check(job)
    if launcher.is_local if submits is None else submits:
        sys.exit(launcher.launch(job))
    click.echo(launcher.render(job), nl=False)


def _is_supervised(launcher: Launcher, processes: int, wanted: bool | None) -> TypeGuard[Local]:
    """Whether processes run under a supervisor here.

    Raises:
        ConfigError: The user asked for it where there is none.
    """
    if wanted and not isinstance(launcher, Local):
        raise ConfigError(
            f"{type(launcher).__name__} runs have no supervisor yet",
            where="--supervise",
            hint="leave it out: the engine starts all processes again where one fails",
        )
    return isinstance(launcher, Local) and (processes > 1 if wanted is None else wanted)


def _supervise(launcher: Local, job: Job, policy: Policy) -> int:
    """Return the exit code of a supervised run; another process checks it, so none of jax stays.

    The check is this command with `--show`, which prints what is wrong and exits as this would.
    """
    check = [sys.executable, "-m", "axcore", "launch", "local", *job.command[2:], "--show"]
    checked = subprocess.run(check, stdout=subprocess.DEVNULL, check=False)
    if checked.returncode:
        return checked.returncode

    def starts(left_out: int) -> list[ProcessStart]:
        return launcher.starts(attrs.evolve(job, processes=job.processes - left_out))

    return Supervisor(starts, job.run_directory, policy).run()


def configured(record: JobLauncher, settings: tuple[str, ...]) -> Launcher:
    """Return a launcher with `NAME=VALUE` texts put in.

    Raises:
        ConfigError: A field does not exist, or a value is not of its type.
    """
    launcher: Launcher = apply_overrides(launcher_class(record)(), settings, set_in="--option")
    return launcher


def _check_training(arguments: tuple[str, ...]) -> None:
    """Check the arguments of `axcore train` as far as can be without its hardware.

    Raises:
        ConfigError: The experiment or a change of it is unknown, or does not fit.
        PluginError: The target is unknown.
        click.UsageError: An option is none of that command's.
    """
    from axcore.cli.train import train
    from axcore.experiments.named import load_experiment, load_resolved

    with train.make_context("axcore train", list(arguments)) as context:
        given: dict[str, Any] = context.params
    experiment, overrides, changes = given["experiment"], given["overrides"], given["changes"]
    if given["target"]:
        hardware = Hardware.parse(given["target"])
        load_resolved(experiment, overrides, changes=changes, hardware=hardware)
    else:
        changes = [one for one in changes if not _is_modifier(one)]
        load_experiment(experiment, overrides, changes=changes)


def _is_modifier(change: str) -> bool:
    """Whether a change is made for some hardware, and so cannot be tried without its name."""
    from axcore.modifiers import find_change  # loads jax, which a supervisor does without

    return isinstance(find_change(change), Modifier)
