"""`ChatText`: a feature of data, rows of conversations that may speak of other inputs of the row.

Letters: T tokens of a row, I inputs of a row such as pictures, N soft tokens of an input.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from axcore.config import REQUIRED, NonNegativeInt, PositiveInt, config, evolve
from axcore.config.json_files import parse_json
from axcore.data.chat.chat_template import ChatTemplate
from axcore.data.chat.chat_tokens import tokenize_chat
from axcore.data.chat.conversation import FIELDS, Conversation, read_conversation
from axcore.data.examples import Feature, FeatureArray, Record
from axcore.data.tokenizers.tokenizer import ByteTokenizer, Tokenizer
from axcore.errors import ConfigError, DataError
from axcore.layers import FIRST_SOFT_TOKEN

PART_TYPES: Mapping[str, str] = {"image_url": "image", "input_audio": "audio"}
"""What templates call parts of contents, by their types in OpenAI's chats."""


class ChatText(Feature):
    """What a language model is trained on: `tokens`, `targets`, `loss_weights` and others, `[T]`.

    Each row is one conversation. Where its text has the mark of an input, as LLaVA's data do, or
    its content has a part of another type than text, as OpenAI's messages do, the row has N soft
    tokens.
    """

    is_named = False

    @config
    class Config(Feature.Config):
        """Which field, and how it becomes tokens.

        Attributes:
            field: Contains the messages, JSON of them, or an object with `messages` or
                `conversations`.
            tokenizer: How text becomes tokens; it has a chat template.
            length: T. A longer conversation is bad.
            role: Whose messages are learned; None for all.
            soft_token: What marks an input in the text: a token of its own, such as `<image>`.
            num_soft_tokens: N, what the model's encoder makes of an input; 0 without inputs.
            num_inputs: I.
        """

        field: str = "messages"
        tokenizer: Tokenizer.Config = ByteTokenizer.Config()
        length: PositiveInt = REQUIRED
        role: str | None = "assistant"
        soft_token: str = "<image>"
        num_soft_tokens: NonNegativeInt = 0
        num_inputs: PositiveInt = 1

        def for_shapes(self) -> Self:
            """Return a config without the files of a tokenizer."""
            marks = (self.soft_token,) if self.num_soft_tokens else ()
            return evolve(self, tokenizer=ByteTokenizer.Config(special_tokens=marks))

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        if cfg.num_soft_tokens and self.mark is None:
            raise ConfigError(
                f"{cfg.soft_token!r} marks an input, and the tokenizer has no such token",
                where="soft_token",
                hint="name one of its own special tokens; ByteTokenizer.Config("
                f"special_tokens=({cfg.soft_token!r},)) adds it",
            )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """How text becomes tokens."""
        built: Tokenizer = self.config.tokenizer.build()
        return built

    @cached_property
    def mark(self) -> int | None:
        """The token that marks an input, if the tokenizer has it."""
        return self.tokenizer.added_token(self.config.soft_token)

    @property
    def fields(self) -> tuple[str, ...]:
        """The messages."""
        return (self.config.field,)

    def arrays(self) -> Mapping[str, FeatureArray]:
        """Return what a language model is trained on."""
        cfg, vocab_size = self.config, self.tokenizer.vocab_size
        soft = cfg.num_inputs * cfg.num_soft_tokens
        known = FIRST_SOFT_TOKEN + soft if soft else vocab_size

        def row(dtype: str, num_values: int | None = None) -> FeatureArray:
            return FeatureArray((cfg.length,), dtype, ("time",), num_values)

        return {
            "tokens": row("int32", known),
            "targets": row("int32", vocab_size),
            "positions": row("int32"),
            "loss_weights": row("float32"),
            "token_mask": row("bool"),
        }

    @cached_property
    def _part_type(self) -> str:
        """The type of the parts that its template reads; empty where it reads texts alone."""
        cfg, template = self.config, self.tokenizer.known_chat_template
        if not cfg.num_soft_tokens:
            return ""
        read = (kind for kind in PART_TYPES.values() if reads_parts(template, cfg.soft_token, kind))
        return next(read, "")

    def prompt(self, question: str, *, system: str | None = None) -> tuple[int, ...]:
        """Return the tokens of a question about a row's inputs, up to where the model answers.

        Args:
            question: What is asked; a text without marks has them at its beginning.
            system: What a system message says before it.

        Raises:
            DataError: The tokenizer has no chat template, or it refuses the conversation.
        """
        cfg, template = self.config, self.tokenizer.known_chat_template
        count = cfg.num_inputs if cfg.num_soft_tokens else 0
        is_marked = cfg.soft_token in question
        content: Any = question if is_marked else cfg.soft_token * count + question
        said: Any = system
        if self._part_type:
            text = question.replace(cfg.soft_token, "").strip()
            content = [*[{"type": self._part_type}] * count, {"type": "text", "text": text}]
            said = None if system is None else [{"type": "text", "text": system}]
        before = [] if said is None else [{"role": "system", "content": said}]
        text = template.render(
            [*before, {"role": "user", "content": content}], add_generation_prompt=True
        )
        tokens = self.tokenizer.encode_rendered(text)
        placed, _ = with_soft_tokens(tokens, tokens, self.mark, cfg.num_soft_tokens)
        return tuple(placed.tolist())

    def make(self, record: Record, rng: np.random.Generator | None) -> Mapping[str, NDArray[Any]]:
        """Return the arrays of a row."""
        cfg = self.config
        tokens, weights = self._sequence(record)
        tokens, weights = with_soft_tokens(tokens, weights, self.mark, cfg.num_soft_tokens)
        found = int(np.sum(tokens >= FIRST_SOFT_TOKEN))
        if found != (expected := cfg.num_inputs * cfg.num_soft_tokens):
            raise ValueError(
                f"its messages have {found // max(1, cfg.num_soft_tokens)} times "
                f"{cfg.soft_token!r}, and a row has {expected // max(1, cfg.num_soft_tokens)}"
            )
        # The last token is a target alone.
        size = len(tokens) - 1
        if size > cfg.length:
            raise ValueError(f"its messages have {size} tokens, more than {cfg.length}")
        targets = np.where(tokens >= FIRST_SOFT_TOKEN, 0, tokens)[1:]

        def filled(values: NDArray[Any], fill: int, dtype: str) -> NDArray[Any]:
            row = np.full(cfg.length, fill, dtype)
            row[:size] = values
            return row

        pad = self.tokenizer.pad_id
        return {
            "tokens": filled(tokens[:-1], pad, "int32"),
            "targets": filled(targets, pad, "int32"),
            "positions": np.arange(cfg.length, dtype=np.int32),
            # A soft token is never predicted, whoever's messages are learned.
            "loss_weights": filled(weights[1:] * (tokens[1:] < FIRST_SOFT_TOKEN), 0, "float32"),
            "token_mask": np.arange(cfg.length) < size,
        }

    def conversation(self, record: Record) -> Conversation:
        """Return the conversation of a record, with the marks of inputs in its text.

        Raises:
            DataError: It is not one.
            ValueError: It is not JSON.
        """
        cfg, found = self.config, record[self.config.field]
        if isinstance(found, str | bytes):
            found = parse_json(found)
        own = found if isinstance(found, Mapping) else {FIELDS[0]: found}
        return read_conversation(own, soft_token=cfg.soft_token if cfg.num_soft_tokens else None)

    def _sequence(self, record: Record) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the tokens of a record, with marks in them, and what each weighs."""
        cfg = self.config
        template = self.tokenizer.known_chat_template
        kind = self._part_type
        if kind and not _writes_alike(template, cfg.soft_token, kind):
            raise ValueError(
                "its chat template reads contents as lists of parts, and writes another text of a "
                f"content with {cfg.soft_token!r} in it, which training needs; set "
                "tokenizer.chat_template_path to one that reads text, or tokenizer.template_texts "
                "to what it writes of a part"
            )
        try:
            parts = tokenize_chat(self.conversation(record), self.tokenizer, role=cfg.role)
        except DataError as error:
            raise ValueError(error.what) from error
        if len(parts) > 1:
            raise ValueError(
                f"its chat template writes it as {len(parts)} texts, since it leaves out of later "
                "turns what it wrote in earlier ones; a row is one"
            )
        (only,) = parts
        if not only.counts[1:].any():
            raise ValueError(f"no message of it is from {cfg.role!r}")
        return only.tokens, only.weights


def reads_parts(template: ChatTemplate, mark: str, kind: str = "image") -> bool:
    """Return whether a template reads contents as lists of parts, and writes marks by itself.

    Args:
        template: Of conversations.
        mark: What an input is in a text.
        kind: The type of an input's part.
    """
    probe = "axcore"
    content = [{"type": kind}, {"type": "text", "text": probe}]
    try:
        text = template.render([{"role": "user", "content": content}])
    except DataError:
        return False
    # A template that writes a content as it is would write Python's form of the list.
    return mark in text and probe in text and "'type'" not in text


def _writes_alike(template: ChatTemplate, mark: str, kind: str) -> bool:
    """Return whether a template writes the same of a mark in a text as of an input's part."""
    probe = "axcore"
    parts = [{"type": kind}, {"type": "text", "text": probe}]
    contents: tuple[Any, ...] = (parts, mark + probe)
    try:
        written = [template.render([{"role": "user", "content": one}]) for one in contents]
    except DataError:
        return False
    return written[0] == written[1]


def with_soft_tokens(
    tokens: NDArray[Any], weights: NDArray[Any], mark: int | None, num_soft_tokens: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return tokens with the soft tokens of an input in the place of each mark.

    Args:
        tokens: `[n]`.
        weights: `[n]`, a number for each of them; soft tokens get that of their mark.
        mark: The token that marks an input.
        num_soft_tokens: Soft tokens of an input.
    """
    if mark is None or not num_soft_tokens:
        return tokens, weights
    is_mark = tokens == mark
    counts = np.where(is_mark, num_soft_tokens, 1)
    soft = np.repeat(is_mark, counts)
    made = np.repeat(tokens, counts).astype(np.int64)
    made[soft] = FIRST_SOFT_TOKEN + np.arange(int(soft.sum()))
    return made, np.repeat(weights, counts)
