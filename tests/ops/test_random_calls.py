"""Random calls, thousands in the long form: no op gives NaN where its reference gives none.

Sizes and static choices come from a few shapes, so that little is compiled; arrays are sampled
again for each call, small, huge, masked and empty.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_blocks import in_blocks

from axcore.ops.attention.blockwise import blockwise_backward, blockwise_forward
from axcore.ops.attention.kernels import attention_dense, attention_reference
from axcore.ops.attention.op import AttentionInputs, AttentionSpec, attention_custom_vjp
from axcore.ops.cross_entropy.kernels import cross_entropy_portable, cross_entropy_reference
from axcore.ops.cross_entropy.sharding import CrossEntropyInputs, CrossEntropySpec
from axcore.ops.decode_attention.kernels import (
    BLOCK_SIZES,
    KeyBlock,
    decode_attention_portable,
    decode_attention_reference,
)
from axcore.ops.decode_attention.op import DecodeInputs, DecodeSpec
from axcore.ops.grouped_matmul.kernels import (
    grouped_matmul_portable,
    grouped_matmul_portable_backward,
    grouped_matmul_reference,
)
from axcore.ops.grouped_matmul.op import GROUPED_MATMUL_OP, GroupedMatmulInputs

pytestmark = pytest.mark.slow

SIZES = (1e-20, 1.0, 1e4, 1e12)
"""How large numbers are: products of three, summed, stay below the largest float32."""
Numbers = np.random.Generator


@attrs.frozen(eq=False)
class Subject:
    """An op in one shape.

    Args:
        draw: From random numbers to the arrays of a call, a tree.
        reference: From the arrays to outputs.
        others: What is held against it.
        has_gradient: Whether gradients are looked at too.
    """

    draw: Callable[[Numbers], Any]
    reference: Callable[[Any], Any]
    others: tuple[Callable[[Any], Any], ...]
    has_gradient: bool = True


def normal(numbers: Numbers, *shape: int) -> np.ndarray:
    size = numbers.choice(SIZES)
    return (size * numbers.standard_normal(shape)).astype(np.float32)


def drawn_attention(numbers: Numbers, parts: str, heads: int, key_heads: int, keys: int) -> Any:
    """Return a call of 20 queries in two rows, with parts of it masked in every way there is."""
    inputs = AttentionInputs(
        normal(numbers, 2, 20, heads, 8),
        normal(numbers, 2, keys, key_heads, 8),
        normal(numbers, 2, keys, key_heads, 4),
    )
    if "segments" in parts:
        most = numbers.integers(1, 5)
        inputs = inputs._replace(
            q_segments_BT=numbers.integers(0, most, (2, 20)).astype(np.int32),
            k_segments_BS=np.sort(numbers.integers(0, most, (2, keys))).astype(np.int32),
        )
    if "ranges" in parts:
        start = numbers.integers(-2, keys + 2, (2, 20)).astype(np.int32)
        length = numbers.integers(0, numbers.choice([1, 4, keys]), (2, 20)).astype(np.int32)
        inputs = inputs._replace(k_start_BT=start, k_end_BT=start + length)
    if "bias" in parts:
        bias = normal(numbers, 1, heads, 20, keys)
        hidden = numbers.random(bias.shape) < numbers.choice([0.0, 0.5, 0.95, 1.0])
        inputs = inputs._replace(bias_BNTS=np.where(hidden, np.float32(-np.inf), bias))
    if "sinks" in parts:
        sinks = normal(numbers, heads)
        inputs = inputs._replace(sinks_N=np.where(sinks < -1e11, np.float32(-np.inf), sinks))
    if "offset" in parts:
        offset = numbers.integers(-25, keys + 5, (2,)).astype(np.int32)
        inputs = inputs._replace(query_offset_B=offset)
    if "dropout" in parts:
        seeds_BN = numbers.integers(2**32, size=(2, heads)).astype(np.uint32)
        inputs = inputs._replace(dropout_seeds_BN=seeds_BN)
    return inputs


def attention_subject(
    parts: str, heads: int = 2, key_heads: int = 1, keys: int = 20, **choices: Any
) -> Subject:
    spec = AttentionSpec(scale=0.5, **choices)
    blockwise = partial(
        attention_custom_vjp,
        forward=partial(blockwise_forward, block_size=16),
        backward=partial(blockwise_backward, block_size=16),
    )
    return Subject(
        partial(drawn_attention, parts=parts, heads=heads, key_heads=key_heads, keys=keys),
        lambda inputs: attention_reference(inputs, spec),
        tuple(
            (lambda inputs, attend=attend: attend(inputs, spec))
            for attend in (attention_dense, blockwise)
        ),
    )


ATTENTION = (
    attention_subject("segments"),
    attention_subject("ranges bias", right=0, soft_cap=2.0),
    attention_subject("segments ranges sinks", keys=35, left=6),
    attention_subject("offset sinks", heads=4, key_heads=2, keys=35, left=9, right=0),
    attention_subject("segments bias dropout", dropout_rate=0.5, right=3, query_offset=-4),
)


def drawn_decode(numbers: Numbers) -> DecodeInputs:
    lengths = numbers.integers(0, 41, (3,)).astype(np.int32)
    k, v = (normal(numbers, 14, 8, 1, width) for width in (8, 4))
    table = numbers.integers(0, 14, (3, 5)).astype(np.int32)
    return DecodeInputs(normal(numbers, 3, 2, 2, 8), k, v, lengths, table, normal(numbers, 2))


DECODE = Subject(
    drawn_decode,
    partial(decode_attention_reference, spec=DecodeSpec(scale=0.5, left=11)),
    (
        in_blocks(
            BLOCK_SIZES,
            KeyBlock(16, 1),
            partial(decode_attention_portable, spec=DecodeSpec(scale=0.5, left=11)),
        ),
    ),
    has_gradient=False,
)


def drawn_cross_entropy(numbers: Numbers) -> CrossEntropyInputs:
    weights = np.maximum(numbers.uniform(-1.0, 1.0, (2, 7)), 0.0).astype(np.float32)
    targets = numbers.integers(0, 23, (2, 7)).astype(np.int32)
    return CrossEntropyInputs(normal(numbers, 2, 7, 8), normal(numbers, 8, 23), targets, weights)


CROSS_ENTROPY = Subject(
    drawn_cross_entropy,
    lambda inputs: cross_entropy_reference(inputs, CrossEntropySpec(z_loss=1e-3)).loss,
    (lambda inputs: cross_entropy_portable(inputs, CrossEntropySpec(z_loss=1e-3)).loss,),
)


def drawn_groups(numbers: Numbers) -> Any:
    sizes = numbers.multinomial(numbers.integers(0, 41), [0.1, 0.0, 0.6, 0.3]).astype(np.int32)
    return GroupedMatmulInputs(normal(numbers, 40, 8), normal(numbers, 4, 8, 6), sizes)


GROUPED = Subject(
    drawn_groups,
    grouped_matmul_reference,
    (
        lambda inputs: GROUPED_MATMUL_OP.custom_vjp(
            inputs,
            None,
            forward=grouped_matmul_portable,
            backward=grouped_matmul_portable_backward,
        ),
    ),
)


@partial(jax.jit, static_argnums=0)
def num_new_nans(subject: Subject, arrays: Any) -> tuple[jax.Array, jax.Array]:
    """Return how many NaN the others give where the reference gives none, and how many it gives."""
    want = jax.tree.leaves(computed(subject, subject.reference, arrays))
    new = jnp.int32(0)
    for other in subject.others:
        got = jax.tree.leaves(computed(subject, other, arrays))
        new += sum(jnp.sum(jnp.isnan(x) & ~jnp.isnan(y)) for x, y in zip(got, want, strict=True))
    return new, sum(jnp.sum(jnp.isnan(y)) for y in want)


def computed(subject: Subject, function: Callable[[Any], Any], arrays: Any) -> Any:
    """Return outputs, and gradients by all float arrays of the outputs' weighted sum."""
    if not subject.has_gradient:
        return function(arrays)
    leaves, tree = jax.tree.flatten(arrays)
    is_float = [leaf.dtype == jnp.float32 for leaf in leaves]

    def loss(floats: list[Any]) -> tuple[Any, Any]:
        left = iter(floats)
        joined = [next(left) if one else leaf for one, leaf in zip(is_float, leaves, strict=True)]
        outputs = function(jax.tree.unflatten(tree, joined))
        first = jax.tree.leaves(outputs)[0]
        return jnp.sum(first * jnp.cos(jnp.arange(first.size)).reshape(first.shape)), outputs

    floats = [leaf for one, leaf in zip(is_float, leaves, strict=True) if one]
    return jax.grad(loss, has_aux=True)(floats)


