"""`axcore launch`: start a training run on an engine, or show what the engine would be given."""

import subprocess
import sys
from typing import Any

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
from axcore.resilience.supervisor import OnThisMachine, Supervisor


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
    help="Restart processes that die or hang: by a supervisor here, or by an agent on each host of "
    "an engine. On by default for local runs of several processes.",
)
@click.option(
    "--spare-hosts",
    type=click.IntRange(min=0),
    default=0,
    help="Hosts that wait to replace one that is lost; with --supervise.",
)
@options.policies
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
    spare_hosts: int,
    policies: tuple[str, ...],
    submits: bool | None,
) -> None:
    """Start `axcore train EXPERIMENT` on ENGINE.

    Options that are not listed here are those of `axcore train`: --dir, --set, --modify, --target.
    They are checked before anything is started.
    """
    plugin_host().require_healthy()
    launcher = configured(find_launcher(engine), settings)
    arguments = (experiment, *training)
    job = Job.training(arguments, processes=processes, name=name)
    policy: Policy = apply_overrides(Policy(), policies, set_in="--policy")
    is_supervised = (launcher.is_local and processes > 1) if supervises is None else supervises
    if (policies or spare_hosts) and not is_supervised:
        raise ConfigError(
            "nobody supervises this run, and so nobody reads "
            + ("--policy" if policies else "--spare-hosts"),
            where="--supervise",
            hint="add --supervise",
        )
    if isinstance(launcher, Local):
        if spare_hosts:
            raise ConfigError(
                "a local run has one host, and no other to replace it",
                where="--spare-hosts",
                hint="leave it out",
            )
        if submits is not False and is_supervised:
            sys.exit(_supervise(launcher, job, policy))
    elif is_supervised:
        job = Job.supervised(
            arguments, processes=processes, spare_hosts=spare_hosts, policies=policies, name=name
        )
    check_training(arguments)
    launcher.check(job)
    if launcher.is_local if submits is None else submits:
        sys.exit(launcher.launch(job))
    click.echo(launcher.render(job), nl=False)


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

    return Supervisor(OnThisMachine(starts), job.run_directory, policy).run()


def configured(record: JobLauncher, settings: tuple[str, ...]) -> Launcher:
    """Return a launcher with `NAME=VALUE` texts put in.

    Raises:
        ConfigError: A field does not exist, or a value is not of its type.
    """
    launcher: Launcher = apply_overrides(launcher_class(record)(), settings, set_in="--option")
    return launcher


def check_training(arguments: tuple[str, ...]) -> None:
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
