"""Test cases of decode matmul: full- and low-precision weights, one row and many, odd sizes."""

import attrs
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from axcore.ops.contract import DIM, case_numbers, spec_array, traced_call
from axcore.ops.decode_matmul.op import (
    DECODE_MATMUL_OP,
    DecodeMatmulInputs,
    DecodeMatmulSpec,
    in_panels,
    packed_int4,
)
from axcore.ops.dispatch import Call


@attrs.frozen(kw_only=True)
class DecodeMatmulTestCase:
    """A recipe for a call: sizes, and how the weight is kept.

    Args:
        name: Unique among the samples.
        narrow: `int8`, `int4` or `float8_e4m3fn`; None for a weight of x's dtype.
        num_groups: Of scales.
    """

    name: str
    rows: int = 3
    in_dim: int = 64
    out_dim: int = 96
    transposed: bool = False
    is_in_panels: bool = False
    narrow: str | None = None
    num_groups: int = 1

    def make(self, dtype: DTypeLike = jnp.float32) -> tuple[DecodeMatmulInputs, DecodeMatmulSpec]:
        """Return the call, equal each time."""
        numbers = case_numbers(self.name)
        x = jnp.asarray(numbers.standard_normal((self.rows, self.in_dim)), dtype)
        spec = DecodeMatmulSpec(transposed=self.transposed)
        shape = (self.in_dim, self.out_dim)
        drawn = numbers.standard_normal(shape[::-1] if self.transposed else shape)
        if self.is_in_panels:
            spec = DecodeMatmulSpec(out_dim=self.out_dim)
        laid_out = in_panels if self.is_in_panels else jnp.asarray
        if self.narrow is None:
            return DecodeMatmulInputs(x, laid_out(jnp.asarray(drawn, dtype))), spec
        scale = jnp.asarray(numbers.uniform(0.5, 2.0, (self.num_groups, self.out_dim)), jnp.float32)
        scale = scale.T if self.transposed else scale
        largest = {"int8": 127, "int4": 7, "float8_e4m3fn": 448}[self.narrow]
        values = np.clip(drawn / 3, -1, 1) * largest
        if self.narrow == "float8_e4m3fn":
            weight = jnp.asarray(values, self.narrow)
        else:
            kept = jnp.asarray(np.round(values), jnp.int8)
            weight = packed_int4(kept) if self.narrow == "int4" else kept
        return DecodeMatmulInputs(x, laid_out(weight), laid_out(scale / largest)), spec


DECODE_MATMUL_TEST_CASES = (
    DecodeMatmulTestCase(name="plain"),
    DecodeMatmulTestCase(name="one_row", rows=1, in_dim=256, out_dim=512),
    DecodeMatmulTestCase(name="eight_rows", rows=8),
    DecodeMatmulTestCase(name="many_rows", rows=21),
    DecodeMatmulTestCase(name="odd_sizes", rows=5, in_dim=37, out_dim=131),
    DecodeMatmulTestCase(name="narrow_output", out_dim=16),
    DecodeMatmulTestCase(name="transposed", transposed=True),
    DecodeMatmulTestCase(name="transposed_row", rows=1, in_dim=256, out_dim=512, transposed=True),
    DecodeMatmulTestCase(name="transposed_many", rows=11, out_dim=131, transposed=True),
    DecodeMatmulTestCase(name="panels", is_in_panels=True),
    DecodeMatmulTestCase(name="panels_row", rows=1, in_dim=250, out_dim=512, is_in_panels=True),
    DecodeMatmulTestCase(name="panels_many", rows=27, in_dim=37, out_dim=131, is_in_panels=True),
    DecodeMatmulTestCase(name="int8", narrow="int8"),
    DecodeMatmulTestCase(name="int8_row", rows=1, narrow="int8", in_dim=37, out_dim=131),
    DecodeMatmulTestCase(name="int8_groups", narrow="int8", num_groups=4),
    DecodeMatmulTestCase(name="int4", narrow="int4", num_groups=2),
    DecodeMatmulTestCase(name="int4_row", rows=1, narrow="int4", num_groups=4),
    DecodeMatmulTestCase(name="int4_one_scale", rows=9, narrow="int4"),
    DecodeMatmulTestCase(name="float8", narrow="float8_e4m3fn", rows=8),
    DecodeMatmulTestCase(name="int8_transposed", narrow="int8", transposed=True, out_dim=131),
    DecodeMatmulTestCase(
        name="int8_transposed_row", narrow="int8", transposed=True, rows=1, in_dim=208, out_dim=131
    ),
    DecodeMatmulTestCase(
        name="float8_transposed", narrow="float8_e4m3fn", transposed=True, rows=11
    ),
    DecodeMatmulTestCase(name="int8_panels", narrow="int8", is_in_panels=True, rows=9),
    DecodeMatmulTestCase(
        name="int8_panels_row", narrow="int8", is_in_panels=True, rows=1, in_dim=37, out_dim=131
    ),
    DecodeMatmulTestCase(
        name="int4_panels", narrow="int4", is_in_panels=True, num_groups=4, out_dim=131
    ),
    DecodeMatmulTestCase(
        name="int4_panels_row", narrow="int4", is_in_panels=True, rows=1, num_groups=2
    ),
    DecodeMatmulTestCase(
        name="int4_panels_one_scale", narrow="int4", is_in_panels=True, rows=1, out_dim=131
    ),
    DecodeMatmulTestCase(
        name="float8_panels", narrow="float8_e4m3fn", is_in_panels=True, num_groups=2
    ),
)


def arg_spec() -> Call:
    """Return the first product of the feed-forward layer, of one new token of each of 32 rows."""

    def call() -> Call:
        inputs = DecodeMatmulInputs(spec_array(32, DIM), spec_array(DIM, 4 * DIM))
        return DECODE_MATMUL_OP.call(inputs, DecodeMatmulSpec())

    return traced_call(call)
