"""`Seq2SeqGenerator`: texts of a model whose decoder attends over an encoder's tokens.

The encoder runs once for each input. The decoder then reads each token once: keys and values of
those before it are in caches, as in language models, and so are those of the input.

Letters: B rows, P tokens of a prompt, L tokens of a text, V vocabulary.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import NDArray

from axcore.errors import ConfigError
from axcore.inference.cached_model import CachedModel
from axcore.layers import SourceKVCacheConfig
from axcore.modifiers import QuantizedWeights
from axcore.module import Module

_CALL_TOKENS = 32
"""Tokens of a prompt that one call reads: most prompts have fewer, and all share one program."""

Choose = Callable[..., Int[Array, " B"]]
"""From logits `[B, V]`, texts `[B, L]` and the place of the next token to that token of each row;
followed by the arrays that `Seq2SeqGenerator.generate` was given."""


def likeliest(
    logits: Float[Array, "B V"], texts: Int[Array, "B L"], place: Int[Array, ""]
) -> Int[Array, " B"]:
    """Return the likeliest token of each row."""
    return jnp.argmax(logits, axis=-1)


class Seq2SeqGenerator:
    """Writes texts by a model with an encoder and a decoder, such as a T5 or a Whisper.

    Args:
        model: Has the entries `store_inputs` and `cached_logits`, as `Seq2SeqLM` has.
        num_rows: Inputs that are read at once; every call has so many.
        max_tokens: L, with those of the prompt.
        source_length: Tokens that the encoder makes of the longest input.
        end: The token that ends a text.
        quantization: Stores weights in low precision; None stores them as layers read them.
    """

    def __init__(
        self,
        model: Module,
        *,
        num_rows: int,
        max_tokens: int,
        source_length: int,
        end: int,
        quantization: QuantizedWeights | None = None,
    ) -> None:
        self.num_rows, self.max_tokens, self._end = num_rows, max_tokens, end
        cache_config = SourceKVCacheConfig(
            num_rows=num_rows,
            capacity=max_tokens,
            max_length=max_tokens,
            call_tokens=_CALL_TOKENS,
            source_length=source_length,
        )
        self._cached = CachedModel(model, None, cache_config, quantization=quantization)
        self._encode = jax.jit(self._encoded)
        self._programs: dict[Choose, Callable[..., Any]] = {}
        self._last: tuple[Any, Any] = (None, None)

    def encode(self, state: Any, inputs: Any) -> Any:
        """Return caches that have read inputs, and no token of a text.

        Args:
            state: Of the model, as it is trained.
            inputs: A row for each, as the model's `store_inputs` takes them.
        """
        return self._encode(self._weights(state), inputs)

    def read(
        self, state: Any, caches: Any, tokens: NDArray[np.int32], num_cached: int = 0
    ) -> tuple[Float[Array, "B V"], Any]:
        """Return float32 logits of the token after some, and caches with them.

        Args:
            state: Of the model.
            caches: Which this call takes the memory of.
            tokens: Of each row, `[B, P]`.
            num_cached: Tokens before them; what caches have from there on is overwritten.

        Raises:
            ConfigError: There are none, or more than the caches take.
        """
        size = tokens.shape[1]
        if not size or num_cached + size > self.max_tokens:
            raise ConfigError(
                f"rows have {size} tokens after {num_cached}, and texts have 1 to "
                f"{self.max_tokens}",
                hint=f"max_tokens={num_cached + max(1, size)}",
            )
        logits = None
        for begin in range(0, size, _CALL_TOKENS):
            some = tokens[:, begin : begin + _CALL_TOKENS]
            shown = np.zeros((self.num_rows, _CALL_TOKENS), np.int32)
            shown[:, : some.shape[1]] = some
            counts = np.full((2, self.num_rows), some.shape[1], np.int32)
            counts[0] = num_cached + begin
            logits, caches = self._cached.extend(self._weights(state), caches, shown, *counts)
        assert logits is not None
        return logits, caches

    def generate(
        self,
        state: Any,
        caches: Any,
        prompt: NDArray[np.int32],
        *,
        choose: Choose = likeliest,
        arrays: Sequence[Any] = (),
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return the tokens behind a prompt, `[B, L - P]`, and which of them are before the end.

        Args:
            state: Of the model.
            caches: What `encode` returned, which this call takes the memory of.
            prompt: Tokens that texts begin with, `[B, P]`.
            choose: The next token of each row; a program is compiled for each function.
            arrays: What it is called with, too.

        Raises:
            ConfigError: The prompt has no token, or as many as a text.
        """
        size = prompt.shape[1]
        if size >= self.max_tokens:
            raise ConfigError(
                f"the prompt has {size} tokens, and a text at most {self.max_tokens}",
                hint=f"give at most {self.max_tokens - 1}",
            )
        if size > 1:
            _, caches = self.read(state, caches, prompt[:, :-1])
        elif not size:
            raise ConfigError(
                "the prompt is empty", hint="begin it with the token that starts texts"
            )
        texts = np.full((self.num_rows, self.max_tokens), self._end, np.int32)
        texts[:, :size] = prompt
        if choose not in self._programs:
            program = partial(self._generated, choose)
            self._programs[choose] = jax.jit(program, donate_argnums=1)
        given = self._weights(state), caches, texts, np.int32(size), tuple(arrays)
        # The caches come back, as a program reuses the memory of what it returns alone.
        found = np.asarray(self._programs[choose](*given)[0])[:, size:]
        return found, np.cumsum(found == self._end, axis=1) == 0

    def _weights(self, state: Any) -> Any:
        """Return what programs take of a state; converted once where it is the one before."""
        if self._last[0] is not state:
            # Let go first, so that two copies are not in memory at once.
            self._last = (None, None)
            self._last = (state, self._cached.weights_of(state))
        return self._last[1]

    def _encoded(self, weights: Any, inputs: Any) -> Any:
        slots = jnp.arange(self.num_rows, dtype=jnp.int32)
        caches = jax.tree.map(jnp.zeros_like, self._cached.abstract_caches)
        return self._cached.encode(weights, caches, inputs, slots)

    def _generated(
        self,
        choose: Choose,
        weights: Any,
        caches: Any,
        texts: Int[Array, "B L"],
        size: Int[Array, ""],
        arrays: tuple[Any, ...],
    ) -> tuple[Int[Array, "B L"], Any]:
        """Return texts with a token at each place from `size` to the last row's end, and caches."""

        def goes_on(carry: tuple[Any, Array, Array, Bool[Array, " B"]]) -> Array:
            _, _, place, is_over = carry
            return (place < self.max_tokens) & ~jnp.all(is_over)

        def one(
            carry: tuple[Any, Array, Array, Bool[Array, " B"]],
        ) -> tuple[Any, Array, Array, Bool[Array, " B"]]:
            caches, texts, place, is_over = carry
            last = jax.lax.dynamic_slice_in_dim(texts, place - 1, 1, axis=1)
            before, new = (jnp.full(self.num_rows, n, jnp.int32) for n in (place - 1, 1))
            logits, caches = self._cached.step(weights, caches, last, before, new)
            chosen = choose(logits, texts, place, *arrays).astype(texts.dtype)
            chosen = jnp.where(is_over, self._end, chosen)
            texts = jax.lax.dynamic_update_slice_in_dim(texts, chosen[:, None], place, axis=1)
            return caches, texts, place + 1, is_over | (chosen == self._end)

        begun = (caches, texts, size, jnp.zeros(self.num_rows, bool))
        caches, texts, _, _ = jax.lax.while_loop(goes_on, one, begun)
        return texts, caches
