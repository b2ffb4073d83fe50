"""Penalties and biases: what changes logits before the temperature.

Letters of shapes: B rows, V vocabulary.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.inference.drawing.history import TokenHistory
from axcore.inference.drawing.sampling_rows import SamplingRows


def penalize(
    logits: Float[Array, "B V"], rows: SamplingRows, history: TokenHistory
) -> Float[Array, "B V"]:
    """Returns logits with the repetition penalty, then the frequency and the presence penalty.

    Source: Keskar et al. 2019, arXiv:1909.05858, section 4.1, for the repetition penalty; the
    others are those of OpenAI's interface.
    """
    is_repeated = history.is_prompted | (history.num_drawn > 0)
    penalty = rows.repetition_penalty[:, None]
    weakened = jnp.where(logits > 0, logits / penalty, logits * penalty)
    logits = jnp.where(is_repeated, weakened, logits)
    counts = history.num_drawn.astype(logits.dtype)
    logits = logits - rows.frequency_penalty[:, None] * counts
    penalized: Array = logits - rows.presence_penalty[:, None] * jnp.minimum(counts, 1)
    return penalized


def add_bias(logits: Float[Array, "B V"], rows: SamplingRows) -> Float[Array, "B V"]:
    """Returns logits with each row's biases; takes no time where no row has one."""
    at = jnp.arange(logits.shape[0])[:, None]

    def added() -> Array:
        return logits.at[at, rows.bias_tokens].add(rows.biases, mode="drop")

    biased: Array = jax.lax.cond(jnp.any(rows.biases != 0), added, lambda: logits)
    return biased
