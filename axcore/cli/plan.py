"""`axcore plan`: on which of several kinds of hardware an experiment is trained best."""

from pathlib import Path
from typing import Any

import attrs
import click

from axcore.cli import options
from axcore.errors import AotError
from axcore.launch.job import experiment_label
from axcore.plugins import Hardware, plugin_host
from axcore.resilience.compile_cache import cache_folder


@click.command()
@options.experiment
@click.option(
    "--targets", metavar='"NAME ..."', required=True, help="Hardware to compare, such as cpu-8."
)
@click.option(
    "--prices",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="What a chip costs for an hour: JSON or YAML, by target or pattern.",
)
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="Tokens to train on; the experiment's max_steps by default.",
)
@options.modify
@options.overrides
@options.as_json
@click.option("--search", "searches", is_flag=True, help="Also find the fastest change that fits.")
def plan(
    experiment: str,
    targets: str,
    prices: Path | None,
    tokens: int | None,
    changes: tuple[str, ...],
    overrides: tuple[str, ...],
    as_json: bool,
    searches: bool,
) -> None:
    """Compile EXPERIMENT for several kinds of hardware, and rank them by fit, cost and hours.

    Times are those that `axcore aot` predicts, without restarts. Needs the plugin and the compiler
    of each target; of a target that cannot be compiled for, the table says why.
    """
    from axcore.aot import ReportCache, compile_resolved, search
    from axcore.aot.plan import (
        candidate_for,
        checked_prices,
        plan_json,
        plan_text,
        price_of,
        ranked,
    )
    from axcore.experiments.named import load_resolved, read_data

    plugin_host().require_healthy()
    every = [Hardware.parse(name) for name in targets.replace(",", " ").split()]
    if not every:
        raise click.UsageError('--targets names no hardware, as "cpu-2 cpu-8" does')
    names = [one.name for one in every]
    found = {} if prices is None else checked_prices(read_data(prices), names, str(prices))
    name, kept = experiment_label(experiment), ReportCache(cache_folder() / "reports")

    def compiled(resolved: Any) -> Any:
        return compile_resolved(resolved, name, kept=kept)

    def searched(resolved: Any) -> Any:
        return search(
            resolved.config,
            resolved.hardware,
            lambda cfg: compiled(attrs.evolve(resolved, config=cfg)),
            announce=lambda change: click.echo(f"compiling {experiment} {change}", err=True),
        )

    candidates = []
    for hardware in every:
        click.echo(f"compiling {experiment} for {hardware.name}", err=True)
        candidates.append(
            candidate_for(
                hardware,
                lambda one: load_resolved(experiment, overrides, changes=changes, hardware=one),
                compile_one=compiled,
                tokens=tokens,
                price=price_of(found, hardware.name),
                search=searched if searches else None,
            )
        )
    order = ranked(candidates)
    click.echo(plan_json(order) if as_json else plan_text(order))
    errors = [one.error for one in candidates if one.error is not None]
    if len(errors) == len(candidates):
        raise errors[0]  # of the experiment rather than of a target, such as a misspelt --set
    if all(one.fits is False for one in order):
        raise AotError(
            f"{experiment} fits none of {len(order)} targets",
            where="--targets",
            hint="add --search to look for changes that fit, or name more chips",
        )
