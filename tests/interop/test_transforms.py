"""Transforms: each is undone by its inverse, bit by bit, and says its shapes without arrays."""

import jax
import numpy as np
import pytest

from axcore.interop import (
    Chain,
    Concatenate,
    JoinAxes,
    Permute,
    Same,
    Split,
    SplitAxis,
    StackArrays,
    Transpose,
    UnstackArrays,
    interleaved,
)

HEADS, KEY, VALUE, LATENT = 3, 4, 2, 5
FUSED = Chain(
    Transpose(), SplitAxis(HEADS), Concatenate((KEY, VALUE), axis=1), JoinAxes(HEADS, axis=0)
)
"""Keys and values of every head after the other, as some families fuse them."""

CASES = (
    (Same(), [(2, 3)]),
    (Transpose(), [(2, 3), (4, 1)]),
    (SplitAxis(3), [(6, 2)]),
    (SplitAxis(3, axis=1), [(2, 6)]),
    (JoinAxes(3, axis=1), [(2, 3, 4)]),
    (Permute((2, 0, 1)), [(3, 2)]),
    (Permute((1, 2, 0), axis=1), [(2, 3)]),
    (Concatenate((2, 4)), [(2, 3), (4, 3)]),
    (Concatenate((2, 4), axis=-1), [(3, 2), (3, 4)]),
    (Split((1, 3), axis=1), [(2, 4)]),
    (StackArrays(2), [(2, 3)] * 4),
    (StackArrays(2, axis=-1), [(2, 3)] * 2),
    (UnstackArrays(3, axis=1), [(2, 3), (4, 3)]),
    (FUSED, [(LATENT, HEADS * KEY), (LATENT, HEADS * VALUE)]),
    (interleaved(6, kept=2, axis=1), [(3, 8)]),
)


def arrays(shapes):
    random = np.random.default_rng(0)
    return tuple(random.normal(size=shape).astype(np.float32) for shape in shapes)


@pytest.mark.parametrize(("transform", "shapes"), CASES, ids=lambda value: type(value).__name__)
def test_inverse_undoes_it_and_is_undone_by_it(transform, shapes):
    axcore = arrays(shapes)
    hf = transform(axcore)
    for before, after in zip(axcore, transform.inverse(hf), strict=True):
        assert np.array_equal(before, after)
    assert transform.inverse.inverse == transform
    told = jax.eval_shape(transform, axcore)
    assert [one.shape for one in told] == [one.shape for one in hf]


def test_fused_keys_and_values_follow_each_other_head_by_head():
    k, v = arrays([(LATENT, HEADS * KEY), (LATENT, HEADS * VALUE)])
    (fused,) = FUSED((k, v))
    rows = fused.reshape(HEADS, KEY + VALUE, LATENT)
    for head in range(HEADS):
        assert np.array_equal(rows[head, :KEY], k[:, head * KEY : (head + 1) * KEY].T)
        assert np.array_equal(rows[head, KEY:], v[:, head * VALUE : (head + 1) * VALUE].T)


def test_gates_and_inputs_of_all_experts_become_columns_by_turns():
    gates, ups = arrays([(4, 3, 2)] * 2)
    by_turns = Chain(StackArrays(4), StackArrays(2, axis=-1), JoinAxes(2, axis=2))
    (fused,) = by_turns((*gates, *ups))
    assert np.array_equal(fused[..., ::2], gates)
    assert np.array_equal(fused[..., 1::2], ups)


def test_half_split_rows_become_neighbouring_pairs():
    assert interleaved(6, kept=2).order == (0, 1, 2, 5, 3, 6, 4, 7)
    assert interleaved(4, rest=2).order == (0, 2, 1, 3, 4, 5)


def test_splits_and_transpositions_copy_nothing():
    whole = np.arange(12.0).reshape(3, 4)
    for part in Chain(Transpose(), Split((1, 3)))((whole,)):
        assert np.shares_memory(part, whole)
