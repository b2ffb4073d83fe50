"""`axcore eval`: the validation loss of a trained run."""

import json
import math

import click

from axcore.cli import options


@click.command(name="eval")
@options.run
@click.option("--step", type=int, help="Checkpoint to use; by default the newest.")
@options.trust_code
@options.as_json
def evaluate(run: str, step: int | None, trust_code: bool, as_json: bool) -> None:
    """Evaluate the model that RUN, a run directory, trained on its validation text."""
    from axcore.runs import load_run

    saved = load_run(run, step=step, trust_code=trust_code)
    metrics = saved.evaluate()
    if as_json:
        click.echo(json.dumps({"step": saved.step, "split": "validation", **metrics}))
    else:
        line = f"step {saved.step}: validation loss {metrics['loss']:.4f}"
        if saved.trainer.batch_spec.unit == "token":
            perplexity = math.exp(min(metrics["loss"], 700.0))
            line += f" nats a token, perplexity {perplexity:.3f}"
        click.echo(line)
