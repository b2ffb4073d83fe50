"""`PictureQuestions`: asks a language model about pictures; and `axcore ask`."""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click

from axcore.errors import ConfigError, DataError

_LENGTH = 64
"""Tokens of an answer at most."""

_AT_ONCE = 512
"""Questions that are in memory at a time."""


class PictureQuestions:
    """An engine that answers questions about pictures, greedily; it is to be closed.

    Args:
        opened: What `axcore.runs.open_model` returned.
        max_num_seqs: Questions that are answered at once.

    Raises:
        ConfigError: The model reads no pictures.
    """

    def __init__(self, opened: Any, *, max_num_seqs: int = 16) -> None:
        from axcore.data import ChatText
        from axcore.inference import EngineConfig
        from axcore.models import MultimodalLM
        from axcore.runs import engine_for

        features = getattr(opened.trainer.data, "features", {})
        chats = [one for one in features.values() if isinstance(one, ChatText)]
        if not isinstance(opened.model, MultimodalLM) or not chats:
            raise ConfigError(
                f"{opened.name} reads no pictures: its model is a "
                f"{type(opened.model).__qualname__}",
                where="model",
                hint="that of `axcore train digits-chat` does",
            )
        self._chat, self._image = chats[0], features[opened.model.config.input_name]
        self._engine, _ = engine_for(opened, EngineConfig(max_num_seqs=max_num_seqs))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._engine.close()

    def answers(self, questions: Sequence[tuple[bytes, str, str | None]]) -> list[str]:
        """Return the answer to each question about a picture.

        Args:
            questions: Files of pictures, what is asked about each, and what a system message says.

        Raises:
            ValueError: A file is not a picture.
            RequestError: A question is too long.
        """
        from axcore.inference import EncoderInput, Request, Sampling

        requests = []
        for file, question, system in questions:
            made = self._image.make({self._image.config.field: file}, None)
            prompt = self._chat.prompt(question, system=system)
            room = max(1, self._engine.max_length - len(prompt))
            requests.append(
                Request(
                    prompt=prompt,
                    max_tokens=min(_LENGTH, room),
                    sampling=Sampling(temperature=0),
                    inputs=(EncoderInput(made[""]),),
                )
            )
        return [one.result().text for one in self._engine.submit_all(requests)]

    def exact_match(self, records: Iterator[dict[str, Any]]) -> tuple[int, int]:
        """Return how many answers are exactly those of records, and of how many.

        Each question of a conversation is asked alone, without the turns before it.

        Args:
            records: Pictures with conversations about them.
        """
        right = total = 0
        asked: list[tuple[bytes, str, str | None]] = []
        wanted: list[str] = []

        def compare() -> int:
            found = [one.strip() for one in self.answers(asked)]
            return sum(one == other for one, other in zip(found, wanted, strict=True))

        for record in records:
            turns = self._chat.conversation(record).messages
            is_begun = turns[0]["role"] == "system"
            system = str(turns[0]["content"]) if is_begun else None
            for before, after in pairwise(turns):
                if (before["role"], after["role"]) == ("user", "assistant"):
                    file = record[self._image.config.field]
                    asked.append((file, str(before["content"]), system))
                    wanted.append(str(after["content"]).strip())
            if len(asked) >= _AT_ONCE:
                right, total = right + compare(), total + len(asked)
                asked.clear()
                wanted.clear()
        return (right + compare(), total + len(asked)) if asked else (right, total)


@click.command()
@click.argument("run")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--question", "-q", multiple=True, help="What is asked about each file.")
@click.option(
    "--held-out",
    is_flag=True,
    help="Ask what the run's data asks about pictures that it was not trained on, and report the "
    "share of answers that are exactly right.",
)
@click.option("--step", type=int, help="Checkpoint to use; by default the newest.")
@click.option("--trust-code", is_flag=True, help="Run code that came with the run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    run: str,
    files: tuple[Path, ...],
    question: tuple[str, ...],
    held_out: bool,
    step: int | None,
    trust_code: bool,
    as_json: bool,
) -> None:
    """Ask RUN about the pictures in FILES.

    RUN is a run directory, or the folder of a pretrained checkpoint.

    \b
    axcore ask runs/digits-chat photo.png --question 'Which digit?'
    axcore ask runs/digits-chat --held-out
    """
    if held_out == bool(files) or bool(files) != bool(question):
        raise click.UsageError("name FILES and a --question, or --held-out alone")
    from axcore.runs import open_model

    opened = open_model(run, step=step, trust_code=trust_code)
    with PictureQuestions(opened) as asking:
        if held_out:
            right, total = asking.exact_match(opened.trainer.data.held_out())
            if not total:
                raise DataError(
                    "the run's data hold out no conversation",
                    where="data.validation_fraction",
                    hint="train with --set data.validation_fraction=0.1",
                )
            click.echo(
                json.dumps({"right": right, "questions": total, "exact_match": right / total})
                if as_json
                else f"{right} of {total} answers are exactly right, {right / total:.1%}"
            )
            return
        pairs = [(path, one) for path in files for one in question]
        contents = {path: path.read_bytes() for path in files}
        try:
            found = asking.answers([(contents[path], one, None) for path, one in pairs])
        except ValueError as error:
            names = ", ".join(map(str, files))
            raise DataError(f"a file is not a picture: {error}", where=names) from error
        for (path, one), answer in zip(pairs, found, strict=True):
            line = {"file": str(path), "question": one, "answer": answer}
            click.echo(json.dumps(line) if as_json else f"{path}: {one} {answer}")
