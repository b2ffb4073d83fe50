"""`Generator`: continues a prompt, token by token.

Every token runs the model again over a window of fixed size, large enough for what is asked, and
the context at most; there is no cache yet. That is simple and right for small models, and slow for
large ones.
"""

from collections.abc import Iterator
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np

from axcore.data import Tokenizer
from axcore.errors import ConfigError
from axcore.inference.sampling import Sampling
from axcore.module import Module, functional

_WINDOW_STEP = 64
"""Windows are of multiples of this, so that texts of about the same length share a program."""


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
        self._next = jax.jit(self._next_tokens, static_argnames="sampling")
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
        sampling.check()
        if max_tokens < 1 or num_samples < 1:
            raise ConfigError(
                f"max_tokens is {max_tokens} and num_samples {num_samples}; expected 1 or more"
            )
        tokens = self._window(prompt, num_samples, max_tokens)
        length = tokens[1]
        window, ended = tokens[0], np.zeros(num_samples, bool)
        keys = jax.random.split(jax.random.key(seed), num_samples)
        for position in range(max_tokens):
            drawn = np.array(
                self._next(self.state, window, length, keys, position, sampling=sampling)
            )
            drawn[ended] = self.tokenizer.eos_id
            yield drawn
            ended |= np.isin(drawn, self.tokenizer.end_ids)
            if ended.all():
                return
            window, length = _appended(window, length, drawn)

    def _next_tokens(
        self, state: Any, window: Any, length: Any, keys: Any, position: Any, *, sampling: Sampling
    ) -> Any:
        logits, _ = functional(self.model, state, window, method="logits")
        last = jax.lax.dynamic_index_in_dim(logits, length - 1, axis=1, keepdims=False)
        fresh = jax.vmap(lambda key: jax.random.fold_in(key, position))(keys)
        return sampling.sample(jnp.where(self._allowed[None, :], last, -jnp.inf), fresh)

    def _window(self, prompt: str, num_samples: int, max_tokens: int) -> tuple[np.ndarray, int]:
        tokens = self.tokenizer.encode_prompt(prompt)[-self.context :]
        if not len(tokens):
            raise ConfigError("the prompt is empty", hint="give a prompt of at least one token")
        wanted = -(-(len(tokens) + max_tokens) // _WINDOW_STEP) * _WINDOW_STEP
        window = np.zeros((num_samples, min(self.context, wanted)), np.int32)
        window[:, : len(tokens)] = tokens
        return window, len(tokens)

    def _finished(self, prompt: str, drawn: np.ndarray) -> Generation:
        ends = np.flatnonzero(np.isin(drawn, self.tokenizer.end_ids))
        kept = drawn[: ends[0]] if len(ends) else drawn
        return Generation(prompt, self.tokenizer.decode(kept.tolist()), len(kept), bool(len(ends)))


def _allowed(model: Any, tokenizer: Tokenizer) -> np.ndarray:
    """Returns which logits are of tokens that text may hold, or of its end."""
    allowed = np.zeros(model.config.vocab_size, bool)
    allowed[: tokenizer.vocab_size] = True
    for token in (tokenizer.bos_id, tokenizer.pad_id):
        if token is not None and token not in tokenizer.end_ids:
            allowed[token] = False
    return allowed


def _appended(window: np.ndarray, length: int, drawn: np.ndarray) -> tuple[np.ndarray, int]:
    if length == window.shape[1]:
        return np.concatenate([window[:, 1:], drawn[:, None]], axis=1), length
    window = window.copy()
    window[:, length] = drawn
    return window, length + 1
