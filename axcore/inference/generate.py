"""`Generator`: continues a prompt.

The prompt runs through the model once, and every token after it once, by what caches keep of those
before. A text that fills the context continues from its last half, which runs again.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import attrs
import jax
import numpy as np

from axcore.data import Tokenizer
from axcore.errors import ConfigError
from axcore.inference.cached_model import CachedModel, Draws, padded_size
from axcore.inference.drawing import packed_mask
from axcore.inference.sampling import Sampling
from axcore.layers import ServingRoom
from axcore.module import Module

DRAWN_AT_ONCE = 16
"""Tokens of a row that one call draws."""


@attrs.frozen
class Generation:
    """One continuation of a prompt.

    Args:
        prompt: The prompt.
        text: What was generated, without the prompt.
        num_tokens: Number of tokens drawn, the end token not counted.
        is_ended: Whether the model ended the text itself.
    """

    prompt: str
    text: str
    num_tokens: int
    is_ended: bool

    def __str__(self) -> str:
        return self.prompt + self.text


class Generator:
    """Draws text from a model with a `logits` entry, as `CausalLM` has.

    Args:
        model: The model.
        state: Its state.
        tokenizer: The tokenizer that it was trained with.
        context: Number of last tokens that the model sees, its training length usually.
    """

    def __init__(self, model: Module, state: Any, tokenizer: Tokenizer, *, context: int) -> None:
        self.model = model
        self.state = state
        self.tokenizer = tokenizer
        self.context = context
        self._models: dict[ServingRoom, CachedModel] = {}
        self._allowed = _allowed(model, tokenizer)

    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int,
        num_samples: int = 1,
        sampling: Sampling = Sampling(),  # noqa: B008 - a frozen value
        seed: int = 0,
    ) -> tuple[Generation, ...]:
        """Returns continuations of a prompt.

        Args:
            prompt: The text to continue; empty only where the tokenizer has a token to begin with.
            max_tokens: Tokens drawn at most.
            num_samples: Number of continuations, each with its own random keys.
            sampling: How tokens are drawn.
            seed: Decides the draws.

        Raises:
            ConfigError: The prompt has no token at all, or a number makes no sense.
        """
        rows = list(self.stream(prompt, max_tokens, num_samples, sampling=sampling, seed=seed))
        drawn = np.stack(rows, axis=1) if rows else np.zeros((num_samples, 0), np.int32)
        return tuple(self._finished(prompt, row) for row in drawn)

    def stream(
        self,
        prompt: str,
        max_tokens: int,
        num_samples: int = 1,
        *,
        sampling: Sampling,
        seed: int,
    ) -> Iterator[np.ndarray]:
        """Yields one token a sample at a time, `[num_samples]`; ends when all samples have.

        A sample that has ended yields the end token from there on.
        """
        sampling.check(self.tokenizer.vocab_size)
        if sampling.has_penalties:
            raise ConfigError(
                "a Generator counts no tokens, which penalties need",
                where="sampling",
                hint="leave the penalties as they are by default",
            )
        if max_tokens < 1 or num_samples < 1:
            raise ConfigError(
                f"max_tokens is {max_tokens} and num_samples {num_samples}; expected 1 or more"
            )
        start = np.tile(self._prompt(prompt), (num_samples, 1))
        model = self._model(num_samples, min(start.shape[1] + max_tokens, self.context))
        draws = Draws(jax.random.split(jax.random.key(seed), num_samples), 0, self._allowed)
        ended = np.zeros(num_samples, bool)
        tokens = self._tokens(model, start, draws, sampling, min(max_tokens, DRAWN_AT_ONCE))
        for drawn in itertools.islice(tokens, max_tokens):
            drawn = np.where(ended, self.tokenizer.eos_id, drawn)
            yield drawn
            ended |= np.isin(drawn, self.tokenizer.end_ids)
            if ended.all():
                return

    def _tokens(
        self, model: CachedModel, text: np.ndarray, draws: Draws, sampling: Sampling, count: int
    ) -> Iterator[np.ndarray]:
        """Yields tokens that continue each row of a text, without an end."""
        seen = text[:, -self.context :]
        while True:
            logits, caches = model.read(seen)
            num_cached = seen.shape[1]
            room = max(1, self.context - num_cached)
            for first in range(0, room, count):
                cached = np.full(len(text), num_cached + first, np.int32)
                drawn, logits, caches = model.draw(
                    model.weights, caches, logits, cached, draws, sampling, count
                )
                kept = np.asarray(drawn)[: room - first]
                yield from kept
                text = np.concatenate([text, kept.T], axis=1)
                draws = draws._replace(first=draws.first + len(kept))
            seen = text[:, -max(1, self.context // 2) :]

    def _model(self, num_rows: int, num_tokens: int) -> CachedModel:
        """Returns a model with room for so many tokens of so many rows."""
        capacity = padded_size(num_tokens + DRAWN_AT_ONCE)
        room = ServingRoom(num_rows=num_rows, capacity=capacity, max_length=self.context)
        if room not in self._models:
            self._models[room] = CachedModel(self.model, self.state, room)
        return self._models[room]

    def _prompt(self, prompt: str) -> np.ndarray:
        tokens = self.tokenizer.encode_prompt(prompt)[-self.context :]
        if not len(tokens):
            raise ConfigError("the prompt is empty", hint="give a prompt of at least one token")
        return np.asarray(tokens, np.int32)

    def _finished(self, prompt: str, drawn: np.ndarray) -> Generation:
        ends = np.flatnonzero(np.isin(drawn, self.tokenizer.end_ids))
        kept = drawn[: ends[0]] if len(ends) else drawn
        return Generation(prompt, self.tokenizer.decode(kept.tolist()), len(kept), bool(len(ends)))


def _allowed(model: Any, tokenizer: Tokenizer) -> np.ndarray:
    """Returns bits of the logits that are of tokens that text may hold, or of its end."""
    allowed = np.zeros(model.config.vocab_size, bool)
    allowed[: tokenizer.vocab_size] = True
    for token in (tokenizer.bos_id, tokenizer.pad_id):
        if token is not None and token not in tokenizer.end_ids:
            allowed[token] = False
    return packed_mask(allowed[None])
