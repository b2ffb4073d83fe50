"""`Estimate`: a metric with its standard error."""

import math
from collections.abc import Sequence

import attrs
import numpy as np


@attrs.frozen
class Estimate:
    """A metric over samples.

    Args:
        value: Its value.
        standard_error: Of the value, as samples vary; None with fewer than two samples.
        is_better_higher: Whether more is better.
    """

    value: float
    standard_error: float | None
    is_better_higher: bool = True


def mean(values: Sequence[float]) -> Estimate:
    """Returns the mean, and the standard deviation of samples over the root of their number."""
    array = np.asarray(values, np.float64)
    if len(array) < 2:
        return Estimate(float(array.mean()), None)
    return Estimate(float(array.mean()), float(array.std(ddof=1) / math.sqrt(len(array))))


def ratio(sums: Sequence[float], weights: Sequence[float]) -> Estimate:
    """Returns the ratio of two totals; lower is better, as of a loss.

    Source: the ratio estimator of survey sampling (Cochran, 1977, equation 6.13).
    """
    above, below = (np.asarray(one, np.float64) for one in (sums, weights))
    total = below.sum()
    value = float(above.sum() / total)
    if len(above) < 2:
        return Estimate(value, None, is_better_higher=False)
    spread = float(((above - value * below) ** 2).sum())
    count = len(above)
    error = math.sqrt(spread * count / (count - 1)) / float(total)
    return Estimate(value, error, is_better_higher=False)


def exponential(of: Estimate) -> Estimate:
    """Returns `exp` of an estimate, its error to first order; infinite beyond float64."""
    value = math.exp(of.value) if of.value < 700 else math.inf
    error = None if of.standard_error is None else value * of.standard_error
    return Estimate(value, error, of.is_better_higher)
