"""`axcore runs`, `axcore report` and `axcore profile`: runs as a list, as a page, by step time."""

import json
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from axcore.cli import options
from axcore.cli.options import complete_run, escape_control_characters
from axcore.errors import CheckpointError
from axcore.report.table import columns
from axcore.resilience.run_summary import (
    RunSummary,
    find_runs,
    is_supervised,
    starts,
    story,
    summarise_run,
)

if TYPE_CHECKING:
    from axcore.profiles import Part, Profile


_RUNS_HEADER = ("RUN", "STATE", "STEP", "GOODPUT", "LAST CAUSE OF DEATH")


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
                "there is no such folder", where=str(folder), hint="name the folder of your runs"
            )
        _list(folder, as_json=as_json)


def _list(folder: Path, *, as_json: bool) -> None:
    found = [summarise_run(path) for path in find_runs(folder)]
    if as_json:
        click.echo(json.dumps([attrs.asdict(one) for one in found], indent=2))
    elif found:
        rows = [tuple(map(escape_control_characters, _row(one))) for one in found]
        click.echo(columns(_RUNS_HEADER, rows))
    else:
        click.echo(f"there are no runs in {folder}")


def _row(one: RunSummary) -> tuple[str, ...]:
    step = "-" if one.last_step is None else f"{one.last_step} of {one.max_steps or '?'}"
    goodput = "-" if one.goodput is None else f"{one.goodput:.1%}"
    return one.name, one.state, step, goodput, one.last_death or "-"


def _why(directory: Path) -> None:
    # Without a supervisor the events are those of guards and rewards; when it started is elsewhere.
    lines = story(directory)
    if not is_supervised(directory):
        lines = [*starts(directory), *lines]
    if not lines:
        raise CheckpointError(
            "the directory is not a run: there are no events, and no starts, to look at",
            where=str(directory),
            hint="name a directory that training made, such as runs/tiny",
        )
    click.echo(escape_control_characters("\n".join(lines)))


