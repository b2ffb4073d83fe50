"""`transcribe`, what sound files say to a trained model, and `axcore transcribe`."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from axcore.errors import ConfigError, DataError
from axl_audio.sound import Audio

BATCH = 16
"""Sounds that are transcribed at once. A program is made for so many, however few there are."""


def transcribe(trainer: Any, state: Any, sounds: Sequence[bytes]) -> list[str]:
    """Return the text of each sound, greedily decoded.

    Args:
        trainer: What holds the model, its task and its data; a `Run` has it.
        state: Of the model.
        sounds: Sound files.

    Raises:
        ConfigError: The model writes no text, or its data have no sound or no text.
        ValueError: A file cannot be decoded, or is longer than those trained on.
    """
    from axcore.tasks import CTC

    audio, text = (_feature(trainer, kind) for kind in _kinds())
    rows = [audio.make({audio.config.field: one}, None) for one in sounds]
    if not rows:
        return []
    found: list[str] = []
    size = audio.config.num_samples
    if isinstance(trainer.task, CTC):  # whose models do not see padding
        longest = max(int(row["_length"]) for row in rows)
        size = next(one for one in row_sizes(size, audio.config.sample_rate) if one >= longest)
    num_rows = 1 if len(rows) == 1 else BATCH
    program = _decoder(trainer, text, num_rows=num_rows, num_samples=size)
    for begin in range(0, len(rows), BATCH):
        some = rows[begin : begin + BATCH]
        padded = [*some, *some[:1] * (num_rows - len(some))]
        samples = np.stack([row[""][:size] for row in padded])
        arrays = samples, np.stack([row["_length"] for row in padded])
        tokens, counts = (np.asarray(one) for one in program(state, *arrays))
        for row in range(len(some)):
            found.append(text.tokenizer.decode(tokens[row, : counts[row]].tolist()))
    return found


def row_sizes(num_samples: int, sample_rate: int) -> tuple[int, ...]:
    """Return the samples of rows that programs are compiled for, so that short sounds cost less.

    Args:
        num_samples: Of the longest sound.
        sample_rate: Samples a second.
    """
    shorter = (seconds * sample_rate for seconds in (5, 10, 20))
    return (*(size for size in shorter if size < num_samples), num_samples)


def _kinds() -> tuple[type, type]:
    from axcore.data import Text

    return Audio, Text


def _feature(trainer: Any, kind: type) -> Any:
    """Return the feature of a kind that the model is trained on.

    Raises:
        ConfigError: There is none.
    """
    for one in getattr(trainer.data, "features", {}).values():
        if isinstance(one, kind):
            return one
    raise ConfigError(
        f"the run's data have no {kind.__qualname__}",
        where="data.features",
        hint='features={"sound": Audio.Config(...), "text": Text.Config(...)}',
    )


def _decoder(trainer: Any, text: Any, *, num_rows: int, num_samples: int) -> Callable[..., Any]:
    """Return the function of state, sounds and lengths to tokens, and how many of them count.

    Args:
        trainer: What holds the model and its task.
        text: The feature of its texts.
        num_rows: Sounds of a call.
        num_samples: Samples of each.

    Raises:
        ConfigError: The model writes no text.
    """
    import jax
    import jax.numpy as jnp

    from axcore.inference import Seq2SeqGenerator
    from axcore.module import functional
    from axcore.tasks import CTC, greedy_labels
    from axl_audio.speech_to_text import SpeechToText

    model: Any = trainer.model
    task = trainer.task
    if isinstance(task, CTC):

        def from_frames(state: Any, sound: Any, length: Any) -> Any:
            logits, is_frame = functional(model, state, sound, length)[0]
            return greedy_labels(logits.astype(jnp.float32), is_frame, task.config.blank)

        return jax.jit(from_frames)
    if isinstance(trainer.model, SpeechToText):
        prompt = np.full((num_rows, 1), text.tokenizer.bos_id, np.int32)
        generator = Seq2SeqGenerator(
            model,
            num_rows=num_rows,
            max_tokens=1 + text.config.length,
            source_length=model.num_source_tokens(num_samples),
            end=text.tokenizer.eos_id,
        )

        def from_tokens(state: Any, sound: Any, length: Any) -> Any:
            caches = generator.encode(state, (sound, length))
            tokens, is_text = generator.generate(state, caches, prompt)
            return tokens, is_text.sum(axis=1)

        return from_tokens
    raise ConfigError(
        f"the model is a {type(model).__qualname__}, which writes down no sound",
        where="model",
        hint="that of `axcore train spoken-digits` does",
    )


def word_error_rate(said: Sequence[str], wanted: Sequence[str]) -> float:
    """Return how many words are inserted, left out or wrong, as a share of those of `wanted`.

    Args:
        said: What is compared.
        wanted: The right texts.

    Raises:
        ValueError: The right texts have no words.
    """
    import jax.numpy as jnp

    from axcore.tasks import edit_distance

    words = [[one.split() for one in texts] for texts in (said, wanted)]
    total = sum(map(len, words[1]))
    if not total:
        raise ValueError("there are no words to compare with")
    number = {word: i for i, word in enumerate({w for side in words for one in side for w in one})}
    arrays = []
    for side in words:
        table = np.zeros((len(side), max(1, *map(len, side))), np.int32)
        for row, one in enumerate(side):
            table[row, : len(one)] = [number[word] for word in one]
        arrays += [jnp.asarray(table), jnp.asarray([len(one) for one in side], jnp.int32)]
    return int(edit_distance(*arrays).sum()) / total


@click.command()
@click.argument("run")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--compare",
    is_flag=True,
    help="Report the word error rate too, against the text in FILE.txt next to each.",
)
@click.option("--step", type=int, help="Checkpoint to use; by default the newest.")
@click.option("--trust-code", is_flag=True, help="Run code that came with the run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    run: str,
    files: tuple[Path, ...],
    compare: bool,
    step: int | None,
    trust_code: bool,
    as_json: bool,
) -> None:
    """Write down what sound FILES say, by the model of RUN, a run directory."""
    from axcore.ops import use_policy
    from axcore.runs import load_run

    opened = load_run(run, step=step, trust_code=trust_code)
    wanted = [_text_of(one) for one in files] if compare else []
    sounds = [one.read_bytes() for one in files]
    try:
        with use_policy(opened.trainer.compiler.kernel_policy):
            texts = transcribe(opened.trainer, opened.state, sounds)
    except ValueError as error:
        raise DataError(str(error), where="FILES") from error
    rate = word_error_rate(texts, wanted) if compare else None
    if as_json:
        named = {str(file): text for file, text in zip(files, texts, strict=True)}
        click.echo(json.dumps({"texts": named, "word_error_rate": rate, "step": opened.step}))
        return
    for file, text in zip(files, texts, strict=True):
        click.echo(f"{file}: {text}")
    if rate is not None:
        click.echo(f"word error rate {rate:.4f} of {sum(len(one.split()) for one in wanted)} words")


def _text_of(file: Path) -> str:
    """Return what a file says, from the text next to it.

    Raises:
        DataError: There is none.
    """
    path = file.with_suffix(".txt")
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"there is no text to compare with: {error.strerror}",
            where=str(path),
            hint="leave out --compare, or write what is said into that file",
        ) from error
