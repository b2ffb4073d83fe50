"""How near two programs come that compute the same: to rounding, and no nearer."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ULPS = 64
"""Of float32, in which sums are made: ten times what models of a few layers differ by."""


def assert_same_to_rounding(found: Any, expected: Any, *, through: str = "float32") -> None:
    """Compares arrays, or trees of them, that two programs computed.

    A compiler orders the sums of each program, and joins products with sums, as suits its shapes
    and the processor: so only runs of one program are equal bit by bit. Two differ by some units
    in the last place of the largest number that their sums pass through, not of each result.
    Whole numbers are equal, and so are infinities.

    Args:
        through: The narrowest dtype that numbers are rounded to on their way. One that is nearly
            between two of its values goes up in one program, and down in the other.
    """
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        dtype, share = jnp.asarray(one).dtype, 0.0
        if jnp.issubdtype(dtype, jnp.floating):
            steps = (float(jnp.finfo(name).eps) for name in (through, dtype))
            share = max(ULPS * float(jnp.finfo("float32").eps), *steps)
        one, other = (np.asarray(leaf, np.float64) for leaf in (one, other))
        most = share * np.abs(other[np.isfinite(other)]).max(initial=0.0)
        np.testing.assert_allclose(one, other, rtol=0, atol=most)
