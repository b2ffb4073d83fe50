"""`TextEmbedder`: one vector for each text, of the weights that an engine has.

Letters of shapes: B rows, T tokens of a row, D size of a hidden vector.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from axcore.inference.cached_model import CachedModel, mesh_of
from axcore.inference.config import EngineConfig
from axcore.inference.kv_cache import cached_model_of
from axcore.layers import KVCacheConfig
from axcore.module import Module
from axcore.ops import current_policy, use_policy

Pooling = Literal["last", "mean"]
"""Of which of a text's final hidden states its vector is made."""

_MIN_LENGTH, _MAX_ROWS, _CALL_TOKENS = 16, 8, 4096
"""Tokens of the shortest program, rows of a call, and tokens of a call with more than one row."""


_TINY = 1e-30
"""What no length of a vector is below, so that a vector of zeros stays one."""


class TextEmbedder:
    """Makes vectors of length 1 of texts, by a model with an entry `hidden`, as `CausalLM` has.

    A program is compiled when the first text of its length comes: lengths are powers of 2, and rows
    one or as many as a call has room for. What a text becomes depends on it alone, to rounding.

    Args:
        model: The model, as it is trained.
        cfg: Of the engine that has the weights.
        max_length: Tokens of the longest text.
        pooling: See `Pooling`.
    """

    def __init__(
        self, model: Module, cfg: EngineConfig, *, max_length: int, pooling: Pooling
    ) -> None:
        self.dim: int = getattr(model.config, "dim")  # noqa: B009 - not of every model
        self.max_length = max_length
        self._model, self._config, self._pooling = model, cfg, pooling
        # That in which it is made, so that the engine's kernels are chosen in other threads, too.
        self._policy = current_policy()
        self._programs: dict[tuple[int, int], Callable[..., Array]] = {}

    def embed(
        self, weights: Any, texts: Sequence[NDArray[np.int32]]
    ) -> Float[np.ndarray, "texts D"]:
        """Return the vector of each text.

        Args:
            weights: Of the engine, as `Engine.weights_in_use` returns them.
            texts: Tokens of each, one or more, and at most `max_length`.
        """
        found = np.zeros((len(texts), self.dim), np.float32)
        for length, numbers in self._by_length(texts).items():
            most = max(1, min(_MAX_ROWS, _CALL_TOKENS // length))
            for begin in range(0, len(numbers), most):
                some = numbers[begin : begin + most]
                rows = 1 if len(some) == 1 else most
                tokens, sizes = np.zeros((rows, length), np.int32), np.ones(rows, np.int32)
                for row, number in enumerate(some):
                    sizes[row] = len(texts[number])
                    tokens[row, : sizes[row]] = texts[number]
                vectors = self._program(weights, rows, length)(weights, tokens, sizes)
                found[some] = np.asarray(vectors)[: len(some)]
        return found

    def _by_length(self, texts: Sequence[NDArray[np.int32]]) -> dict[int, list[int]]:
        """Return the numbers of texts by the length of the program that they need."""
        found: dict[int, list[int]] = {}
        for number, text in enumerate(texts):
            length = max(_MIN_LENGTH, 1 << (len(text) - 1).bit_length())
            found.setdefault(min(length, self.max_length), []).append(number)
        return found

    def _program(self, weights: Any, rows: int, length: int) -> Callable[..., Array]:
        if (rows, length) not in self._programs:
            cache_config = KVCacheConfig(
                num_rows=rows, capacity=length, max_length=length, call_tokens=length
            )
            with use_policy(self._policy):
                model = cached_model_of(
                    self._model, self._config, cache_config, mesh=mesh_of(weights), draft=None
                )
                assert isinstance(model, CachedModel)
                program = jax.jit(partial(_embedded, model, self._pooling))
                # Compiled here, where the policy is set.
                ints = jax.ShapeDtypeStruct((rows, length), jnp.int32)  # type: ignore[no-untyped-call]
                sizes = jax.ShapeDtypeStruct((rows,), jnp.int32)  # type: ignore[no-untyped-call]
                self._programs[rows, length] = program.lower(weights, ints, sizes).compile()
        return self._programs[rows, length]


def _embedded(
    model: CachedModel,
    pooling: Pooling,
    weights: Any,
    tokens: Int[Array, "B T"],
    sizes: Int[Array, " B"],
) -> Float[Array, "B D"]:
    hidden = model.hidden(weights, tokens, sizes).astype(jnp.float32)
    if pooling == "last":
        pooled = jnp.take_along_axis(hidden, sizes[:, None, None] - 1, axis=1)[:, 0]
    else:
        is_real = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :] < sizes[:, None]
        # Selected, not multiplied: what padding became may be nan.
        pooled = jnp.sum(jnp.where(is_real[:, :, None], hidden, 0), axis=1)
    norm = jnp.sqrt(jnp.sum(pooled * pooled, axis=1, keepdims=True))
    return pooled / jnp.maximum(norm, _TINY)
