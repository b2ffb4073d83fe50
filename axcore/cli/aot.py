"""`axcore aot`: compile a train step for hardware you do not have, and say what it takes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import click

from axcore.aot import (
    Attempt,
    Report,
    ReportCache,
    compile_resolved,
    fastest,
    find_aot_target,
    report_page,
    report_text,
    search,
    search_fields,
    search_text,
    verdict,
)
from axcore.cli import options
from axcore.cli.aot_serving import load_serving, report_serving, serves_as_asked, serving_options
from axcore.config.json_files import parse_json
from axcore.errors import AotError
from axcore.plugins import Hardware, plugin_host
from axcore.resilience.compile_cache import cache_folder


@click.command()
@options.experiment
@click.option("--target", metavar="NAME", required=True, help="Hardware, as cpu-8.")
@options.modify
@options.overrides
@options.as_json
@click.option(
    "--html",
    "page",
    type=options.OutputPath(),
    metavar="FILE",
    help="Also write the report as a page.",
)
@click.option("--search", "searches", is_flag=True, help="Find the fastest change that fits.")
@serving_options
def aot(
    experiment: str,
    target: str,
    changes: tuple[str, ...],
    overrides: tuple[str, ...],
    as_json: bool,
    page: Path | None,
    searches: bool,
    serves: bool,
    **wanted: Any,
) -> None:
    """Compile the train step of EXPERIMENT for hardware that need not be here, and report.

    The hardware's own compiler does it where a plugin brings it: does the step fit, where does the
    memory go, how long will it take. With --serve, the same of what serves the model.
    """
    plugin_host().require_healthy()
    hardware = Hardware.parse(target)
    find_aot_target(hardware)
    if serves_as_asked(serves, wanted, {"--search": searches, "--html": page is not None}):
        cfg, engine = load_serving(experiment, overrides, changes=changes, hardware=hardware)
        click.echo(f"compiling {experiment} to serve on {hardware.name}", err=True)
        name = Path(experiment).stem
        report_serving(cfg, engine, hardware, wanted, experiment=name, as_json=as_json)
        return
    from axcore.cli.experiment import load_resolved

    resolved = load_resolved(experiment, overrides, changes=changes, hardware=hardware)

    def compiled(cfg: Any) -> Report:
        kept = ReportCache(cache_folder() / "reports") if searches else None
        return compile_resolved(
            attrs.evolve(resolved, config=cfg), Path(experiment).stem, kept=kept
        )

    def announce(changes: str) -> None:
        click.echo(f"compiling {experiment} for {hardware.name}, {changes}", err=True)

    attempts = search(resolved.config, hardware, compiled, announce=announce) if searches else ()
    if not searches:
        click.echo(f"compiling {experiment} for {hardware.name}", err=True)
    report = attempts[0].report if attempts else compiled(resolved.config)
    if report is None:
        raise AotError(attempts[0].reason, where=f"target {hardware.name}")
    if page is not None:
        options.write_output(page, report_page(report))
    if as_json:
        found = {"search": search_fields(attempts)} if attempts else {}
        click.echo(json.dumps({**parse_json(report.to_json()), **found}, indent=2))
    else:
        click.echo(report_text(report))
        if attempts:
            click.echo(f"\n{search_text(attempts)}")
    if report.fits is False:
        raise AotError(
            f"{report.experiment} {verdict(report)}",
            where=f"target {hardware.name}",
            hint=_hint(attempts),
        )


def _hint(attempts: Sequence[Attempt]) -> str:
    """Returns what to do about a step that does not fit."""
    if not attempts:
        return "add --search to look for a change that fits, or name more chips"
    best = fastest(attempts)
    if best is None:
        return "nothing that was tried fits: name more chips, or chips with more memory"
    return " ".join(f'--modify "{change}"' for change in best.changes)
