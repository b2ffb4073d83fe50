"""`axcore config explore` and `axcore config schema`: a config to look around in, and to edit."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import click

from axcore.cli import options
from axcore.config.fields import Field, fields_of
from axcore.errors import ConfigError


@click.command()
@options.experiment
@click.option("--at", default="", metavar="PATH", help="Show what is below a path only.")
@click.option("--search", default="", metavar="TEXT", help="Show fields whose line has a text.")
@click.option("--depth", type=click.IntRange(min=1), help="Show so many levels only.")
@options.modify
@options.overrides
@options.target
@options.as_json
def explore(
    experiment: str,
    at: str,
    search: str,
    depth: int | None,
    changes: tuple[str, ...],
    overrides: tuple[str, ...],
    target: str | None,
    as_json: bool,
) -> None:
    """Show each field of EXPERIMENT's config: what it may hold, holds, and is for.

    Values that differ from their defaults are marked by a star.
    """
    from axcore.cli.experiment import load_config

    cfg = load_config(experiment, overrides, target, changes=changes)
    found = list(_below(cfg, at, depth))
    if not found:
        raise ConfigError(
            f"{experiment} has no config at {at!r}" if at else f"{experiment} has no fields",
            hint=f"axcore config explore {experiment} --depth 2   shows where to look",
        )
    kept = [one for one in found if _has(one, search)]
    if as_json:
        click.echo(json.dumps([attrs.asdict(one) for one in kept], indent=2))
    elif kept:
        for one in kept:
            click.echo(_line(one))
    else:
        raise ConfigError(f"no field of {len(found)} has {search!r} in its line")


@click.command()
@options.experiment
@click.option("--out", type=options.OutputPath(), help="Write it there.")
@options.modify
@options.overrides
@options.target
def schema(
    experiment: str,
    out: Path | None,
    changes: tuple[str, ...],
    overrides: tuple[str, ...],
    target: str | None,
) -> None:
    """Print the JSON Schema of config files like EXPERIMENT's, for editors."""
    from axcore.cli.experiment import load_config
    from axcore.config.schema import json_schema

    text = json.dumps(json_schema(load_config(experiment, overrides, target, changes=changes)))
    if out is None:
        click.echo(text)
    else:
        options.write_output(out, text + "\n")


def _below(cfg: Any, at: str, depth: int | None) -> Iterator[Field]:
    level = at.count(".") + 1 if at else 0
    for one in fields_of(cfg):
        is_below = not at or one.path == at or one.path.startswith((f"{at}.", f"{at}["))
        if is_below and (depth is None or one.path.count(".") < level + depth):
            yield one


def _has(one: Field, text: str) -> bool:
    return text.lower() in f"{one.path} {one.type} {one.value} {one.doc}".lower()


def _line(one: Field) -> str:
    indent = "  " * one.path.count(".")
    name = one.path.rpartition(".")[2]
    star = "" if one.is_default else "*"
    value = click.style("REQUIRED", fg="red") if one.is_required else one.value
    kind = click.style(f"({one.type})", fg="cyan")
    tail = f"  {click.style(one.doc, dim=True)}" if one.doc else ""
    where = f"  [{one.set_in}]" if one.set_in else ""
    return f"{indent}{star}{click.style(name, bold=True)} = {value} {kind}{tail}{where}"
