"""`axcore generate`: generate text from a trained run."""

import json
from pathlib import Path
from typing import Any

import click

from axcore.cli import options
from axcore.cli.options import escape_control_characters


def _biases(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[tuple[int, float], ...]:
    """Return pairs of a token and its bias."""
    found = []
    for text in texts:
        token, _, bias = text.partition("=")
        try:
            found.append((int(token), float(bias)))
        except ValueError:
            raise click.BadParameter(f"{text!r} is not TOKEN=NUMBER, as 17=-100") from None
    return tuple(found)


@click.command()
@options.run
@click.option("--prompt", default="", help="Text to continue.")
@click.option(
    "--parse-special/--no-parse-special",
    "parses_special",
    default=True,
    show_default=True,
    help="Read special tokens that the prompt writes out, as <|im_start|>, as these tokens.",
)
@click.option("--max-tokens", default=200, show_default=True, help="Tokens to sample at most.")
@click.option("--samples", default=1, show_default=True, help="Number of continuations.")
@click.option("--temperature", default=0.8, show_default=True, help="0 takes the likeliest token.")
@click.option("--top-k", type=int, help="Sample from this many likeliest tokens only.")
@click.option(
    "--top-p",
    default=1.0,
    show_default=True,
    help="Sample from the fewest likeliest tokens whose probabilities add up to this.",
)
@click.option(
    "--min-p",
    default=0.0,
    show_default=True,
    help="Sample from tokens at least this many times as likely as the likeliest.",
)
@click.option(
    "--repetition-penalty",
    default=1.0,
    show_default=True,
    help="Divides the positive logits of tokens that are there already.",
)
@click.option(
    "--presence-penalty",
    default=0.0,
    show_default=True,
    help="Subtracted from the logits of tokens sampled before.",
)
@click.option(
    "--frequency-penalty",
    default=0.0,
    show_default=True,
    help="Subtracted as often as a token was sampled before.",
)
@click.option(
    "--logit-bias",
    metavar="TOKEN=NUMBER",
    multiple=True,
    callback=_biases,
    help="Added to the logit of the token of this number. Repeatable.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the samples.")
@click.option("--step", type=int, help="Checkpoint to use; by default the newest.")
@options.trust_code
@options.allow_unknown_fields
@options.as_json
def generate(
    run: str,
    prompt: str,
    max_tokens: int,
    samples: int,
    seed: int,
    step: int | None,
    trust_code: bool,
    allow_unknown_fields: bool,
    as_json: bool,
    parses_special: bool,
    **sampling: Any,
) -> None:
    """Generate text from RUN, a run directory or the folder of a pretrained checkpoint."""
    from axcore.inference import Sampling
    from axcore.runs import load_run, open_model
    from axcore.runs.opening import is_published

    drawing = Sampling(**sampling)
    drawing.check()
    how: dict[str, Any] = {"step": step, "trust_code": trust_code}
    is_run = not is_published(Path(run).expanduser())
    if not is_run or allow_unknown_fields:  # which a run refuses
        how |= {"on_host": True, "allow_unknown_fields": allow_unknown_fields}
        saved: Any = open_model(run, **how)
    else:
        saved = load_run(run, **how)
    drawn = saved.samples(
        prompt,
        samples,
        max_tokens=max_tokens,
        sampling=drawing,
        seed=seed,
        parses_special=parses_special,
    )
    for one in drawn:
        if as_json:
            line = {"step": saved.step, "prompt": one.prompt, "text": one.text}
            click.echo(json.dumps({**line, "tokens": one.num_tokens, "is_ended": one.is_ended}))
        else:
            click.echo(escape_control_characters(str(one)))
