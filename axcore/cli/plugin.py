"""`axcore plugin`: write a new plugin, or check one that is installed."""

import sys
from pathlib import Path

import click

from axcore.cli import options
from axcore.cli.plugin_files import KINDS, NewPlugin


@click.group()
def plugin() -> None:
    """Write a new plugin, or check one that is installed."""


@plugin.command()
@click.argument("name")
@click.option(
    "--kind", type=click.Choice(sorted(KINDS)), required=True, help="What the plugin is to bring."
)
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=options.OutputPath(is_folder=True),
    help="Folder to write; by default one of the package's name.",
)
def new(name: str, kind: str, directory: Path | None) -> None:
    """Write a plugin called NAME, that installs and passes its own tests."""
    wanted = NewPlugin.named(name, kind)
    folder = directory or Path(wanted.distribution.replace("-", "_"))
    for path in wanted.write(folder):
        click.echo(f"wrote {path}")
    click.echo(f"\nnow: pip install -e {folder} && python -m pytest {folder}")


@plugin.command()
@click.argument("name")
@click.option("--here", is_flag=True, help="Test on this machine's accelerator, not on its host.")
@click.option("--show", is_flag=True, help="Show the test file instead of running it.")
def check(name: str, here: bool, show: bool) -> None:
    """Run the suites of `axcore.testing` on all that the plugin NAME brings.

    Exits with 1 where a test fails. Kernels for hardware you do not have are skipped, and say so.
    """
    from axcore.cli.plugin_check import check_source, run_check

    source = check_source(name)
    if show:
        click.echo(source, nl=False)
        return
    sys.exit(run_check(source, here=here))
