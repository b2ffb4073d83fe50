"""`axcore sweep`: train an experiment for every combination of some settings."""

import json
import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from axcore.cli import options
from axcore.cli.interrupts import INTERRUPTED
from axcore.errors import ConfigError
from axcore.plugins import plugin_host
from axcore.report.table import columns

if TYPE_CHECKING:
    from axcore.runs.sweep import Sweep, Trial

_DEFAULT_METRIC = "validation/loss"


@click.command()
@options.experiment
@click.option(
    "--over",
    metavar="PATH=VALUES",
    multiple=True,
    help="A setting to vary: PATH=V1,V2,... or PATH=LOW..HIGH:N for N values at equal ratios. "
    "Repeatable; all combinations are trained.",
)
@click.option(
    "--over-modify",
    metavar="MODIFIER",
    multiple=True,
    help="A modifier to compare with the others that are given so; `none` is the experiment "
    "without one.",
)
@click.option(
    "--seeds", type=click.IntRange(min=1), help="Train each with N seeds, and report the mean."
)
@click.option(
    "--random", "max_trials", metavar="N", type=click.IntRange(min=1), help="N combinations only."
)
@click.option("--dir", "directory", metavar="DIR", help="By default runs/EXPERIMENT-sweep.")
@click.option(
    "--jobs", default=1, show_default=True, type=click.IntRange(min=1), help="Trials at a time."
)
@click.option(
    "--metric",
    default=_DEFAULT_METRIC,
    show_default=True,
    metavar="SPLIT/NAME",
    help="What is compared, of metrics.jsonl.",
)
@click.option("--higher-is-better", is_flag=True, help="The largest value is the best one.")
@click.option(
    "--report", "is_report", is_flag=True, help="Train nothing; report what there is so far."
)
@click.option(
    "--show", "is_shown", is_flag=True, help="Print the commands of all trials, and run none."
)
@click.option(
    "--engine",
    metavar="ENGINE",
    help="Submit each trial as `axcore launch ENGINE` does; --report shows what came of them.",
)
@click.option(
    "--option",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    help="A setting of the engine. Repeatable.",
)
@options.modify
@options.overrides
@options.as_json
def sweep(
    experiment: str,
    over: tuple[str, ...],
    over_modify: tuple[str, ...],
    seeds: int | None,
    max_trials: int | None,
    directory: str | None,
    jobs: int,
    metric: str,
    higher_is_better: bool,
    is_report: bool,
    is_shown: bool,
    engine: str | None,
    settings: tuple[str, ...],
    changes: tuple[str, ...],
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Train EXPERIMENT for every combination of the values of --over, and compare the runs.

    The same command continues where it was interrupted, and more values may be added to it.
    """
    from axcore.launch.job import default_run_directory
    from axcore.runs.sweep import Axis, Sweep, parse_axis

    plugin_host().require_healthy()
    axes = [parse_axis(text) for text in over]
    if over_modify:
        axes.append(Axis("--modify", "", over_modify))
    if seeds is not None:
        axes.append(Axis("--set", "seed", tuple(map(str, range(seeds)))))
    if not axes:
        raise click.UsageError("name what to vary, as in --over learner.schedule.peak=1e-3,3e-3")
    if "/" not in metric:
        raise ConfigError(
            f"{metric!r} names no split", where="--metric", hint=f"--metric {_DEFAULT_METRIC}"
        )
    made = Sweep(
        directory=Path(directory or f"{default_run_directory(experiment)}-sweep"),
        experiment=experiment,
        arguments=(
            *(part for change in changes for part in ("--modify", change)),
            *(part for one in overrides for part in ("--set", one)),
        ),
        axes=tuple(axes),
        max_trials=max_trials,
        engine=_engine(engine, settings),
    )
    trials = made.trials()
    if is_shown:
        for trial in trials:
            click.echo(shlex.join(["axcore", *made.command(trial)]))
        return
    failed: list[Trial] = []
    if not is_report:
        digest = _config_digest(experiment)
        made.check_folder(digest)
        _check(made, trials)
        made.save(digest)
        failed = _run(made, trials, jobs)
    _report(made, metric, is_better_higher=higher_is_better, as_json=as_json)
    if failed:
        click.echo(f"{len(failed)} of {len(trials)} trials failed", err=True)
        sys.exit(1)


def _engine(name: str | None, settings: tuple[str, ...]) -> tuple[str, ...]:
    """Return the part of `axcore launch` that all trials share.

    Raises:
        ConfigError: The engine or a setting does not exist.
    """
    from axcore.cli.launch import configured
    from axcore.launch import find_launcher

    if name is None:
        if settings:
            raise ConfigError("no engine reads them", where="--option", hint="add --engine slurm")
        return ()
    configured(find_launcher(name), settings)
    return (name, *(part for one in settings for part in ("--option", one)))


def _check(made: "Sweep", trials: "list[Trial]") -> None:
    """Check the config of every trial before the first one is trained.

    Raises:
        ConfigError: A value does not fit.
    """
    from axcore.cli.launch import check_training

    for trial in trials:
        try:
            check_training(tuple(made.training(trial)))
        except ConfigError as error:
            error.add_note(f"in the trial {trial.name}")
            raise


def _config_digest(experiment: str) -> str:
    """Return a digest of an experiment's config, which a file or its code may change."""
    from hashlib import blake2b

    from axcore.config import render_config
    from axcore.experiments.named import load_experiment

    rendered = render_config(load_experiment(experiment, ()))
    return blake2b(rendered.encode(), digest_size=8).hexdigest()


def _run(made: "Sweep", trials: "list[Trial]", jobs: int) -> "list[Trial]":
    from axcore.runs.sweep import run_trials

    places = {trial.name: place for place, trial in enumerate(trials, 1)}

    def report(trial: Any, what: str, seconds: float) -> None:
        took = f" ({seconds:.0f} s)" if seconds else ""
        first, *rest = map(options.escape_control_characters, what.splitlines())
        click.echo(f"[{places[trial.name]}/{len(trials)}] {trial.name}: {first}{took}", err=True)
        for line in rest:
            click.echo(f"    {line}", err=True)

    try:
        return run_trials(made, num_jobs=jobs, report=report)
    except KeyboardInterrupt:
        click.echo("stopped; the same command continues with what is not done", err=True)
        sys.exit(INTERRUPTED)


def _report(made: "Sweep", metric: str, *, is_better_higher: bool, as_json: bool) -> None:
    from axcore.runs.sweep import group_labels, grouped

    results = made.results(metric)
    if as_json:
        click.echo(json.dumps([_as_json(made, one) for one in results], indent=2))
        return
    groups = grouped(made, results, is_better_higher=is_better_higher)
    rows = []
    for group in groups:
        mean, error = group.mean, group.standard_error
        value = "-" if mean is None else f"{mean:.4f}" + (f" ± {error:.4f}" if error else "")
        rows.append((*map(options.escape_control_characters, group.values), value, group.state))
    click.echo(columns((*group_labels(made), metric, "state"), rows))
    if groups and groups[0].mean is not None and not math.isnan(groups[0].mean):
        best = groups[0].results[0].trial
        click.echo(f"\nthe best: {shlex.join(['axcore', 'train', *_settings(made, best)])}")
    click.echo(f"compare the curves: axcore report {made.directory}/*/")


def _settings(made: "Sweep", trial: "Trial") -> list[str]:
    """Return the arguments of a trial without its folder."""
    experiment, _, _, *rest = made.training(trial)
    return [experiment, *rest]


def _as_json(made: "Sweep", result: Any) -> dict[str, Any]:
    values = {
        axis.path or "modify": value
        for axis, value in zip(made.axes, result.trial.values, strict=True)
    }
    found = {name: getattr(result, name) for name in ("state", "step", "value")}
    if found["value"] is not None and not math.isfinite(found["value"]):
        found["value"] = str(found["value"])
    return {"run": str(made.directory / result.trial.name), "values": values, **found}