_COMPARISON_NAME = "comparison.html"


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_run)
@click.option(
    "--out",
    metavar="FILE",
    type=options.OutputPath(),
    help=f"Where to write; by default RUN/report.html, of several runs {_COMPARISON_NAME}.",
)
@click.option("--open", "opens", is_flag=True, help="Show the page in a browser.")
@options.trust_code
@options.as_json
def report(
    runs: tuple[str, ...], out: Path | None, opens: bool, trust_code: bool, as_json: bool
) -> None:
    """Write a page about RUN, or about several runs side by side.

    It needs no other file, and can be sent to somebody. A run may still be training.
    """
    from axcore.report.page import REPORT_NAME  # imports jax, which --help need not

    path = Path(out or (Path(runs[0]) / REPORT_NAME if len(runs) == 1 else _COMPARISON_NAME))
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
    """Write a page about runs, whole or not at all, and return what it shows.

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


_PROFILE_HEADER = ("MODULE", "MS A STEP", "BACKWARD", "SHARE")


@click.command()
@click.argument("arguments", nargs=-1, required=True, metavar="RUN | compare RUN RUN")
@click.option("--top", default=12, show_default=True, help="Number of lines of each table.")
@click.option("--html", type=options.OutputPath(), help="Write a page about it there.")
@options.trust_code
@options.as_json
def profile(
    arguments: tuple[str, ...], top: int, html: Path | None, trust_code: bool, as_json: bool
) -> None:
    """Show the step-time breakdown of RUN that `axcore train --profile` recorded.

    RUN is a run directory, whose newest recording is shown, or one of the folders in RUN/profiles.
    """
    is_comparison = arguments[0] == "compare" and len(arguments) == 3
    if html is not None and (is_comparison or len(arguments) == 1):
        _write_page(arguments[1:] if is_comparison else arguments, html, trust_code=trust_code)
    elif is_comparison:
        _compare(arguments[1:], top, trust_code=trust_code, as_json=as_json)
    elif len(arguments) == 1:
        _show(arguments[0], top, trust_code=trust_code, as_json=as_json)
    else:
        raise click.UsageError("name a run, or `compare` and two runs")


def _read(place: str, *, trust_code: bool) -> "Profile":
    from axcore.profiles import read_profile, recorded_profiles
    from axcore.runs import load_run

    folder = Path(place)
    is_recording = folder.resolve().parent.name == "profiles"
    run = folder.resolve().parents[1] if is_recording else folder
    model = load_run(run, trust_code=trust_code).config.model.build()
    recordings = [folder] if is_recording else recorded_profiles(run)
    if not recordings:
        raise CheckpointError(
            "no step of the run was recorded",
            where=place,
            hint="train with --profile 10:13, or send SIGUSR1 to a process that trains",
        )
    return read_profile(recordings[-1], model)


def _write_page(places: tuple[str, ...], path: Path, *, trust_code: bool) -> None:
    """Write a page about the recordings of one run, or of two side by side."""
    from datetime import UTC, datetime

    from axcore.report.page import run_page_html

    found = [_read(place, trust_code=trust_code) for place in places]
    runs = [
        {"name": Path(place).resolve().name, "directory": place, "profile": attrs.asdict(one)}
        for place, one in zip(places, found, strict=True)
    ]
    written = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    options.write_output(path, run_page_html(runs, written=written, part="profile"))
    click.echo(str(path))


def _show(place: str, top: int, *, trust_code: bool, as_json: bool) -> None:
    found = _read(place, trust_code=trust_code)
    if as_json:
        click.echo(json.dumps(attrs.asdict(found)))
        return
    first, last = found.steps
    click.echo(
        f"steps {first} to {last} on {found.hardware}: {1e3 * found.step_seconds:.2f} ms each; "
        f"nothing ran in {1e3 * found.idle_seconds:.2f} ms, "
        f"devices did nothing but talk in {1e3 * found.exposed_seconds:.2f} ms\n"
    )
    click.echo(_table(_PROFILE_HEADER, found.modules, top) + "\n")
    click.echo(_table(("KIND", *_PROFILE_HEADER[1:]), found.kinds, top))
    click.echo(f"\nthe trace is in {found.folder}, for XProf and TensorBoard")


def _table(header: tuple[str, ...], parts: "tuple[Part, ...]", top: int) -> str:
    rows: list[tuple[str, ...]] = [
        (part.name, _ms(part.seconds), _ms(part.backward_seconds), f"{part.share:.1%}")
        for part in parts[:top]
    ]
    if len(parts) > top:
        rest = parts[top:]
        sums = [sum(getattr(one, name) for one in rest) for name in ("seconds", "backward_seconds")]
        share = sum(one.share for one in rest)
        rows.append((f"({len(rest)} more)", *map(_ms, sums), f"{share:.1%}"))
    return columns(header, rows)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}"


def _compare(places: tuple[str, ...], top: int, *, trust_code: bool, as_json: bool) -> None:
    before, after = (_read(place, trust_code=trust_code) for place in places)
    one, other = ({part.name: part.seconds for part in found.modules} for found in (before, after))
    times = {name: (one.get(name, 0.0), other.get(name, 0.0)) for name in {**one, **other}}
    largest = sorted(times, key=lambda name: -abs(times[name][1] - times[name][0]))
    if as_json:
        keys = ("module", "before_seconds", "after_seconds")
        rows = [dict(zip(keys, (name, *times[name]), strict=True)) for name in largest]
        click.echo(json.dumps(rows))
        return
    shown = {"a step": (before.step_seconds, after.step_seconds)}
    shown |= {name: times[name] for name in largest[:top]}
    table = [
        (name, _ms(old), _ms(new), f"{1e3 * (new - old):+.3f}")
        for name, (old, new) in shown.items()
    ]
    click.echo(columns(("MODULE", "BEFORE, MS", "AFTER, MS", "DIFFERENCE"), table))
