# ruff: noqa: N815 - fields carry shape letters
"""What a grouped matmul is made of.

Letters: R rows, E groups (experts), D input width, F output width.
"""

from typing import NamedTuple

from jax import Array


class GroupedMatmulInputs(NamedTuple):
    """The arrays of one call: rows sorted by group, matrices, and how many rows each group has."""

    x_RD: Array
    w_EDF: Array
    group_sizes_E: Array
