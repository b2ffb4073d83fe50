"""Decode matmul is the product of numpy, in full or low precision, and names what does not fit."""

from functools import partial

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.errors import KernelError
from axcore.ops import KernelPolicy, decode_matmul, in_panels, packed_int4, use_policy
from axcore.ops.contract import TOLERANCES, relative_error
from axcore.ops.decode_matmul.contract import DECODE_MATMUL_TEST_CASES
from axcore.ops.decode_matmul.kernels import decode_matmul_portable, decode_matmul_reference
from axcore.plugins import Hardware

SAMPLES = {sample.name: sample for sample in DECODE_MATMUL_TEST_CASES}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.quick_one_in(6)
def test_portable_kernel_equals_the_reference(name, dtype):
    inputs, spec = SAMPLES[name].make(dtype)
    got = jax.jit(partial(decode_matmul_portable, spec=spec))(inputs)
    want = jax.jit(partial(decode_matmul_reference, spec=spec))(inputs)
    assert got.dtype == want.dtype == jnp.dtype(dtype)
    assert relative_error(got, want) <= TOLERANCES[dtype].forward


def test_rows_and_scales_of_int4_are_those_of_numpy():
    """Row `k` has the low half of byte `k`, row `k + K / 2` the high one."""
    numbers = np.random.default_rng(0)
    values = numbers.integers(-8, 8, (12, 16))
    scale = numbers.uniform(0.5, 2, (3, 16))
    x = numbers.standard_normal((5, 12))
    packed = np.asarray(packed_int4(jnp.asarray(values, jnp.int8)))
    np.testing.assert_array_equal(packed & 15, values[:6] & 15)
    np.testing.assert_array_equal(packed >> 4, values[6:] & 15)
    y = decode_matmul(
        jnp.asarray(x, jnp.float32), jnp.asarray(packed), jnp.asarray(scale, jnp.float32)
    )
    np.testing.assert_allclose(y, x @ (values * np.repeat(scale, 4, axis=0)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", ["cpu-1", "tpu-v5p-8"])
def test_a_weight_gives_the_same_transposed_and_in_panels(target):
    inputs, _ = attrs.evolve(SAMPLES["eight_rows"], out_dim=100).make()
    x, weight = inputs.x_RK, inputs.weight
    with use_policy(KernelPolicy(hardware=Hardware.parse(target))):
        y = decode_matmul(x, weight)
        transposed = decode_matmul(x, weight.T, transposed=True)
        panels = decode_matmul(x, in_panels(weight), out_dim=100)
    np.testing.assert_allclose(y, transposed, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(y, panels, rtol=1e-5, atol=1e-5)


X, WEIGHT = jnp.ones((2, 32)), jnp.ones((32, 48))
NARROW, SCALE = WEIGHT.astype(jnp.int8), jnp.ones((1, 48))


X_IS, WEIGHT_IS, SCALE_IS = "decode_matmul: x ", "the weight is ", "decode_matmul: the scale is "


@pytest.mark.parametrize(
    ("arrays", "choices", "message"),
    [
        (
            (X[0], WEIGHT),
            {},
            X_IS + r"is float32 of shape \(32,\), .* expected floating \(rows, in",
        ),
        ((X.astype(jnp.int32), WEIGHT), {}, X_IS + r"is int32 of shape \(2, 32\)"),
        (
            (X, WEIGHT[:31]),
            {},
            X_IS + r"has .* \(2, 32\), and the weight \(31, 48\) takes rows of 31",
        ),
        ((X, WEIGHT), {"transposed": True}, r"the weight \(32, 48\) takes rows of 48"),
        ((X, WEIGHT), {"out_dim": 48}, r"the weight of shape \(32, 48\), out_dim 48; expected"),
        (
            (X, in_panels(WEIGHT)),
            {},
            r"shape \(1, 32, 48\), out_dim None; .* panels \(panels, in, c",
        ),
        (
            (X, in_panels(WEIGHT)),
            {"out_dim": 49},
            r"out_dim is 49; .* \(1, 32, 48\) have 1 to 48 c",
        ),
        ((X, NARROW.astype(jnp.uint8), SCALE), {}, r"takes rows of 64"),
        (
            (X, WEIGHT.astype(jnp.bfloat16)),
            {},
            X_IS + r"is float32 and the weight bfloat16; expected",
        ),
        ((X, NARROW), {}, X_IS + r"is float32 and the weight int8; expected one dtype"),
        ((X, WEIGHT, SCALE), {}, WEIGHT_IS + r"float32 .* of int8 or uint8 or float8_e4m3fn"),
        (
            (X, NARROW.T, SCALE),
            {"transposed": True},
            SCALE_IS + r"float32 of shape \(1, 48\); expected float32 \(48, 1\)",
        ),
        (
            (X, NARROW.T[:, :16].astype(jnp.uint8), SCALE.T),
            {"transposed": True},
            WEIGHT_IS + r"uint8 .*, transposed; expected a weight of int8 or float8_e4m3fn",
        ),
        ((X, in_panels(NARROW), SCALE), {"out_dim": 48}, r"\(1, 48\); .* \(1, groups, 48\)"),
        (
            (X, NARROW, SCALE[0]),
            {},
            SCALE_IS + r"float32 of shape \(48,\); expected float32 \(groups",
        ),
        ((X, NARROW, SCALE[:, :8]), {}, SCALE_IS + r"float32 of shape \(1, 8\); .* \(groups, 48\)"),
        ((X, NARROW, jnp.ones((3, 48))), {}, r"shape \(3, 48\); .* of groups that divide 32"),
        ((X, NARROW, SCALE.astype(jnp.bfloat16)), {}, SCALE_IS + r"bfloat16 of shape \(1, 48\)"),
    ],
)
def test_misfits_are_named(arrays, choices, message):
    with pytest.raises(KernelError, match=message):
        decode_matmul(*arrays, **choices)
