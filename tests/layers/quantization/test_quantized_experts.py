"""Experts in int8 and float8, by the same modifiers as any linear layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.config import find_config
from axcore.layers import (
    CapacityLimited,
    Dropless,
    FeedForward,
    Fp8Current,
    Fp8Delayed,
    Int8Dynamic,
    MoE,
    PlainDot,
)
from axcore.modifiers import with_dot
from axcore.module import apply_updates, functional
from axcore.ops import KernelPolicy, use_policy
from axcore.plugins import Hardware

EMULATED = KernelPolicy(hardware=Hardware.parse("cpu-1"), pins={"quantized_dot": "emulated"})
DIM, EXPERTS = 16, 4
DOTS = {
    "int8": (Int8Dynamic.Config(), 0.03),
    "int8_stochastic": (Int8Dynamic.Config(stochastic_rounding=True), 0.03),
    "fp8_current": (Fp8Current.Config(), 0.1),
    "fp8_delayed": (Fp8Delayed.Config(history=2), 0.1),
}
PLAIN = MoE.Config(dim=DIM, expert=FeedForward.Config(hidden_dim=24), num_experts=EXPERTS, top_k=2)


@pytest.fixture
def x():
    return jnp.asarray(np.random.default_rng(0).standard_normal((2, 12, DIM), np.float32))


def value_and_gradients(module, state, x):
    """Return what the layer makes of x, its outputs, and the gradients of its state and of x."""

    def loss(state, x):
        y, outputs = functional(module, state, x, rng=jax.random.key(1), training=True)
        weights = jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape) / 64
        return jnp.sum(y * weights), (y, outputs)

    with use_policy(EMULATED):
        run = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))
        gradients, (y, outputs) = run(state, x)
    return y, outputs, gradients


def weights_of(tree):
    experts = tree["experts"]["expert"]
    return {name: experts[name]["weight"] for name in ("gate", "up", "down")}


@pytest.mark.parametrize(
    ("name", "dispatch"),
    [
        ("int8", Dropless.Config()),
        *(
            pytest.param(name, dispatch, marks=pytest.mark.slow)
            for name, dispatch in (
                *((name, Dropless.Config()) for name in DOTS if name != "int8"),
                ("int8", CapacityLimited.Config(factor=4.0)),
            )
        ),
    ],
)
@pytest.mark.slow
def test_narrow_experts_are_near_plain_ones(name, dispatch, x):
    dot, allowed = DOTS[name]
    plain = MoE.Config(**{**_fields(PLAIN), "dispatch": dispatch})
    narrow = with_dot(plain, dot)
    kept = [one.path for one in find_config(narrow, PlainDot.Config)]
    assert kept
    assert all("router" in path for path in kept)
    module, wanted = narrow.build(), plain.build()
    state = module.init(0)
    y, _, (d_state, dx) = value_and_gradients(module, state, x)
    plain_state = wanted.init(0)
    want_y, _, (d_plain, want_dx) = value_and_gradients(wanted, plain_state, x)
    pairs = [(y, want_y), (dx, want_dx)]
    pairs += zip(weights_of(d_state).values(), weights_of(d_plain).values(), strict=True)
    for got, want in pairs:
        assert 1e-3 < jnp.linalg.norm(got - want) / jnp.linalg.norm(want) <= allowed


def _fields(cfg):
    return {name: getattr(cfg, name) for name in ("dim", "expert", "num_experts", "top_k")}


@pytest.mark.slow
def test_every_expert_has_histories_of_its_own(x):
    module = with_dot(PLAIN, Fp8Delayed.Config(history=2)).build()
    state = module.init(0)
    _, outputs, (gradients, _) = value_and_gradients(module, state, x)
    after = apply_updates(state, outputs.updates)
    gate = after["experts"]["expert"]["gate"]
    histories = gate["dot"]
    assert histories["weight_history"].shape == (EXPERTS, 2)
    largest = jnp.max(jnp.abs(gate["weight"]), axis=(1, 2))
    np.testing.assert_array_equal(histories["weight_history"][:, 0], largest)
    assert len(set(np.asarray(histories["input_history"][:, 0]))) > 1
    seen = gradients["experts"]["expert"]["gate"]["dot"]["gradient_amax"]
    assert (seen > 0).all()
    assert len(set(np.asarray(seen))) == EXPERTS
