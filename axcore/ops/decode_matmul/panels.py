"""Weights in panels: some columns after the other, each of which lies together.

Whoever reads some columns of a matrix at a time, to keep their sums in registers, then reads memory
in its order.

Letters: K input, N output; P panels of C columns.
"""

import attrs
import jax.numpy as jnp
from jax import Array

from axcore.ops.decode_matmul.types import DecodeMatmulSpec
from axcore.ops.dispatch.call import Call
from axcore.ops.dispatch.choice import choose
from axcore.ops.dispatch.policy import current_policy

PANEL_WIDTH = 48
"""C: a multiple of the lanes of all vectors, of which three are added up for eight rows at once."""


def num_panels(out_dim: int) -> int:
    """Return P."""
    return -(-out_dim // PANEL_WIDTH)


def in_panels(weight_KN: Array) -> Array:
    """Return a weight `[K, N]` as `[P, K, C]`, filled up with zeros."""
    depth, out_dim = weight_KN.shape
    count = num_panels(out_dim)
    padded = jnp.pad(weight_KN, ((0, 0), (0, count * PANEL_WIDTH - out_dim)))
    return padded.reshape(depth, count, PANEL_WIDTH).transpose(1, 0, 2)


def are_panels_wanted(dtype: str) -> bool:
    """Return whether there is a kernel for weights in panels on the hardware of the policy.

    Portable code has no use for them.
    """
    call = Call(
        op="decode_matmul",
        shapes=(("x", (1, 64)), ("weight", (1, 64, PANEL_WIDTH))),
        dtypes=(("x", dtype), ("weight", dtype)),
        features=tuple(attrs.asdict(DecodeMatmulSpec(out_dim=PANEL_WIDTH)).items()),
    )
    return not choose(call, current_policy()).kernel.is_portable
