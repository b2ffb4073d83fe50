"""`axcore loc`: what features cost in lines of code, and what a change of a repository cost."""

import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click

from axcore.cli import options
from axcore.cli.table import columns, markdown_table
from axcore.complexity import (
    Change,
    Kind,
    Measurement,
    check_gate,
    measure_change,
    measure_commits,
    measure_feature,
)
from axcore.complexity.family import LARGEST
from axcore.config import name_the_known
from axcore.errors import ComplexityError
from axcore.plugins import Feature, plugin_host

QUICK = 4
"""Models, and variants of each, that `--quick` looks at."""

_KINDS: tuple[Kind, ...] = ("new", "existing", "test", "other")


@click.group(invoke_without_command=True)
@click.option(
    "--feature", "names", multiple=True, metavar="NAME", help="Only this one; repeatable."
)
@click.option("--quick", is_flag=True, help="Look at 16 models rather than 256.")
@click.option("--check", is_flag=True, help="Fail where a feature costs more than it may.")
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
@options.as_json
@click.pass_context
def loc(
    context: click.Context,
    names: tuple[str, ...],
    quick: bool,
    check: bool,
    markdown: bool,
    as_json: bool,
) -> None:
    """Measure what each feature costs in lines, and how that grows with the models.

    A feature is added to families of up to 256 models. Each model is traced, to see that the
    feature is really in it.
    """
    if context.invoked_subcommand is not None:
        return
    measured = list(_measured(_chosen(names), largest=QUICK if quick else LARGEST))
    if as_json:
        click.echo(json.dumps([_as_dict(one) for one in measured], indent=2))
    else:
        drawn = markdown_table if markdown else columns
        click.echo(drawn(_HEADER, [_row(one) for one in measured]))
    if check:
        check_gate(measured)


@loc.command()
@click.argument("commits", metavar="BASE..HEAD")
@click.option(
    "--repository",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("."),
    help="The git repository; this folder if left out.",
)
@click.option("--by-commit", is_flag=True, help="One line for each commit on the way.")
@options.as_json
def diff(commits: str, repository: Path, by_commit: bool, as_json: bool) -> None:
    """Split a change into new files, existing files and tests, in lines of code."""
    base, dots, head = commits.partition("..")
    if not (base and dots and head) or head.startswith("."):
        raise ComplexityError(f"{commits!r} is not two commits", mend="write BASE..HEAD")
    if by_commit:
        changes = measure_commits(repository, base, head)
    else:
        changes = (measure_change(repository, base, head),)
    if as_json:
        click.echo(json.dumps([_change_as_dict(change) for change in changes], indent=2))
        return
    rows = [(*(str(change.lines(kind)) for kind in _KINDS), change.title) for change in changes]
    click.echo(columns(("NEW", "EXISTING", "TESTS", "OTHER", "CHANGE"), rows))
    for change in changes:
        for file in change.files:
            if file.kind == "existing":
                click.echo(f"existing: {file.lines} in {file.path}")
            if not file.is_parsed and file.kind != "other":
                click.echo(f"not parsed, every line but blanks counted: {file.path}")


def _measured(features: list[Feature], *, largest: int) -> Iterator[Measurement]:
    """Yields what each feature costs, in order, with as many at work as there are processors."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for one in pool.map(partial(measure_feature, largest=largest), features):
            click.echo(f"measured {one.feature.name}", err=True)
            yield one


_HEADER = ("FEATURE", "LINES", "EXISTING", "MODELS", "EXPONENT", "GROWTH", "PLUGIN")


def _chosen(names: tuple[str, ...]) -> list[Feature]:
    known = {record.name: record for record in plugin_host().records(Feature)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ComplexityError(
            f"there is no feature {unknown[0]!r}; {name_the_known(unknown[0], known)}",
            mend="`axcore loc --quick` lists them",
        )
    return [known[name] for name in names or sorted(known)]


def _row(one: Measurement) -> tuple[str, ...]:
    return (
        one.feature.name,
        str(one.lines),
        str(len(one.existing)),
        f"{one.models - len(one.lacks)} of {one.models}",
        f"{abs(one.growth.exponent):.2f}",
        one.growth.complexity,
        one.feature.plugin,
    )


def _as_dict(one: Measurement) -> dict[str, Any]:
    return {
        "feature": one.feature.name,
        "plugin": one.feature.plugin,
        "summary": one.feature.summary,
        "lines": one.lines,
        "existing_modules": list(one.existing),
        "models": one.models,
        "lacking": {lack.model: lack.reason for lack in one.lacks},
        "exponent_in_models": one.growth.in_models,
        "exponent_in_variants": one.growth.in_variants,
        "growth": one.growth.complexity,
        "problems": list(one.problems()),
    }


def _change_as_dict(change: Change) -> dict[str, Any]:
    return {
        "change": change.title,
        "lines": {kind: change.lines(kind) for kind in _KINDS},
        "files": [
            {"path": file.path, "kind": file.kind, "lines": file.lines, "parsed": file.is_parsed}
            for file in change.files
        ],
    }
