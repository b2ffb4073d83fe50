"""`axcore loc`: what features cost in lines of code, and what a change of a repository cost."""

import gc
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click

from axcore.cli import options
from axcore.complexity import (
    Change,
    Kind,
    Measurement,
    VariantGrowth,
    check_gate,
    measure_change,
    measure_commits,
    measure_feature,
    variant_growths,
)
from axcore.complexity.family import LARGEST
from axcore.config import suggest_names
from axcore.errors import ComplexityError
from axcore.plugins import Feature, plugin_host
from axcore.report.table import columns, markdown_table

_SIZES = click.IntRange(3, LARGEST)

_KINDS: tuple[Kind, ...] = ("new", "existing", "test", "other")


@click.group(invoke_without_command=True)
@click.option(
    "--feature", "names", multiple=True, metavar="NAME", help="Only this one; repeatable."
)
@click.option("--models", type=_SIZES, default=4, show_default=True, help="Different models.")
@click.option("--variants", type=_SIZES, default=4, show_default=True, help="Variants of each.")
@click.option("--check", is_flag=True, help="Fail where a feature costs more than it may.")
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
@options.as_json
@click.pass_context
def loc(
    context: click.Context,
    names: tuple[str, ...],
    models: int,
    variants: int,
    check: bool,
    markdown: bool,
    as_json: bool,
) -> None:
    """Measure what each feature costs in lines, and how that grows with models and variants.

    A feature is added to every variant of every model, at most 256 in all. Each is traced, to see
    that the feature is really in it.
    """
    if context.invoked_subcommand is not None:
        return
    measured = list(_measured(_chosen(names), models=models, variants=variants))
    if as_json:
        click.echo(json.dumps([_as_dict(one) for one in measured], indent=2))
    else:
        drawn = markdown_table if markdown else columns
        click.echo(drawn(_HEADER, [_row(one) for one in measured]))
        if together := variant_growths(measured):
            click.echo("\n" + drawn(_VARIANT_HEADER, [_variant_row(one) for one in together]))
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
        raise ComplexityError(f"{commits!r} is not two commits", hint="write BASE..HEAD")
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


def _measured(features: list[Feature], *, models: int, variants: int) -> Iterator[Measurement]:
    """Yield what each feature costs, in order; several on as many processors as there are."""
    measure = partial(measure_feature, models=models, variants=variants)
    if len(features) == 1:
        yield measure(features[0])
        return
    with ProcessPoolExecutor(
        mp_context=get_context("spawn"), initializer=_collect_garbage_rarely
    ) as pool:
        for one in pool.map(measure, features):
            click.echo(f"measured {one.feature.name}", err=True)
            yield one


def _collect_garbage_rarely() -> None:
    """Tracing makes many objects that live on; going through them takes a fifth of the time."""
    gc.set_threshold(200_000, 50, 1000)


_HEADER = (
    *("FEATURE", "LINES", "EXISTING", "GLUE", "UNSEEN", "MODELS"),
    *("EXPONENT", "GROWTH", "PLUGIN"),
)


_VARIANT_HEADER = ("VARIANTS OF", "NUMBER", "LINES", "IN MODELS", "IN VARIANTS", "WHICH")


def _chosen(names: tuple[str, ...]) -> list[Feature]:
    known = {record.name: record for record in plugin_host().records(Feature)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ComplexityError(
            f"there is no feature {unknown[0]!r}; {suggest_names(unknown[0], known)}",
            hint="`axcore loc` lists them",
        )
    return [known[name] for name in names or sorted(known)]


def _row(one: Measurement) -> tuple[str, ...]:
    return (
        one.feature.name,
        str(one.lines),
        str(len(one.existing)),
        str(one.kinds.glue),
        f"{one.kinds.unseen - len(one.kinds.lacks)} of {one.kinds.unseen}",
        f"{one.models - len(one.lacks)} of {one.models}",
        f"{abs(one.growth.exponent):.2f}",
        one.growth.complexity,
        one.feature.plugin,
    )


def _variant_row(one: VariantGrowth) -> tuple[str, ...]:
    return (
        one.feature,
        str(len(one.names)),
        str(max(one.growth.lines.values())),
        f"{abs(one.growth.in_models):.2f}",
        f"{one.growth.in_variants:.2f}",
        ", ".join(one.names),
    )


def _as_dict(one: Measurement) -> dict[str, Any]:
    return {
        "feature": one.feature.name,
        "plugin": one.feature.plugin,
        "summary": one.feature.summary,
        "lines": one.lines,
        "existing_modules": list(one.existing),
        "glue_lines": one.kinds.glue,
        "unseen_kinds": one.kinds.unseen,
        "lacking_unseen": {lack.model: lack.reason for lack in one.kinds.lacks},
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
