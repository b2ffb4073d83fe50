"""`axcore config`: an experiment's config as text, and what differs between two."""

import sys
from pathlib import Path

import click

from axcore.cli import options
from axcore.cli.config_explore import explore, schema
from axcore.errors import ConfigError
from axcore.plugins import Hardware


@click.group()
def config() -> None:
    """Show, explore, compare and pin down configs."""


config.add_command(explore)
config.add_command(schema)


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
    from axcore.cli.experiment import load_config
    from axcore.config import render_config, to_json, to_yaml

    if sharding:
        from axcore.cli.experiment import load_resolved
        from axcore.cli.sharding import sharding_table

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
    from axcore.cli.experiment import load_config
    from axcore.config import diff_config, format_diff

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

    from axcore.cli.experiment import load_config
    from axcore.config import render_config

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
