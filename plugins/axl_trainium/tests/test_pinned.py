"""A small model's loss and gradients by pinned NKI kernels are those of the portable ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.ops import (
    KernelPolicy,
    attention,
    cross_entropy,
    recording_choices,
    rms_norm,
    use_policy,
)
from axcore.ops.contract import relative_error
from axcore.plugins import Hardware

NAMES = {
    "attention": "nki_flash_attention",
    "cross_entropy": "nki_cross_entropy",
    "rms_norm": "nki_rms_norm",
}

BACKWARD = {f"{op}_backward": name for op, name in NAMES.items() if not op.endswith("_backward")}
"""Chosen without a pin: the gradient of a forward kernel's own name."""


def loss(x_BTNH, scale_H, w_DV):
    """Normalises heads, attends causally within documents, and predicts the next of 20 words."""
    batch, time, _, _ = x_BTNH.shape
    documents_BT = jnp.asarray(1 + (np.arange(time) > time // 2)).reshape(1, time)
    q = rms_norm(x_BTNH, scale_H)
    o = attention(
        q,
        q[:, :, :2],
        x_BTNH[:, :, 2:],
        causal=True,
        segment_ids=jnp.broadcast_to(documents_BT, (batch, time)),
    )
    targets = jnp.arange(batch * time).reshape(batch, time) % 20
    total, weight = cross_entropy(
        o.reshape(batch, time, -1), w_DV, targets, jnp.ones((batch, time), jnp.float32)
    )
    return total / weight


def gradients(policy):
    numbers = np.random.default_rng(0)
    shapes = (2, 12, 4, 8), (8,), (32, 20)
    arrays = [jnp.asarray(numbers.standard_normal(shape).astype(np.float32)) for shape in shapes]
    with use_policy(policy), recording_choices() as made:
        results = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(*arrays)
    return results, {choice.call.op: choice.kernel.name for choice in made}


@pytest.mark.usefixtures("runs_nki")
def test_pinned_kernels_train_as_portable_ones_do():
    hardware = Hardware.parse("trainium-trn2-16")
    ours, chosen = gradients(KernelPolicy(hardware=hardware, pins=NAMES))
    portable, others = gradients(KernelPolicy(hardware=hardware))
    assert chosen == {**BACKWARD, **NAMES}
    assert set(others.values()) == {"portable"}
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(portable), strict=True):
        assert relative_error(one, other) <= 2e-6
