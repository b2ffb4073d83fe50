"""`axcore aot`: compile a train step for hardware that is not here, and say what it takes."""

import click

from axcore.cli import options


@click.command()
@click.argument("experiment")
@options.modify
@options.overrides
@click.option("--target", metavar="NAME", required=True, help="Hardware, as cpu-8.")
@options.as_json
def aot(
    experiment: str,
    changes: tuple[str, ...],
    overrides: tuple[str, ...],
    target: str,
    as_json: bool,
) -> None:
    """Compile the train step of EXPERIMENT for TARGET, which need not be here, and report."""
