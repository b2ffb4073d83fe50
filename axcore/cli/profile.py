"""`axcore profile`: what the time of recorded steps went to."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from axcore.cli import options
from axcore.errors import CheckpointError
from axcore.report.table import columns

if TYPE_CHECKING:
    from axcore.profiles import Part, Profile

_HEADER = ("MODULE", "MS A STEP", "BACKWARD", "SHARE")


@click.command()
@click.argument("arguments", nargs=-1, required=True, metavar="RUN | compare RUN RUN")
@click.option("--top", default=12, show_default=True, help="Number of lines of each table.")
@click.option("--html", type=options.OutputPath(), help="Write a page about it there.")
@options.trust_code
@options.as_json
def profile(
    arguments: tuple[str, ...], top: int, html: Path | None, trust_code: bool, as_json: bool
) -> None:
    """Show what the time of a step of RUN went to, as `axcore train --profile` recorded it.

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
    """Writes a page about the recordings of one run, or of two beside each other."""
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
    click.echo(_table(_HEADER, found.modules, top) + "\n")
    click.echo(_table(("KIND", *_HEADER[1:]), found.kinds, top))
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
