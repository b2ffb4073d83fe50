"""`axcore merge`: models merged into one."""

from typing import Any

import click

from axcore.cli import options
from axcore.errors import ConfigError


@click.command()
@click.argument("method", type=click.Choice(["linear", "slerp", "ties"]))
@click.argument("models", nargs=-1, required=True)
@click.option("--to", "target", required=True, metavar="FOLDER", help="Where to write.")
@click.option("--weights", metavar="W,W,...", help="Of the models.  [default: all the same]")
@click.option("--base", metavar="MODEL", help="The model that ties takes differences from.")
@click.option("--density", type=float, default=0.2, show_default=True, help="Share ties keeps.")
@options.trust_code
def merge(
    method: Any,
    models: tuple[str, ...],
    target: str,
    weights: str | None,
    base: str | None,
    density: float,
    trust_code: bool,
) -> None:
    """Merge MODELS into one, written as a published model.

    They are folders of published models, runs, or steps of a run: runs/NAME@STEP. METHOD is linear,
    a weighted mean; slerp, between two on a sphere; or ties, by what differs from a base.
    """
    from axcore.runs import merge_models_and_runs

    count = merge_models_and_runs(
        models,
        target,
        base=base,
        trust_code=trust_code,
        method=method,
        weights=_numbers(weights),
        density=density,
    )
    click.echo(f"{target} holds {count} tensors of {len(models)} models, merged by {method}")


def _numbers(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--weights is {text!r}", where="--weights", hint="write numbers: 0.7,0.3"
        ) from None
