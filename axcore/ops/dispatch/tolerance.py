"""How close to its reference an implementation of an op must come, by dtype."""

import attrs
import numpy as np
from jax import Array


@attrs.frozen
class Tolerance:
    """Largest error of an array, as a share of the reference's largest entry (or of 1)."""

    forward: float
    backward: float


TOLERANCES = {
    "float32": Tolerance(forward=1e-5, backward=2e-5),
    "bfloat16": Tolerance(forward=1e-2, backward=2e-2),
}
"""Float32 allows for another order of summation; bfloat16 for rounding what is multiplied."""


def relative_error(actual: Array, expected: Array) -> float:
    """Return the largest difference over the largest finite entry of `expected`, at least 1.

    Infinities must agree in place and sign; NaN anywhere is an infinite error.
    """
    got, want = (np.asarray(x).astype(np.float64) for x in (actual, expected))
    if got.shape != want.shape:
        raise ValueError(f"shapes differ: {got.shape} and {want.shape}")
    is_finite = np.isfinite(want)
    if np.isnan(got).any() or not np.array_equal(got[~is_finite], want[~is_finite]):
        return float("inf")
    largest = np.abs(want[is_finite]).max(initial=1.0)
    return float(np.abs(got[is_finite] - want[is_finite]).max(initial=0.0) / largest)
