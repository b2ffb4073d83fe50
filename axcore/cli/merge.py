"""`axcore merge`: published models merged into one."""

from typing import Any

import click

from axcore.errors import ConfigError


@click.command()
@click.argument("method", type=click.Choice(["linear", "slerp", "ties"]))
@click.argument("models", nargs=-1, required=True)
@click.option("--to", "target", required=True, metavar="FOLDER", help="Where to write.")
@click.option("--weights", metavar="W,W,...", help="Of the models.  [default: all the same]")
@click.option("--base", metavar="FOLDER", help="The model that ties takes differences from.")
@click.option("--density", type=float, default=0.2, show_default=True, help="Share ties keeps.")
def merge(
    method: Any,
    models: tuple[str, ...],
    target: str,
    weights: str | None,
    base: str | None,
    density: float,
) -> None:
    """Merge folders of published models, MODELS, into a new one.

    METHOD is linear, a weighted mean; slerp, between two on a sphere; or ties, by what differs from
    a base. Runs are written as such folders before: axcore convert runs/NAME hf:FOLDER.
    """
    from axcore.interop.merging import merge_models

    count = merge_models(
        models, target, method=method, weights=_numbers(weights), base=base, density=density
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
