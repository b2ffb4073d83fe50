"""`axcore runs`: what runs there are, and why one ended."""

import json
from pathlib import Path

import attrs
import click

from axcore.cli import options
from axcore.cli.terminal_text import escape_control_characters
from axcore.errors import CheckpointError
from axcore.report.table import columns
from axcore.resilience.run_summary import RunSummary, find_runs, starts, story, summarise_run

_HEADER = ("RUN", "STATE", "STEP", "GOODPUT", "LAST CAUSE OF DEATH")


@click.command()
@click.argument("arguments", nargs=-1, metavar="[FOLDER | why DIR]")
@options.as_json
def runs(arguments: tuple[str, ...], as_json: bool) -> None:
    """List the runs in FOLDER, by default runs; or show what happened to the run in DIR."""
    if len(arguments) == 2 and arguments[0] == "why":
        _why(Path(arguments[1]))
    elif len(arguments) > 1:
        raise click.UsageError("name one folder, or `why` and a run directory")
    else:
        folder = Path(arguments[0] if arguments else "runs")
        if arguments and not folder.is_dir():
            raise CheckpointError(
                "there is no such folder", where=str(folder), hint="name the folder that holds runs"
            )
        _list(folder, as_json=as_json)


def _list(folder: Path, *, as_json: bool) -> None:
    found = [summarise_run(path) for path in find_runs(folder)]
    if as_json:
        click.echo(json.dumps([attrs.asdict(one) for one in found], indent=2))
    elif found:
        rows = [tuple(map(escape_control_characters, _row(one))) for one in found]
        click.echo(columns(_HEADER, rows))
    else:
        click.echo(f"there are no runs in {folder}")


def _row(one: RunSummary) -> tuple[str, ...]:
    step = "-" if one.last_step is None else f"{one.last_step} of {one.max_steps or '?'}"
    goodput = "-" if one.goodput is None else f"{one.goodput:.1%}"
    return one.name, one.state, step, goodput, one.last_death or "-"


def _why(directory: Path) -> None:
    lines = story(directory) or starts(directory)
    if not lines:
        raise CheckpointError(
            "the directory is not a run: there are no events, and no starts, to look at",
            where=str(directory),
            hint="name a directory that training made, such as runs/tiny",
        )
    click.echo(escape_control_characters("\n".join(lines)))
