"""Ranges of numbers, as annotations of fields: `dim: PositiveInt = REQUIRED`.

Type checkers read them as `int` and `float`; a config checks the range when it is made.
"""

import math
from collections.abc import Callable
from typing import Annotated, NamedTuple


class Range(NamedTuple):
    """Which values of a type a field may hold.

    Args:
        text: What an error says after "expected".
        holds: Whether a value of the type is in the range.
    """

    text: str
    holds: Callable[[float], bool]


PositiveInt = Annotated[int, Range("1 or more", lambda value: value >= 1)]
NonNegativeInt = Annotated[int, Range("0 or more", lambda value: value >= 0)]
PositiveFloat = Annotated[float, Range("a finite number above 0", lambda x: 0 < x < math.inf)]
NonNegativeFloat = Annotated[
    float, Range("a finite number of 0 or more", lambda x: 0 <= x < math.inf)
]
Fraction = Annotated[float, Range("0 or more and less than 1", lambda value: 0 <= value < 1)]
