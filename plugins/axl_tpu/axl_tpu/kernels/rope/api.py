"""Rotary positions on TPU by a Pallas kernel: heads are read and written once, in place.

The compiler would turn heads around in memory to pair halves of a register. Here heads stay side by
side, as the products before them wrote them and attention reads them, and a register is rolled.

Letters: B batch, T time, N heads, H width of a head; a block is C tokens of some heads.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from axcore.ops import Call, RopeInputs, RopeSpec

LANES = 128
BLOCK_TOKENS = 512
BLOCK_WIDTH = 1024
"""Tokens and columns of a block; what a step holds takes about 6 MiB in bfloat16."""

DTYPES = ("bfloat16", "float32")


def unsupported_reason(call: Call) -> str | None:
    """Return None where the kernel can serve the call, else the reason why not."""
    shape, dtype = call.shape("x"), call.dtype("x")
    if dtype not in DTYPES:
        return f"takes bfloat16 and float32, not {dtype}"
    if 0 in shape:
        return f"takes no empty array, not x {shape}"
    if shape[-1] % LANES or shape[-1] > BLOCK_WIDTH:
        return f"takes heads of multiples of {LANES} up to {BLOCK_WIDTH}, not {shape[-1]}"
    return None


def tpu_rope(inputs: RopeInputs, spec: RopeSpec, *, interpret: Any = False) -> Array:
    """Return the rotated heads in their dtype; all arithmetic is float32.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: The call's static choices.
        interpret: Runs the kernel by an interpreter, on any device.
    """
    x_BTD = inputs.x.reshape(*inputs.x.shape[:2], -1)
    batch, tokens, width = x_BTD.shape
    num_heads, head = inputs.x.shape[2:]
    columns = _heads_of_a_block(num_heads, head) * head
    # 16 rows are a tile of 16 bits.
    rows = min(BLOCK_TOKENS, -(-tokens // 16) * 16)
    block = pl.BlockSpec((None, rows, columns), lambda b, i, n: (b, i, n))
    angles = pl.BlockSpec((None, rows, head), lambda b, i, n: (b, i, 0))
    y_BTD: Array = pl.pallas_call(
        partial(_kernel, head=head),
        out_shape=jax.ShapeDtypeStruct(x_BTD.shape, x_BTD.dtype),
        grid=(batch, -(-tokens // rows), width // columns),
        in_specs=[block, angles, angles],
        out_specs=block,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",) * 3),
        interpret=interpret,
        name="tpu_rope",
    )(x_BTD, *_over_a_head(inputs))
    return y_BTD.reshape(inputs.x.shape)


def _heads_of_a_block(num_heads: int, head: int) -> int:
    return max(n for n in range(1, num_heads + 1) if num_heads % n == 0 and n * head <= BLOCK_WIDTH)


def _over_a_head(inputs: RopeInputs) -> tuple[Array, Array]:
    """Return factors `[B, T, H]` of each dimension and of the one that it is paired with."""
    cos, sin = inputs.cos, inputs.sin
    # The sign is in the table, so that the kernel needs one roll, two products and a sum.
    return jnp.concatenate([cos, cos], axis=-1), jnp.concatenate([-sin, sin], axis=-1)


def _kernel(x_ref: Any, own_ref: Any, other_ref: Any, y_ref: Any, *, head: int) -> None:
    own_CH, other_CH = own_ref[...], other_ref[...]
    for start in range(0, x_ref.shape[1], head):
        at = pl.ds(start, head)
        x_CH = x_ref[:, at].astype(jnp.float32)
        # Rolled by half of its width a head pairs each dimension with its partner, in either
        # direction alike.
        paired_CH = pltpu.roll(x_CH, head // 2, 1)
        y_ref[:, at] = (x_CH * own_CH + paired_CH * other_CH).astype(y_ref.dtype)
