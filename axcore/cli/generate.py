"""`axcore generate`: generate text from a trained run, or what its model generates instead."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click
from click.core import ParameterSource

from axcore.cli import options
from axcore.cli.interrupts import exits_on_interrupt
from axcore.cli.loading_display import LoadingDisplay
from axcore.cli.options import escape_control_characters
from axcore.cli.target import use_target
from axcore.config.json_files import read_json_file
from axcore.plugins import Command, plugin_host
from axcore.progress import heard_by
from axcore.resilience.compile_cache import use_compile_cache

if TYPE_CHECKING:
    from axcore.batch_inference import BatchProgress

_OF_FILES = {
    "answers": "--out",
    "stop": "--stop",
    "num_logprobs": "--logprobs",
    "on_error": "--on-error",
    "chat_template": "--chat-template",
    "changes": "--modify",
    "overrides": "--set",
}
"""Options that mean something with --in alone."""

_EVERY_S = 10.0
"""Seconds between two lines that say how far a batch is, where stderr is not a terminal."""


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


class GenerateCommand(click.Command):
    """Generates text, or is the command that generates what the model of its run generates."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Return a context of this command, or of another one, by which model the run has.

        Options differ by what is generated, so it is decided before they are read.
        """
        other = _other_command(args)
        if other is not None:
            return other.make_context(info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


def _other_command(args: list[str]) -> click.Command | None:
    """Return the command of the model of the first run among arguments, if it has its own."""
    for one in args:
        path = Path(one).expanduser() / "config.json"
        try:
            found = read_json_file(path) if path.is_file() else None
            model = found["model"]["type"] if found else None
        except (OSError, ValueError, LookupError, TypeError):
            return None  # opening it says what is wrong
        if model is not None:
            commands = [one for one in plugin_host().records(Command) if model in one.generates]
            return commands[0].fn.resolve() if commands else None
    return None


@click.command(cls=GenerateCommand)
@options.run
@click.option("--prompt", help="Text to continue; empty by default.")
@click.option(
    "--in",
    "prompts",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Prompts, a line of JSON each: a `prompt`, `messages`, or `prompt_tokens`.",
)
@click.option(
    "--out",
    "answers",
    metavar="FILE",
    type=options.OutputPath(),
    help="Where answers to --in are kept, a line each; the same command resumes where it ended.",
)
@click.option(
    "--parse-special/--no-parse-special",
    "parses_special",
    default=True,
    show_default=True,
    help="Read special tokens that the prompt writes out, as <|im_start|>, as these tokens.",
)
@click.option("--max-tokens", default=200, show_default=True, help="Tokens to sample at most.")
@click.option(
    "--samples",
    "--num-samples",
    "samples",
    default=1,
    show_default=True,
    help="Number of continuations, of each prompt.",
)
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
@click.option("--stop", metavar="TEXT", multiple=True, help="Ends an answer to --in. Repeatable.")
@click.option(
    "--logprobs",
    "num_logprobs",
    metavar="N",
    type=int,
    help="Keep log-probabilities of the tokens of answers to --in, and of N likeliest ones.",
)
@click.option(
    "--on-error",
    type=click.Choice(["stop", "skip"]),
    help="With --in: whether a line without a prompt ends the command before it samples (the "
    "default), or its answer says what is wrong.",
)
@click.option(
    "--beams",
    type=int,
    help="Search for the likeliest continuations by so many beams, instead of sampling.",
)
@click.option(
    "--length-penalty",
    default=1.0,
    show_default=True,
    help="With --beams: above 0 prefers longer continuations.",
)
@click.option("--step", type=int, help="Checkpoint to use; by default the newest.")
@click.option(
    "--chat-template",
    metavar="NAME|FILE",
    help="Chat template for `messages` of --in, in the place of the tokenizer's.",
)
@options.modify
@options.overrides
@options.trust_code
@options.allow_unknown_fields
@options.as_json
def generate(
    run: str,
    prompt: str | None,
    prompts: Path | None,
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
    """Generate text from RUN, a run directory or the folder of a pretrained checkpoint.

    Of a model of another kind it generates what that model does, pictures say, and has the options
    for it: `axcore generate RUN --help` shows them.

    With --in and --out it answers every prompt of a file, many at once. --set then changes how, as
    engine.max_num_seqs=64, and --modify the model, as 'kv_cache(dtype=int8)'; see docs/batch.md.
    """
    of_files = {name: sampling.pop(name) for name in _OF_FILES}
    beams, length_penalty = sampling.pop("beams"), sampling.pop("length_penalty")
    how: dict[str, Any] = {"step": step, "trust_code": trust_code}
    if prompts is not None:
        if prompt is not None or of_files["answers"] is None:
            raise click.UsageError("--in needs --out, and no --prompt")
        if beams is not None:
            raise click.UsageError("--beams is for a --prompt")
        drawn_of_each = {"max_tokens": max_tokens, "num_samples": samples, "seed": seed}
        _answer_file(
            prompts,
            of_files,
            {**drawn_of_each, "parses_special": parses_special},
            sampling,
            {"directory": run, **how, "allow_unknown_fields": allow_unknown_fields},
            as_json=as_json,
        )
        return
    given = [option for name, option in _OF_FILES.items() if of_files[name] not in (None, ())]
    if given:
        raise click.UsageError(f"{given[0]} needs --in FILE")
    if beams is not None:
        _check_not_sampled(sampling)
        opening = {**how, "directory": run, "allow_unknown_fields": allow_unknown_fields}
        _search(
            opening,
            prompt or "",
            (beams, samples),
            as_json=as_json,
            max_tokens=max_tokens,
            length_penalty=length_penalty,
            parses_special=parses_special,
        )
        return
    from axcore.inference import Sampling
    from axcore.runs import load_run, open_model
    from axcore.runs.opening import is_published

    drawing = Sampling(**sampling)
    drawing.check()
    is_run = not is_published(Path(run).expanduser())
    if not is_run or allow_unknown_fields:  # which a run refuses
        how |= {"on_host": True, "allow_unknown_fields": allow_unknown_fields}
        saved: Any = open_model(run, **how)
    else:
        saved = load_run(run, **how)
    drawn = saved.samples(
        prompt or "",
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


def _check_not_sampled(sampling: dict[str, Any]) -> None:
    """Raise UsageError where something is asked of samples, and none are made."""
    context = click.get_current_context()
    for name in (*sampling, "seed"):
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            option = name.replace("_", "-")
            raise click.UsageError(f"--beams samples nothing, so there is no --{option}")


def _search(
    opening: dict[str, Any],
    prompt: str,
    numbers: tuple[int, int],
    *,
    as_json: bool,
    max_tokens: int,
    length_penalty: float,
    parses_special: bool,
) -> None:
    """Print the likeliest continuations of a prompt, the best first.

    Args:
        opening: Which model.
        prompt: The prompt.
        numbers: Of beams, and of continuations that are printed.
        as_json: Whether each is a line of JSON.
        max_tokens: Tokens of one at most.
        length_penalty: See `beam_search`.
        parses_special: Whether special tokens that the prompt writes out are these tokens.
    """
    from axcore.data import decoded
    from axcore.inference import EngineConfig, Request, beam_search
    from axcore.runs import engine_for, open_model

    num_beams, num_shown = numbers
    if num_shown > num_beams:
        raise click.UsageError(f"--samples is {num_shown}, more than the {num_beams} of --beams")
    opened = open_model(on_host=True, **opening)
    tokenizer = opened.tokenizer
    tokens = tuple(tokenizer.encode_prompt(prompt, parses_special=parses_special).tolist())
    # No longer than is needed, as the cache has room for so many tokens of each beam.
    length = min(opened.length, len(tokens) + max_tokens)
    cfg = EngineConfig(max_num_seqs=max(1, num_beams), max_length=length)
    engine, _ = engine_for(opened, cfg)
    with engine:
        found = beam_search(
            engine,
            Request(prompt=tokens, max_tokens=max(1, min(max_tokens, length - len(tokens)))),
            num_beams=num_beams,
            end_ids=tokenizer.end_ids,
            length_penalty=length_penalty,
        )
    for one in found[:num_shown]:
        text = decoded(tokenizer, one.tokens)
        if as_json:
            line = {"step": opened.step, "prompt": prompt, "text": text}
            line |= {"tokens": len(one.tokens), "is_ended": one.finish_reason == "stop"}
            click.echo(json.dumps({**line, "logprob": one.logprob, "score": one.score}))
        else:
            click.echo(escape_control_characters(prompt + text))


def _answer_file(
    prompts: Path,
    of_files: dict[str, Any],
    values: dict[str, Any],
    sampling: dict[str, Any],
    opening: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    """Answer the prompts of a file that have no answer yet, and print how many those are."""
    use_compile_cache()
    use_target(None)
    from axcore.batch_inference import BatchConfig, BatchInference, PromptFile
    from axcore.config import apply_overrides
    from axcore.data.tokenizers.hugging_face_tokenizer import with_chat_template
    from axcore.inference import Sampling
    from axcore.runs import open_model

    answers, template = of_files["answers"], of_files["chat_template"]
    cfg = BatchConfig(
        **values,
        sampling=Sampling(**sampling),
        stop=of_files["stop"],
        num_logprobs=of_files["num_logprobs"],
        on_error=of_files["on_error"] or "stop",
    )
    cfg = apply_overrides(cfg, of_files["overrides"])
    # Before weights are loaded, which takes long.
    cfg.check()
    PromptFile.check_is_readable(prompts)
    far: "list[BatchProgress]" = []
    with exits_on_interrupt(lambda: _stopped(answers, far)):
        opened = open_model(changes=of_files["changes"], on_host=True, **opening)
        tokenizer = template and with_chat_template(
            opened.tokenizer, template, where="--chat-template"
        )
        batch = BatchInference(
            opened, prompts, answers, cfg, changes=of_files["changes"], tokenizer=tokenizer
        )
        if (number := batch.summary.num_shortened) and not as_json:
            click.echo(
                f"{number} of {batch.summary.num_prompts} prompts leave less than {cfg.max_tokens} "
                "tokens of the model's length: their answers may end there",
                err=True,
            )
        with LoadingDisplay(every_s=_EVERY_S) as display, heard_by(display.hear):

            def show(progress: "BatchProgress") -> None:
                if not far:
                    display.begin("sampling")
                far[:] = [progress]
                if progress.num_done > progress.num_before:
                    display.advance(progress.num_done, progress.num_prompts, _rate(progress))

            done = batch.run(show)
    if as_json:
        shown = {**attrs.asdict(done), "num_bad": batch.summary.num_bad}
        click.echo(json.dumps({"step": opened.step, "answers": str(answers), **shown}))
    else:
        click.echo(_summary_text(answers, done, batch.summary.num_bad))


def _rate(progress: "BatchProgress") -> str:
    from axcore.trainer.callbacks.progress import duration_text

    left = progress.seconds_left
    text = "" if left is None else f", {duration_text(left)} left"
    return f"{progress.tokens_per_s:,.0f} tokens/s{text}"


def _summary_text(answers: Path, done: "BatchProgress", num_bad: int) -> str:
    bad = f"; {num_bad} of them are errors of lines without a prompt" if num_bad else ""
    if done.num_before == done.num_prompts:
        return f"{answers}: all {done.num_prompts} answers are there already{bad}"
    before = f", {done.num_before} of them from before" if done.num_before else ""
    return (
        f"{answers}: {done.num_prompts} answers{before}{bad}; {done.num_tokens:,} tokens in "
        f"{done.seconds:.1f} s, {done.tokens_per_s:,.0f} tokens/s"
    )


def _stopped(answers: Path, far: "list[BatchProgress]") -> str:
    shown = "\x1b[?25h" if sys.stderr.isatty() else ""  # the cursor, which a bar hides
    if not far:
        return f"{shown}stopped by Ctrl-C, before anything was sampled"
    done = far[0]
    return (
        f"{shown}stopped by Ctrl-C: {answers} has {done.num_done} of {done.num_prompts} answers; "
        "the same command resumes"
    )
