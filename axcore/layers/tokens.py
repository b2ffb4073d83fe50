"""`TokenInfo`: what layers may want to know of each token besides its vector."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

TOKEN_MASK = "token_mask"
"""The shared value in which layers without a `TokenInfo` see which tokens are not padding:
`[batch, time]` bools."""


class TokenInfo(NamedTuple):
    """Passed as one value through every layer, so that signatures stay as they are.

    Args:
        positions: Position of each token within its document.
        segment_ids: Document of each token in a packed row, 0 for padding; None where every row is
            one document without padding.
    """

    positions: Int[Array, "batch time"]
    segment_ids: Int[Array, "batch time"] | None = None


def whole_rows(tokens: Int[Array, "batch time"]) -> TokenInfo:
    """Returns the info of rows that each hold one document from its beginning."""
    positions = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :]
    return TokenInfo(jnp.broadcast_to(positions, tokens.shape))
