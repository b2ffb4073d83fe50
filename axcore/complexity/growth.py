"""How the lines that a feature costs grow with the number of models and of variants."""

import math
from collections.abc import Callable, Mapping
from typing import Literal

import attrs
import numpy as np

Size = tuple[int, int]
"""Number of models N and of variants of each, M."""

DIAGONAL: tuple[int, ...] = (2, 4, 8, 16)
"""Where N and M grow together: families of N x M = 4, 16, 64 and 256 models."""

CONSTANT_BELOW = 0.05
"""An exponent below this is taken for no growth."""

Class = Literal["constant", "linear", "quadratic"]


@attrs.frozen
class Growth:
    """Lines by size, and the power law `lines = c * N^a * M^b` that fits them best.

    Args:
        lines: Lines outside of the feature's own implementation, by (N, M).
        in_models: The exponent a.
        in_variants: The exponent b.
    """

    lines: Mapping[Size, int]
    in_models: float
    in_variants: float

    @property
    def exponent(self) -> float:
        """The degree of growth where N and M grow together: a + b."""
        return self.in_models + self.in_variants

    @property
    def complexity(self) -> Class:
        """The class whose degree (0, 1 or 2) is nearest; constant only below `CONSTANT_BELOW`."""
        if self.exponent < CONSTANT_BELOW:
            return "constant"
        return "linear" if self.exponent < 1.5 else "quadratic"


def sizes_up_to(models: int, variants: int) -> tuple[Size, ...]:
    """Return the sizes of families to count at, up to so many models and variants of each.

    The last two grow in one of the two numbers alone, which distinguishes them.
    """
    diagonal = tuple((size, size) for size in DIAGONAL if size <= min(models, variants))
    return (*diagonal, (models, 2), (2, variants))


def measure_growth(
    count: Callable[[int, int], int], *, models: int = DIAGONAL[-1], variants: int = DIAGONAL[-1]
) -> Growth:
    """Return how lines grow.

    Args:
        count: From numbers of models and variants to the lines that a feature costs there.
        models: The most models to count at; more than 2.
        variants: The most variants of each; more than 2.
    """
    return fit_growth({size: count(*size) for size in sizes_up_to(models, variants)})


def fit_growth(lines: Mapping[Size, int]) -> Growth:
    """Return the least-squares fit of a power law to lines by size; no line counts as one.

    Raises:
        ValueError: The sizes cannot separate growth in models from growth in variants.
    """
    rows = np.array([(1.0, math.log(n), math.log(m)) for n, m in lines])
    if np.linalg.matrix_rank(rows) < 3:
        raise ValueError(
            f"sizes {sorted(lines)} do not separate models from variants: vary each alone"
        )
    logs = np.log([max(1, count) for count in lines.values()])
    (_, in_models, in_variants), *_ = np.linalg.lstsq(rows, logs, rcond=None)
    return Growth(dict(lines), float(in_models), float(in_variants))
