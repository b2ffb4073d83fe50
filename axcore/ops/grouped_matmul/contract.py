"""Test cases of the grouped matrix product: empty groups, leftover rows, many groups."""

import attrs
import jax.numpy as jnp
from jax.typing import DTypeLike

from axcore.ops.contract import (
    DIM,
    EXPERTS,
    HIDDEN_DIM,
    ROWS,
    TOKENS,
    backward_call,
    case_numbers,
    spec_array,
    traced_call,
)
from axcore.ops.dispatch import Call
from axcore.ops.grouped_matmul.op import GROUPED_MATMUL_OP, GroupedMatmulInputs


@attrs.frozen(kw_only=True)
class GroupedMatmulTestCase:
    """A recipe for a call: sizes of the groups, and of the arrays."""

    name: str
    group_sizes: tuple[int, ...]
    num_rows: int
    width: int = 12
    out_width: int = 20

    def make(self, dtype: DTypeLike = jnp.float32) -> GroupedMatmulInputs:
        """Return the arrays, equal each time."""
        numbers = case_numbers(self.name)
        x = numbers.standard_normal((self.num_rows, self.width)).astype(dtype)
        w_shape = (len(self.group_sizes), self.width, self.out_width)
        w = numbers.standard_normal(w_shape).astype(dtype)
        sizes = jnp.asarray(self.group_sizes, jnp.int32)
        return GroupedMatmulInputs(jnp.asarray(x), jnp.asarray(w), sizes)


GROUPED_MATMUL_TEST_CASES = (
    GroupedMatmulTestCase(name="even", group_sizes=(16, 16, 16), num_rows=48),
    GroupedMatmulTestCase(name="uneven", group_sizes=(1, 30, 0, 9, 13), num_rows=53),
    GroupedMatmulTestCase(name="one_group", group_sizes=(37,), num_rows=37),
    GroupedMatmulTestCase(name="one_group_takes_all", group_sizes=(0, 0, 37, 0), num_rows=37),
    GroupedMatmulTestCase(
        name="whole_tiles", group_sizes=(20, 0, 50), num_rows=130, width=64, out_width=128
    ),
    GroupedMatmulTestCase(name="leftover_rows", group_sizes=(5, 0, 11), num_rows=29),
    GroupedMatmulTestCase(name="nothing", group_sizes=(0, 0, 0), num_rows=10),
    GroupedMatmulTestCase(name="more_groups_than_rows", group_sizes=(1, 0) * 16, num_rows=16),
)


def arg_spec() -> Call:
    """Return the first product of experts, two for each token."""

    def call() -> Call:
        rows, matrices = spec_array(2 * ROWS * TOKENS, DIM), spec_array(EXPERTS, DIM, HIDDEN_DIM)
        sizes = spec_array(EXPERTS, dtype=jnp.int32)
        return GROUPED_MATMUL_OP.call(GroupedMatmulInputs(rows, matrices, sizes))

    return traced_call(call)


def backward_arg_spec() -> Call:
    """Return the gradient of the first product of experts."""
    return backward_call(arg_spec())
