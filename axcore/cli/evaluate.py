"""`axcore eval`: the held-out loss of a trained run."""

import json
import math

import click

from axcore.cli import options
from axcore.errors import DataError


@click.command(name="eval")
@click.argument("run")
@click.option("--step", type=int, help="Checkpoint to use; by default the newest.")
@options.as_json
def evaluate(run: str, step: int | None, as_json: bool) -> None:
    """Evaluate the model that RUN, a run directory, trained on its held-out text."""
    from axcore.cli.run import open_run

    saved = open_run(run, step=step)
    metrics = saved.trainer.evaluate(saved.state)
    if not metrics:
        raise DataError(
            "the run holds out no text",
            where="data.heldout_fraction",
            mend="train with --set data.heldout_fraction=0.05",
        )
    if as_json:
        click.echo(json.dumps({"step": saved.step, "split": "heldout", **metrics}))
    else:
        perplexity = math.exp(min(metrics["loss"], 700.0))
        click.echo(
            f"step {saved.step}: held-out loss {metrics['loss']:.4f} nats a token, "
            f"perplexity {perplexity:.3f}"
        )