def check(subject: Subject, seed: int) -> None:
    new, _ = num_new_nans(subject, subject.draw(np.random.default_rng(seed)))
    assert int(new) == 0


seeds = st.integers(0, 2**32 - 1)


def check_random(subjects: tuple[Subject, ...], num_calls: int) -> None:
    """Check so many calls, each of one of the subjects."""
    drawn = given(subject=st.sampled_from(subjects), seed=seeds)(check)
    settings(max_examples=num_calls, deadline=None, derandomize=True)(drawn)()


@pytest.mark.parametrize("num_calls", [400, pytest.param(2000, marks=pytest.mark.long)])
def test_attention(num_calls):
    check_random(ATTENTION, num_calls)


@pytest.mark.parametrize("num_calls", [200, pytest.param(500, marks=pytest.mark.long)])
def test_other_ops(num_calls):
    check_random((DECODE, CROSS_ENTROPY, GROUPED), num_calls)


@pytest.mark.parametrize("subject", [*ATTENTION, DECODE, CROSS_ENTROPY, GROUPED])
def test_references_give_numbers_for_most_calls(subject):
    """Otherwise nothing would be proven above."""
    calls = [subject.draw(np.random.default_rng(seed)) for seed in range(40)]
    assert sum(int(num_new_nans(subject, arrays)[1]) == 0 for arrays in calls) >= 20
