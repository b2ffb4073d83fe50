"""What a train step in bfloat16, or the serving of its model, typically asks of each op.

`axcore kernels` asks kernels about these calls. Sizes are those of a model of 7 to 8 billion
parameters, with two rows of 4096 tokens on a device.
"""

from collections.abc import Callable

import attrs
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from axcore.ops.attention.kernels import attention_call
from axcore.ops.attention.types import AttentionInputs, AttentionSpec
from axcore.ops.cross_entropy.api import cross_entropy_call
from axcore.ops.cross_entropy.types import CrossEntropyInputs, CrossEntropySpec
from axcore.ops.decode.api import decode_call
from axcore.ops.decode.types import DecodeInputs, DecodeSpec
from axcore.ops.decode_matmul.api import decode_matmul_call
from axcore.ops.decode_matmul.types import DecodeMatmulInputs, DecodeMatmulSpec
from axcore.ops.dispatch.call import Call
from axcore.ops.grouped_matmul.api import grouped_matmul_call
from axcore.ops.grouped_matmul.types import GroupedMatmulInputs
from axcore.ops.rms_norm.api import rms_norm_call
from axcore.ops.rms_norm.types import RmsNormInputs, RmsNormSpec
from axcore.ops.rope.api import rope_call
from axcore.ops.rope.types import RopeInputs, RopeSpec

ROWS, TOKENS, DIM, VOCAB = 2, 4096, 4096, 32000
HEADS, KEY_HEADS, WIDTH = 32, 8, 128
EXPERTS, HIDDEN = 8, 14336


def attention() -> Call:
    """Return causal attention over packed documents, with grouped heads."""

    def call() -> Call:
        keys = _array(ROWS, TOKENS, KEY_HEADS, WIDTH)
        segments = _array(ROWS, TOKENS, dtype=jnp.int32)
        queries = _array(ROWS, TOKENS, HEADS, WIDTH)
        inputs = AttentionInputs(queries, keys, keys, segments, segments)
        return attention_call(inputs, AttentionSpec(scale=WIDTH**-0.5, right=0), with_lse=False)

    return _traced(call)


def attention_backward() -> Call:
    """Return its gradient."""
    return _backward(attention())


def decode_attention() -> Call:
    """Return one new token of each of 32 rows against a cache in pages of 16 keys."""

    def call() -> Call:
        pages = _array(32 * 256, 16, KEY_HEADS, WIDTH)
        lengths, table = _array(32, dtype=jnp.int32), _array(32, 256, dtype=jnp.int32)
        inputs = DecodeInputs(_array(32, 1, HEADS, WIDTH), pages, pages, lengths, table)
        return decode_call(inputs, DecodeSpec(scale=WIDTH**-0.5))

    return _traced(call)


def decode_matmul() -> Call:
    """Return the first product of the feed-forward layer, of one new token of each of 32 rows."""

    def call() -> Call:
        inputs = DecodeMatmulInputs(_array(32, DIM), _array(DIM, 4 * DIM))
        return decode_matmul_call(inputs, DecodeMatmulSpec())

    return _traced(call)


def cross_entropy() -> Call:
    """Return the loss of all tokens, with float32 weights of the head."""

    def call() -> Call:
        inputs = CrossEntropyInputs(
            _array(ROWS, TOKENS, DIM),
            _array(DIM, VOCAB, dtype=jnp.float32),
            _array(ROWS, TOKENS, dtype=jnp.int32),
            _array(ROWS, TOKENS, dtype=jnp.float32),
        )
        return cross_entropy_call(inputs, CrossEntropySpec())

    return _traced(call)


def rms_norm() -> Call:
    """Return the norm of all tokens."""
    return _traced(
        lambda: rms_norm_call(
            RmsNormInputs(_array(ROWS, TOKENS, DIM), _array(DIM)), RmsNormSpec(epsilon=1e-5)
        )
    )


def rope() -> Call:
    """Return the rotation of all queries."""

    def call() -> Call:
        angles = _array(ROWS, TOKENS, WIDTH // 2, dtype=jnp.float32)
        return rope_call(RopeInputs(_array(ROWS, TOKENS, HEADS, WIDTH), angles, angles), RopeSpec())

    return _traced(call)


def grouped_matmul() -> Call:
    """Return the first product of experts, two for each token."""

    def call() -> Call:
        rows, matrices = _array(2 * ROWS * TOKENS, DIM), _array(EXPERTS, DIM, HIDDEN)
        sizes = _array(EXPERTS, dtype=jnp.int32)
        return grouped_matmul_call(GroupedMatmulInputs(rows, matrices, sizes))

    return _traced(call)


def cross_entropy_backward() -> Call:
    """Return the gradient of the loss."""
    return _backward(cross_entropy())


def rms_norm_backward() -> Call:
    """Return the gradient of the norm."""
    return _backward(rms_norm())


def grouped_matmul_backward() -> Call:
    """Return the gradient of the first product of experts."""
    return _backward(grouped_matmul())


def _backward(call: Call) -> Call:
    return attrs.evolve(call, op=f"{call.op}_backward")


def _array(*shape: int, dtype: DTypeLike = jnp.bfloat16) -> Array:
    return jnp.zeros(shape, dtype)


def _traced(make: Callable[[], Call]) -> Call:
    """Return the call made under tracing, where arrays hold nothing."""
    calls: list[Call] = []

    def trace() -> tuple[()]:
        calls.append(make())
        return ()

    jax.eval_shape(trace)
    return calls[0]
