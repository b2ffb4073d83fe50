"""`axcore report`: one HTML page about runs."""

import json
import webbrowser
from pathlib import Path

import click

from axcore.cli import options
from axcore.cli.completion import complete_run
from axcore.report.page import REPORT_NAME

COMPARISON_NAME = "comparison.html"


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_run)
@click.option(
    "--out",
    metavar="FILE",
    type=options.OutputPath(),
    help=f"Where to write; by default RUN/{REPORT_NAME}, of several runs {COMPARISON_NAME}.",
)
@click.option("--open", "opens", is_flag=True, help="Show the page in a browser.")
@options.trust_code
@options.as_json
def report(
    runs: tuple[str, ...], out: Path | None, opens: bool, trust_code: bool, as_json: bool
) -> None:
    """Write a page about RUN, or about several runs beside each other.

    It needs nothing beside it, and can be sent to somebody. A run may still be training.
    """
    path = Path(out or (Path(runs[0]) / REPORT_NAME if len(runs) == 1 else COMPARISON_NAME))
    facts = write_report(runs, path, trust_code=trust_code)
    if as_json:
        click.echo(json.dumps({"report": str(path), "runs": facts}))
    else:
        click.echo(str(path))
    if opens:
        webbrowser.open(path.resolve().as_uri())


def write_report(
    directories: tuple[str | Path, ...], path: Path, *, trust_code: bool = False
) -> list[dict[str, object]]:
    """Writes a page about runs, whole or not at all, and returns what it shows.

    Raises:
        CheckpointError: Not a run directory.
        ConfigError: The page cannot be written.
    """
    from datetime import UTC, datetime

    import attrs

    from axcore.report.page import run_page_html
    from axcore.runs import run_facts

    facts = [attrs.asdict(run_facts(one, trust_code=trust_code)) for one in directories]
    written = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    options.write_output(path, run_page_html(facts, written=written))
    return facts
