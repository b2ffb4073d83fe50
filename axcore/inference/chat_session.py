"""`ChatSession`: a conversation with an engine, turn by turn, as `axcore chat` has it."""

from collections.abc import Iterator, Mapping
from typing import Any

from axcore.data.chat.parsers.formats import (
    REASONING_FORMATS,
    AnswerReader,
    named_format,
    special_marks,
)
from axcore.data.chat.parsers.pieces import Piece
from axcore.data.tokenizers.tokenizer import Tokenizer
from axcore.errors import RequestError
from axcore.inference.replicas import AnyEngine
from axcore.inference.request import Request, Sampling


class ChatSession:
    """Asks an engine question after question, each with all that was said before it.

    What the engine has of earlier turns in its prefix cache is not computed again.

    Args:
        engine: What answers.
        tokenizer: The model's; it has a chat template.
        system: What the conversation begins with, if anything.
        sampling: How tokens are sampled.
        max_tokens: Tokens of an answer at most.
        seed: Decides the samples; answer `i` is sampled with `seed + i`.
        values: What else the chat template reads.

    Attributes:
        messages: What was said.
        num_dropped: Messages that the last question left out, as the model cannot read so many.
        is_cut: Whether the last answer ended because it had as many tokens as it may have.

    Raises:
        DataError: The tokenizer has no chat template.
    """

    def __init__(
        self,
        engine: AnyEngine,
        tokenizer: Tokenizer,
        *,
        system: str | None = None,
        sampling: Sampling = Sampling(),  # noqa: B008 - a frozen value
        max_tokens: int = 1024,
        seed: int = 0,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        self._engine, self._tokenizer = engine, tokenizer
        self._template = tokenizer.known_chat_template
        self._sampling, self._max_tokens, self._seed = sampling, max_tokens, seed
        self._values = values or {}
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[dict[str, Any]] = []
        self.num_dropped = 0
        self.is_cut = False
        self._num_answers = 0

    def clear(self) -> None:
        """Forget what was said; what the conversation begins with stays."""
        self.messages = []

    def ask(self, text: str) -> Iterator[Piece]:
        """Yield the pieces of an answer as they are sampled: texts and `Reasoning`.

        An answer that its reader leaves, or that Ctrl-C ends, is kept as far as it came.

        Raises:
            RequestError: The question alone is longer than the model reads.
            DataError: The chat template refuses the conversation.
        """
        question = {"role": "user", "content": text}
        source = self._template.source
        reasoning = named_format(REASONING_FORMATS, None, source, where="the chat template")
        prompt, tokens = self._prompt(question)
        special = special_marks(self._tokenizer, reasoning)
        reader = AnswerReader(
            reasoning, is_open=reasoning is not None and reasoning.is_begun_by(prompt)
        )
        request = Request(
            prompt=tokens,
            max_tokens=min(self._max_tokens, self._engine.max_length - len(tokens)),
            sampling=self._sampling,
            seed=self._seed + self._num_answers,
            visible_tokens=tuple(special.values()),
        )
        stream = self._engine.submit(request)
        self._num_answers += 1
        answer = ""
        try:
            for delta in stream:
                self.is_cut = delta.finish_reason == "length"
                for piece in reader.read(delta.text):
                    answer += piece if isinstance(piece, str) else ""
                    yield piece
            if stream.error is not None:
                raise stream.error
            for piece in reader.finish():
                answer += piece if isinstance(piece, str) else ""
                yield piece
        finally:
            stream.cancel()
            # Without its reasoning: templates leave that of earlier answers out.
            self.messages += [question, {"role": "assistant", "content": answer.strip()}]

    def _prompt(self, question: dict[str, Any]) -> tuple[str, tuple[int, ...]]:
        """Return the conversation with a question, and its tokens, without what is too old.

        Raises:
            RequestError: The question alone is too long.
        """
        said, self.num_dropped = list(self.messages), 0
        length = self._engine.max_length
        while True:
            messages = [*self._system, *said, question]
            prompt = self._template.render(messages, add_generation_prompt=True, **self._values)
            tokens = tuple(self._tokenizer.encode_rendered(prompt).tolist())
            # Room for an answer, too: else answers would get shorter and shorter.
            room = min(self._max_tokens, length // 4) if said else 1
            if len(tokens) + room <= length:
                return prompt, tokens
            if not said:
                raise RequestError(
                    f"the question has {len(tokens)} tokens, and the model reads {length}",
                    where="the question",
                    hint="ask something shorter, or start with a larger --max-length",
                )
            # A question and its answer, so that turns still alternate.
            said, self.num_dropped = said[2:], self.num_dropped + 2
