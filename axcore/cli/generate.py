"""`axcore generate`: draw text from a trained run."""

import json

import click

from axcore.cli import options
from axcore.cli.terminal_text import escape_control_characters


@click.command()
@options.run
@click.option("--prompt", default="", help="Text to continue.")
@click.option("--max-tokens", default=200, show_default=True, help="Tokens drawn at most.")
@click.option("--samples", default=1, show_default=True, help="Number of continuations.")
@click.option("--temperature", default=0.8, show_default=True, help="0 takes the likeliest token.")
@click.option("--top-k", type=int, help="Draw from this many likeliest tokens only.")
@click.option("--seed", default=0, show_default=True, help="Decides the draws.")
@click.option("--step", type=int, help="Checkpoint to use; by default the newest.")
@options.trust_code
@options.as_json
def generate(
    run: str,
    prompt: str,
    max_tokens: int,
    samples: int,
    temperature: float,
    top_k: int | None,
    seed: int,
    step: int | None,
    trust_code: bool,
    as_json: bool,
) -> None:
    """Draw text from the model that RUN, a run directory, trained."""
    from axcore.inference import Sampling
    from axcore.runs import load_run

    saved = load_run(run, step=step, trust_code=trust_code)
    drawn = saved.samples(
        prompt,
        samples,
        max_tokens=max_tokens,
        sampling=Sampling(temperature=temperature, top_k=top_k),
        seed=seed,
    )
    for one in drawn:
        if as_json:
            line = {"step": saved.step, "prompt": one.prompt, "text": one.text}
            click.echo(json.dumps({**line, "tokens": one.num_tokens, "is_ended": one.is_ended}))
        else:
            click.echo(escape_control_characters(str(one)))
