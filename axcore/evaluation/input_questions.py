"""`InputQuestions`: asks a language model about inputs of a row other than text, as pictures."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Any, NamedTuple, Self

from axcore.data import ChatText
from axcore.errors import ConfigError
from axcore.inference import EncoderInput, EngineConfig, Request, Sampling
from axcore.models import MultimodalLM
from axcore.runs import engine_for

_LENGTH = 64
"""Tokens of an answer at most."""

_AT_ONCE = 512
"""Questions that are in memory at a time."""


class InputQuestion(NamedTuple):
    """A question about a file.

    Args:
        file: That of the input.
        text: What is asked.
        system: What a system message says before it.
        wanted: The right answer, where it is known.
    """

    file: bytes
    text: str
    system: str | None = None
    wanted: str = ""


class InputQuestions:
    """An engine that answers questions about inputs, greedily; it is to be closed.

    Args:
        opened: What `axcore.runs.open_model` returned.
        max_num_seqs: Questions that are answered at once.

    Raises:
        ConfigError: The model reads text alone.
    """

    def __init__(self, opened: Any, *, max_num_seqs: int = 16) -> None:
        features = getattr(opened.trainer.data, "features", {})
        chats = [one for one in features.values() if isinstance(one, ChatText)]
        if not isinstance(opened.model, MultimodalLM) or not chats:
            raise ConfigError(
                f"{opened.name} reads text alone: its model is a {type(opened.model).__qualname__}",
                where="model",
                hint="name a run of a model with an encoder, such as that of `axcore train "
                "digits-chat`",
            )
        self._chat, self._input = chats[0], features[opened.model.config.input_name]
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

    def answers(self, questions: Sequence[InputQuestion]) -> list[str]:
        """Return the answer to each question.

        Raises:
            ValueError: A file is none that the model reads.
            RequestError: A question is too long.
        """
        requests = []
        for one in questions:
            made = self._input.make({self._field: one.file}, None)
            prompt = self._chat.prompt(one.text, system=one.system)
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

    def without_marks(self, text: str) -> str:
        """Return a question as people read it: without what marks the place of an input."""
        return text.replace(self._chat.config.soft_token, "").strip()

    def questions(self, record: Mapping[str, Any]) -> Iterator[InputQuestion]:
        """Yield the questions of a record's conversation, each without the turns before it."""
        turns = self._chat.conversation(record).messages
        is_begun = turns[0]["role"] == "system"
        system = str(turns[0]["content"]) if is_begun else None
        for before, after in pairwise(turns):
            if (before["role"], after["role"]) == ("user", "assistant"):
                wanted = str(after["content"]).strip()
                yield InputQuestion(record[self._field], str(before["content"]), system, wanted)

    def exact_match(self, records: Iterator[dict[str, Any]]) -> tuple[int, int]:
        """Return how many answers are exactly those of records, and of how many.

        Args:
            records: Inputs with conversations about them.
        """
        right = total = 0
        asked: list[InputQuestion] = []

        def compare() -> int:
            found = [one.strip() for one in self.answers(asked)]
            return sum(one == other.wanted for one, other in zip(found, asked, strict=True))

        for record in records:
            asked.extend(self.questions(record))
            if len(asked) >= _AT_ONCE:
                right, total = right + compare(), total + len(asked)
                asked.clear()
        return (right + compare(), total + len(asked)) if asked else (right, total)

    @property
    def _field(self) -> str:
        return str(self._input.config.field)
