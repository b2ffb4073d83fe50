"""What the presets keep: the same gradients, and the products that are computed again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state
from parity_pairs import MODELS

from axcore.config import find_config, update_config
from axcore.layers import CrossTransformerLayer, ScannedLayers, Stack, TransformerLayer
from axcore.models import llama2, t5
from axcore.modifiers import RematModifier
from axcore.modifiers.remat import REMAT_PRESETS
from axcore.module import Remat, functional
from axcore.plugins import Hardware

CPU = Hardware.parse("cpu-1")


def loss_of(policy):
    cfg = llama2("toy")
    model = (cfg if policy == "none" else RematModifier(policy=policy).apply(cfg, CPU)).build()
    tokens = jnp.asarray(np.arange(48).reshape(2, 24) % 17)
    ones = jnp.ones(tokens.shape, jnp.float32)
    batch = {
        "tokens": tokens,
        "targets": (tokens + 1) % 17,
        "positions": jnp.broadcast_to(jnp.arange(24), tokens.shape),
        "segment_ids": jnp.ones(tokens.shape, jnp.int32),
        "loss_weights": ones,
    }

    def loss(state):
        (total, weight), _ = functional(model, state, batch, training=True)
        return total / weight

    return model, loss


def products(jaxpr):
    """Counts matrix products in a program, those of inner programs once each."""
    count = 0
    for equation in jaxpr.eqns:
        count += equation.primitive.name == "dot_general"
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                count += products(inner) if hasattr(inner, "eqns") else 0
    return count


@pytest.fixture(scope="module")
def plain():
    model, loss = loss_of("none")
    state = numpy_state(model.param_specs())
    return state, jax.jit(jax.value_and_grad(loss))(state)


@pytest.mark.parametrize("policy", ["full", "minimal", "offload_attention"])
@pytest.mark.quick_one_in(6)
def test_a_preset_changes_no_gradient(policy, plain):
    state, (value, gradients) = plain
    _, loss = loss_of(policy)
    again, same = jax.jit(jax.value_and_grad(loss))(state)
    np.testing.assert_allclose(again, value, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), gradients, same)


@pytest.mark.slow
def test_presets_differ_in_the_products_that_are_computed_again():
    counts = {}
    for policy in REMAT_PRESETS:
        model, loss = loss_of(policy)
        state = jax.eval_shape(model.init, jax.random.key(0))
        counts[policy] = products(jax.make_jaxpr(jax.grad(loss))(state).jaxpr)
    again = {policy: count - counts["none"] for policy, count in counts.items()}
    logits, values, heads, wide = 1, 1, 3, 3  # the portable kernel keeps no logits by itself
    expected = {
        "none": 0,
        "full": logits + values + heads + wide,
        "save_attention": logits + heads + wide,
        "save_heads": logits + wide,
        "save_gate": logits + 1,
        "minimal": logits,
        "offload_attention": logits + wide,
        "offload_minimal": logits,
    }
    assert again == expected


@pytest.mark.parametrize("family", ["mamba2", "nemotron_h", "falcon_h1", "qwen3_5"])
def test_every_layer_of_a_stack_is_computed_again_whatever_its_kind(family):
    cfg = RematModifier().apply(MODELS[family](), CPU)
    stacks = find_config(cfg, lambda node: isinstance(node, (ScannedLayers.Config, Stack.Config)))
    layers = [one.node.layer for one in stacks]
    layers = [part for one in layers for part in getattr(one, "layers", (one,))]
    assert layers
    assert all(layer.remat == Remat() for layer in layers)


def test_layers_with_cross_attention_are_computed_again_too():
    cfg = RematModifier().apply(t5("toy"), CPU)
    for kind in (TransformerLayer, CrossTransformerLayer):
        found = find_config(cfg, kind)
        assert found
        assert all(one.node.remat == REMAT_PRESETS["full"] for one in found)


def test_what_layers_share_and_leave_as_it_is_is_kept_once():
    cfg = update_config(RematModifier().apply(t5("toy"), CPU), {"*.stack.num_layers": 5})
    model, rows = cfg.build(), {"source": (3, 11), "target": (3, 7)}
    tokens = {name: jnp.ones(shape, jnp.int32) for name, shape in rows.items()}
    masks = {f"{name}_mask": jnp.ones(shape, bool) for name, shape in rows.items()}

    def loss(state):
        return functional(model, state, {**tokens, **masks}, training=True)[1].total_loss()

    program = jax.make_jaxpr(jax.grad(loss))(numpy_state(model.param_specs()))
    stacked = [
        value.aval.shape
        for equation in program.eqns
        if equation.primitive.name == "scan"
        for value in equation.outvars
    ]
    # Once by the encoder, whose layers begin with such arrays; not by the decoder as well.
    assert stacked.count((5, 3, 11, 32)) == 1
