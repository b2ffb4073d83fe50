"""`SamplingRows`: the settings of several requests as arrays of one value a row.

Letters of shapes: B rows, N biases.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from axcore.inference.sampling import MAX_BIASES, Sampling

ALL_TOKENS = np.iinfo(np.int32).max
"""The `top_k` of a row that draws from all tokens."""

NO_TOKEN = np.iinfo(np.int32).max
"""Fills the biases up; it is out of any vocabulary."""


class SamplingRows(NamedTuple):
    """How each row's token is drawn; arrays of numpy or jax.

    Args:
        temperature: See `Sampling`, as for all names of it.
        top_k: `ALL_TOKENS` where None.
        top_p: See `Sampling`.
        min_p: See `Sampling`.
        repetition_penalty: See `Sampling`.
        presence_penalty: See `Sampling`.
        frequency_penalty: See `Sampling`.
        bias_tokens: The tokens of `logit_bias`, filled up with `NO_TOKEN`.
        biases: Their biases.
        seed: The low and the high 32 bits of each row's seed.
    """

    temperature: Float[Any, " B"]
    top_k: Int[Any, " B"]
    top_p: Float[Any, " B"]
    min_p: Float[Any, " B"]
    repetition_penalty: Float[Any, " B"]
    presence_penalty: Float[Any, " B"]
    frequency_penalty: Float[Any, " B"]
    bias_tokens: Int[Any, "B N"]
    biases: Float[Any, "B N"]
    seed: UInt32[Any, "B 2"]

    def set_row(self, row: int, sampling: Sampling, *, seed: int = 0) -> None:
        """Writes the settings of one request into a row of arrays of numpy."""
        for name in self._fields[:7]:
            if name != "top_k":
                getattr(self, name)[row] = getattr(sampling, name)
        self.top_k[row] = min(sampling.top_k or ALL_TOKENS, ALL_TOKENS)
        self.bias_tokens[row] = NO_TOKEN
        self.biases[row] = 0
        for place, (token, bias) in enumerate(sampling.logit_bias):
            self.bias_tokens[row, place], self.biases[row, place] = token, bias
        self.seed[row] = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF

    def take(self, rows: Any) -> "SamplingRows":
        """Returns the settings of some rows, in the order of their numbers."""
        return SamplingRows(*(value[rows] for value in self))


def greedy_rows(num_rows: int) -> SamplingRows:
    """Returns rows of numpy that take the likeliest token, to be set one by one."""
    one, zero = np.ones(num_rows, np.float32), np.zeros(num_rows, np.float32)
    return SamplingRows(
        temperature=zero,
        top_k=np.full(num_rows, ALL_TOKENS, np.int32),
        top_p=one,
        min_p=zero.copy(),
        repetition_penalty=one.copy(),
        presence_penalty=zero.copy(),
        frequency_penalty=zero.copy(),
        bias_tokens=np.full((num_rows, MAX_BIASES), NO_TOKEN, np.int32),
        biases=np.zeros((num_rows, MAX_BIASES), np.float32),
        seed=np.zeros((num_rows, 2), np.uint32),
    )


def sampling_rows(samplings: list[Sampling], seeds: list[int] | None = None) -> SamplingRows:
    """Returns the settings of several requests."""
    rows = greedy_rows(len(samplings))
    for row, sampling in enumerate(samplings):
        rows.set_row(row, sampling, seed=seeds[row] if seeds else 0)
    return rows


def row_keys(seed: UInt32[Array, "B 2"], index: Int[Array, " B"]) -> Array:
    """Returns a random key a row, for token `index` of the answer to a request with that seed."""

    def key_of(words: Array, index: Array) -> Array:
        key = jax.random.fold_in(jax.random.key(words[0]), words[1])
        return jax.random.fold_in(key, index)

    return jax.vmap(key_of)(jnp.asarray(seed), index)
