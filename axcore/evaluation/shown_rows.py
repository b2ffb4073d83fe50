"""Some held-out rows as people look at them: the input, what is right, and what a model answers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np

from axcore.data import ExampleData, Label, Media
from axcore.errors import ConfigError
from axcore.evaluation.input_questions import InputQuestions
from axcore.models import MultimodalLM
from axcore.module import functional
from axcore.runs import OpenedModel, Run, open_model
from axcore.tasks import Classification


@attrs.frozen(kw_only=True)
class ShownRow:
    """A row, and the answer to it.

    Args:
        media: What a model gets of it.
        asked: The question; empty where a class is asked for.
        wanted: The right answer.
        answered: The model's.
    """

    media: tuple[Media, ...]
    asked: str = ""
    wanted: str
    answered: str

    @property
    def is_right(self) -> bool:
        """Whether the answer is exactly the right one."""
        return self.answered == self.wanted


def shown_rows(run: Run, *, max_rows: int, trust_code: bool = False) -> list[ShownRow]:
    """Return held-out rows from all over, with what the run's model answers.

    Args:
        run: Of a classifier, or a language model that reads inputs of features.
        max_rows: How many rows, at most.
        trust_code: Whether code that came with the run is run to open it.

    Raises:
        ConfigError: Rows of the run cannot be shown, or its model answers in another way.
    """
    trainer = run.trainer
    data, task = trainer.data, trainer.task
    if not isinstance(data, ExampleData):
        raise ConfigError(
            f"rows of {type(data).__qualname__} have nothing that a page can show",
            where="data",
            hint="those of ExampleData do, as of `axcore train digits`",
        )
    records = list(data.held_out(max_rows=max_rows))
    if isinstance(task, Classification):
        answered = list(_classified(trainer, run.state, records))
    elif isinstance(trainer.model, MultimodalLM):
        opened = open_model(run.directory, step=run.step, trust_code=trust_code)
        answered = list(_questioned(data, opened, records))
    else:
        raise ConfigError(
            f"what a {type(trainer.model).__qualname__} answers to a row cannot be shown",
            where="task",
            hint="classifiers and language models that read inputs can",
        )
    if answered and not any(one.media for one in answered):
        raise ConfigError(
            "no feature of the data has something that a page can show",
            where="data.features",
            hint="Image of axl-vision does; a feature of yours by its method `media`",
        )
    return answered


def _media(data: ExampleData, record: Mapping[str, Any]) -> tuple[Media, ...]:
    """Return what a page shows of a record, by feature."""
    found = (one.media(one.make(record, None)) for one in data.features.values())
    return tuple(one for one in found if one is not None)


def _classified(
    trainer: Any, state: Any, records: Sequence[Mapping[str, Any]]
) -> Iterator[ShownRow]:
    data, cfg = trainer.data, trainer.task.config
    label = data.features.get(cfg.target)

    def name(number: int) -> str:
        known = label.classes if isinstance(label, Label) else ()
        return known[number] if number < len(known) else str(number)

    def largest(state: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        logits, _ = functional(trainer.model, state, *[batch[one] for one in cfg.inputs])
        return jnp.argmax(logits, axis=-1)

    program, size = trainer.compiler.jitted_policy(largest), data.config.batch_size
    for begin in range(0, len(records), size):
        some = records[begin : begin + size]
        rows = [data.row(one) for one in some]
        # The last row again fills a batch, which the mesh may divide in no other size.
        filled = [*rows, *[rows[-1]] * (size - len(rows))]
        batch = {key: np.stack([one[key] for one in filled]) for key in rows[0]}
        batch["row_weights"] = np.ones(size, np.float32)
        with jax.set_mesh(trainer.mesh):
            found = jax.device_get(program(state, trainer.batch_sharding.device_put(batch)))
        for record, row, answer in zip(some, rows, found, strict=False):
            wanted = int(row[cfg.target])
            yield ShownRow(
                media=_media(data, record), wanted=name(wanted), answered=name(int(answer))
            )


def _questioned(
    data: ExampleData, opened: OpenedModel, records: Sequence[Mapping[str, Any]]
) -> Iterator[ShownRow]:
    with InputQuestions(opened) as asking:
        pairs = [(one, next(asking.questions(one), None)) for one in records]
        asked = [(record, question) for record, question in pairs if question is not None]
        answers = asking.answers([question for _, question in asked])
        texts = [asking.without_marks(question.text) for _, question in asked]
    for (record, question), text, answer in zip(asked, texts, answers, strict=True):
        yield ShownRow(
            media=_media(data, record),
            asked=text,
            wanted=question.wanted,
            answered=answer.strip(),
        )
