"""Guesses of a draft model: a smaller one with the same tokenizer, which draws ahead."""

from collections.abc import Iterable
from typing import Any

import attrs

from axcore.config import PositiveInt, config
from axcore.data import Tokenizer
from axcore.errors import ConfigError
from axcore.module import Module

_PROBE = (
    "The quick brown fox, 0123456789: été, Straße, данные, 模型, 🙂!\n"
    '\tdef area(r): return 3.14 * r ** 2  # {"key": [null, true]} </s>'
)
"""A text that tokenizers of other vocabularies write in other tokens."""


@config
class DraftModel:
    """Guesses tokens that a draft model draws, which the engine is given beside this.

    It draws with the noise of the model that it guesses for, so both agree as often as they can.

    Args:
        num_tokens: Tokens that are guessed at most.
    """

    num_tokens: PositiveInt = 4

    def check(self) -> None:
        """Every value makes sense."""

    def index(self, text: Iterable[int]) -> "DraftPlaces":
        """Returns what guesses for one text: places alone, which the draft model fills."""
        del text
        return DraftPlaces(self.num_tokens)


@attrs.frozen
class DraftPlaces:
    """Places for guesses that are drawn on the device.

    Args:
        num_tokens: Number of them.
    """

    num_tokens: int

    def push(self, tokens: Iterable[int]) -> None:
        """Needs no tokens: the draft model's cache has them."""

    def guess(self) -> list[int]:
        """Returns any tokens, in the place of those to be drawn."""
        return [0] * self.num_tokens


@attrs.frozen(kw_only=True)
class Draft:
    """A draft model with its weights.

    Args:
        model: The model, as it is trained.
        state: Its state.
        tokenizer: The tokenizer that it was trained with.
    """

    model: Module
    state: Any
    tokenizer: Tokenizer

    def check_tokenizer(self, other: Tokenizer) -> None:
        """Refuses a tokenizer whose numbers mean other text than the draft's.

        Raises:
            ConfigError: Saying how they differ.
        """
        own = self.tokenizer
        reason = None
        if own.vocab_size != other.vocab_size:
            reason = f"one has {own.vocab_size} tokens, the other {other.vocab_size}"
        elif set(own.end_ids) != set(other.end_ids):
            reason = f"texts end with {own.end_ids} in one, with {other.end_ids} in the other"
        elif own.encode(_PROBE).tolist() != other.encode(_PROBE).tolist():
            reason = "they write the same text in other tokens"
        if reason is not None:
            raise ConfigError(
                f"the draft's tokenizer is not that of the model: {reason}",
                where="draft",
                hint="take a smaller model of the same family, or train one with this tokenizer",
            )
