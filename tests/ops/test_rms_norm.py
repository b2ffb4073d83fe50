"""Portable RMS normalisation means what its reference means, and keeps less."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.errors import KernelError
from axcore.ops import RmsNormInputs, RmsNormSpec, rms_norm
from axcore.ops.contract import TOLERANCES, relative_error
from axcore.ops.rms_norm.kernels import rms_norm_portable, rms_norm_reference

NUMBERS = np.random.default_rng(0)


@partial(jax.jit, static_argnums=(0, 3))
def run(function, x, scale, scale_offset):
    def loss(x, scale):
        y = function(RmsNormInputs(x, scale), RmsNormSpec(epsilon=1e-6, scale_offset=scale_offset))
        return jnp.sum(jnp.sin(3.0 * y.astype(jnp.float32))), y

    (_, y), gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(x, scale)
    return y, gradients


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(24,), (5, 24), (3, 5, 24)])
@pytest.mark.parametrize("scale_offset", [None, 0.0, 1.0])
@pytest.mark.quick_one_in(12)
def test_portable_equals_the_reference(shape, dtype, scale_offset):
    x = jnp.asarray(NUMBERS.standard_normal(shape).astype(dtype))
    scale = None
    if scale_offset is not None:
        scale = jnp.asarray(NUMBERS.standard_normal(shape[-1:]).astype("float32"))
    y, gradients = run(rms_norm_portable, x, scale, scale_offset or 0.0)
    want, want_gradients = run(rms_norm_reference, x, scale, scale_offset or 0.0)
    assert y.dtype == x.dtype
    assert relative_error(y, want) <= TOLERANCES[dtype].forward
    for got, expected in zip(*map(jax.tree.leaves, (gradients, want_gradients)), strict=True):
        assert got.dtype == expected.dtype
        assert relative_error(got, expected) <= TOLERANCES[dtype].backward


def test_rows_have_unit_mean_square_whatever_their_size():
    x = jnp.asarray(NUMBERS.standard_normal((4, 64)), jnp.float32)
    y = rms_norm(x * jnp.asarray([[1e-2], [1.0], [1e6], [1e15]]))
    assert np.allclose(jnp.mean(jnp.square(y), axis=-1), 1.0, rtol=2e-2)


def test_zero_row_gives_zeros_and_finite_gradients():
    y, gradients = run(rms_norm_portable, jnp.zeros((2, 8)), jnp.ones(8), 0.0)
    assert not y.any()
    assert all(jnp.isfinite(g).all() for g in gradients)


def test_portable_keeps_less_than_differentiating_the_reference():
    def kept_bytes(function):
        def gradient(x):
            return jax.vjp(
                lambda x: function(RmsNormInputs(x, None), RmsNormSpec(epsilon=1e-6)), x
            )[1]

        kept = jax.eval_shape(gradient, jax.ShapeDtypeStruct((64, 256), jnp.bfloat16))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))

    assert kept_bytes(rms_norm_portable) < 1.1 * 64 * 256 * 2
    assert kept_bytes(rms_norm_reference) > 1.9 * 64 * 256 * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((jnp.ones((2, 8), int),), r"x is int32 of shape \(2, 8\); expected floating"),
        ((jnp.ones((2, 8)), jnp.ones(4)), r"scale has shape \(4,\); expected \(8,\)"),
        ((jnp.ones((2, 8)), jnp.ones(8, int)), "scale is int32; expected floating"),
    ],
)
def test_misfits_are_named(arguments, message):
    with pytest.raises(KernelError, match=message):
        rms_norm(*arguments)
