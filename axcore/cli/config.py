"""`axcore config`: show, explore, compare and pin down configs."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import click

from axcore.cli import options
from axcore.config.render import Field, fields_of
from axcore.errors import ConfigError
from axcore.plugins import Hardware


@click.group()
def config() -> None:
    """Show, explore, compare and pin down configs."""


@config.command()
@options.experiment
@options.modify
@options.overrides
@options.target
@click.option("--all", "show_all", is_flag=True, help="Show values that are defaults, too.")
@click.option("--origins", is_flag=True, help="Show where each value was set.")
@click.option("--format", "form", type=click.Choice(["text", "json", "yaml"]), default="text")
@click.option("--summary", is_flag=True, help="Show every parameter of the model instead.")
@click.option("--sharding", is_flag=True, help="Show how every parameter is split instead.")
def show(
    experiment: str,
    changes: tuple[str, ...],
    overrides: tuple[str, ...],
    target: str | None,
    show_all: bool,
    origins: bool,
    form: str,
    summary: bool,
    sharding: bool,
) -> None:
    """Show the config of EXPERIMENT, a name or a config file."""
    from axcore.config import render_config, to_json, to_yaml
    from axcore.experiments.named import load_config

    if sharding:
        from axcore.cli.sharding import sharding_table
        from axcore.experiments.named import load_resolved

        hardware = Hardware.parse(target) if target else Hardware.detect()
        resolved = load_resolved(experiment, overrides, changes=changes, hardware=hardware)
        click.echo(sharding_table(resolved))
        return
    cfg = load_config(experiment, overrides, target, changes=changes)
    if summary:
        from axcore.module import summary_table

        click.echo(summary_table(cfg.model.build()), nl=False)
    elif form == "text":
        click.echo(render_config(cfg, fold_defaults=not show_all, origins=origins), nl=False)
    else:
        click.echo({"json": to_json, "yaml": to_yaml}[form](cfg), nl=False)


@config.command()
@click.argument("before")
@click.argument("after", required=False)
@options.modify
@options.overrides
@click.option(
    "--target",
    "targets",
    metavar="NAME",
    multiple=True,
    help="Hardware; give it twice to compare one experiment on two.",
)
def diff(
    before: str,
    after: str | None,
    changes: tuple[str, ...],
    overrides: tuple[str, ...],
    targets: tuple[str, ...],
) -> None:
    """Show what differs between two experiments, or one and its overrides, or on two targets.

    Changes and overrides apply to the second, or with two targets to both. Exits with 1 where there
    is a difference, 0 where there is none.
    """
    from axcore.config import diff_config, format_diff
    from axcore.experiments.named import load_config

    if len(targets) > 2:
        raise ConfigError(f"{len(targets)} targets are given", hint="give --target once or twice")
    target, last = (targets[0], targets[-1]) if targets else (None, None)
    second = load_config(after or before, overrides, last, changes=changes)
    if len(targets) == 2:
        first = load_config(before, overrides, target, changes=changes)
    else:
        first = load_config(before, (), target)
    differences = diff_config(first, second)
    click.echo(format_diff(differences), nl=False)
    sys.exit(1 if differences else 0)


@config.command()
@options.experiment
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--write", is_flag=True, help="Write the file instead of checking it.")
@options.overrides
@options.target
def golden(
    experiment: str, file: Path, write: bool, overrides: tuple[str, ...], target: str | None
) -> None:
    """Check that EXPERIMENT renders as FILE says, or write FILE.

    Exits with 1 where they differ.
    """
    import difflib

    from axcore.config import render_config
    from axcore.experiments.named import load_config

    text = render_config(load_config(experiment, overrides, target))
    if write:
        options.write_output(file, text)
        return
    if not file.exists():
        raise ConfigError("there is no golden file", where=str(file), hint="write it with --write")
    before = file.read_text(encoding="utf-8")
    if before != text:
        lines = difflib.unified_diff(
            before.splitlines(), text.splitlines(), str(file), experiment, lineterm="", n=0
        )
        click.echo("\n".join(lines))
        sys.exit(1)


@config.command()
@options.experiment
@click.option("--at", default="", metavar="PATH", help="Show only what is below a path.")
@click.option("--search", default="", metavar="TEXT", help="Show fields whose line has a text.")
@click.option("--depth", type=click.IntRange(min=1), help="Show only this many levels.")
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
    """Show each field of EXPERIMENT's config: its type, value and meaning.

    A star marks values that differ from their defaults.
    """
    from axcore.experiments.named import load_config

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


@config.command()
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
    from axcore.config.schema import json_schema
    from axcore.experiments.named import load_config

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
