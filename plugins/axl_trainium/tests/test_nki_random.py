"""Random calls, small, huge, masked and empty: NKI kernels give NaN only where references do."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_trainium.kernels.attention.api import nki_flash_attention
from axl_trainium.kernels.attention.backward import nki_flash_attention_backward
from axl_trainium.kernels.cross_entropy.api import (
    nki_cross_entropy,
    nki_cross_entropy_backward,
)

from axcore.ops import AttentionInputs, AttentionSpec, CrossEntropyInputs, CrossEntropySpec
from axcore.ops.attention.kernels import attention_reference
from axcore.ops.attention.op import attention_custom_vjp
from axcore.ops.contract import relative_error
from axcore.ops.cross_entropy.kernels import cross_entropy_reference
from axcore.ops.cross_entropy.op import cross_entropy_custom_vjp

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("runs_nki")]

NUM_CALLS = 60
SIZES = (1e-20, 1.0, 1e4, 1e12)
"""How large numbers are: products of two, summed, stay above the kernel's floor."""


def normal(numbers, *shape):
    return (numbers.choice(SIZES) * numbers.standard_normal(shape)).astype(np.float32)


def attention_inputs(numbers, parts):
    inputs = AttentionInputs(
        normal(numbers, 2, 20, 4, 8), normal(numbers, 2, 140, 2, 8), normal(numbers, 2, 140, 2, 4)
    )
    if "segments" in parts:
        most = numbers.integers(1, 5)
        inputs = inputs._replace(
            q_segments_BT=numbers.integers(0, most, (2, 20)).astype(np.int32),
            k_segments_BS=np.sort(numbers.integers(0, most, (2, 140))).astype(np.int32),
        )
    if "ranges" in parts:
        start = numbers.integers(-2, 142, (2, 20)).astype(np.int32)
        length = numbers.integers(0, numbers.choice([1, 4, 140]), (2, 20)).astype(np.int32)
        inputs = inputs._replace(k_start_BT=start, k_end_BT=start + length)
    return inputs


@pytest.mark.parametrize("parts", ["", "segments", "ranges", "segments ranges"])
def test_attention(parts):
    window = {} if parts else {"left": 30, "right": 3, "query_offset": 60}
    spec = AttentionSpec(scale=0.3, soft_cap=20.0 if "segments" in parts else None, **window)
    numbers = np.random.default_rng(len(parts))

    def ours(inputs):
        return attention_custom_vjp(
            inputs, spec, forward=nki_flash_attention, backward=nki_flash_attention_backward
        )[0]

    def with_gradients(function):
        def loss(q, k, v, rest):
            o = function(rest._replace(q_BTNH=q, k_BSKH=k, v_BSKV=v))
            return jnp.sum(jnp.where(jnp.isfinite(o), o, 0)), o

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))

    run, reference = map(
        with_gradients, (ours, lambda inputs: attention_reference(inputs, spec)[0])
    )
    for _ in range(NUM_CALLS):
        inputs = jax.tree.map(jnp.asarray, attention_inputs(numbers, parts))
        gradients, o = run(*inputs[:3], inputs)
        expected_gradients, expected = reference(*inputs[:3], inputs)
        size = float(jnp.max(jnp.abs(inputs.v_BSKV)))
        assert relative_error(o / size, expected / size) <= 1e-3
        for got, wanted in zip(gradients, expected_gradients, strict=True):
            assert not np.isnan(np.asarray(got)[~np.isnan(np.asarray(wanted))]).any()


@pytest.mark.parametrize("soft_cap", [None, 5.0])
def test_cross_entropy(soft_cap):
    spec = CrossEntropySpec(soft_cap=soft_cap, z_loss=1e-4)
    numbers = np.random.default_rng(0)

    def with_gradients(function):
        def loss(x, w, targets, weights):
            return function(CrossEntropyInputs(x, w, targets, weights), spec).loss

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))

    ours = partial(
        cross_entropy_custom_vjp, forward=nki_cross_entropy, backward=nki_cross_entropy_backward
    )
    run, reference = map(with_gradients, (ours, cross_entropy_reference))
    for _ in range(NUM_CALLS):
        call = (
            normal(numbers, 2, 20, 8),
            normal(numbers, 8, 700),
            numbers.integers(0, 700, (2, 20)).astype(np.int32),
            numbers.integers(0, 2, (2, 20)).astype(np.float32),
        )
        results, expected = run(*call), reference(*call)
        for got, wanted in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
            assert not np.isnan(np.asarray(got)[~np.isnan(np.asarray(wanted))]).any()
        if np.isfinite(expected[0]):
            np.testing.assert_allclose(results[0], expected[0], rtol=1e-3)
