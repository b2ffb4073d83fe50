"""Values and keys that travel from layer to layer, with no signature between changed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_attention.across_layers import ReceivedProjection, SentProjection, ValueResidual
from axl_attention.models import gemma3

from axcore.config import REQUIRED, config, evolve, find_config, replace_config
from axcore.errors import ConfigError, ModuleError
from axcore.layers import ScannedLayers, Stack, TransformerLayer
from axcore.models import transformer
from axcore.modifiers import with_variant
from axcore.module import Module, Remat, count_params, functional

TOKENS = np.arange(16, dtype=np.int32).reshape(2, 8)


def model(num_layers=4):
    return transformer(
        vocab_size=24, dim=16, num_layers=num_layers, num_heads=2, num_kv_heads=1, hidden_dim=16
    )


def unrolled(cfg):
    as_stack = lambda old: Stack.Config(num_layers=old.num_layers, layer=old.layer)  # noqa: E731
    return replace_config(cfg, ScannedLayers, as_stack)


def restacked(state):
    """Return the state of a `ScannedLayers` from that of a `Stack`."""
    layers = state["decoder"]["stack"]["layer"]
    one = jax.tree.map(lambda *leaves: np.stack(leaves), *layers.values())
    return {**state, "decoder": {**state["decoder"], "stack": {"layer": one}}}


@pytest.fixture(scope="module")
def unrolled_run(run_model):
    """Return a function from a variant to a state of unrolled layers, and what it gives."""

    @functools.cache
    def run(name):
        state, run = run_model(unrolled(with_variant(model(), name)))
        return state, run(state, TOKENS)

    return run


@pytest.mark.parametrize("name", ["value_residual", "shared_keys"])
@pytest.mark.parametrize("remat", [None, Remat()], ids=["kept", "recomputed"])
@pytest.mark.slow
def test_scan_equals_unrolled_layers(run_model, unrolled_run, name, remat):
    """Values, and gradients, which flow back to the layers that sent."""
    state, (loss, gradient, logits) = unrolled_run(name)
    cfg = replace_config(
        with_variant(model(), name), TransformerLayer, lambda layer: evolve(layer, remat=remat)
    )
    _, run = run_model(cfg)
    scanned_loss, scanned_gradient, scanned_logits = run(restacked(state), TOKENS)
    np.testing.assert_allclose(scanned_loss, loss, rtol=1e-5)
    np.testing.assert_allclose(scanned_logits, logits, rtol=1e-4, atol=1e-5)
    jax.tree.map(
        lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5),
        scanned_gradient,
        restacked(gradient),
    )


class Two(Module):
    """Two projections of one input, one after the other."""

    @config
    class Config(Module.Config):
        parts: tuple[Module.Config, ...] = REQUIRED

    def setup(self, cfg):
        sizes = {"in_dim": 4, "axes": ("embed", "kv_heads")}
        self.part = tuple(part.build(out_dim=3, **sizes) for part in cfg.parts)

    def forward(self, x):
        return [part(x) for part in self.part]


SENT = SentProjection.Config(channel="keys")
RECEIVED = ReceivedProjection.Config(channel="keys")


def test_first_values_are_mixed_into_those_of_the_second_layer(call, random, state_of):
    two, x = Two.Config(parts=(ValueResidual.Config(),) * 2).build(), random(2, 3, 4)
    state = state_of(two)
    state["part"]["1"]["share"] = np.float32([0.25, 2.0])
    first, second = (x @ state["part"][i]["linear"]["weight"] for i in "01")
    got = call(two, state, x)
    np.testing.assert_allclose(got[0], first, rtol=1e-5)
    np.testing.assert_allclose(got[1], 0.25 * first + 2.0 * second, rtol=1e-5, atol=1e-6)


def test_own_share_alone_is_the_projection(call, random, state_of):
    two, x = Two.Config(parts=(ValueResidual.Config(),) * 2).build(), random(2, 3, 4)
    state = state_of(two)
    state["part"]["1"]["share"] = np.float32([0.0, 1.0])
    own = x @ state["part"]["1"]["linear"]["weight"]
    np.testing.assert_allclose(call(two, state, x)[1], own, rtol=1e-5, atol=1e-6)


def test_received_keys_are_the_sent_ones(call, random, state_of):
    two = Two.Config(parts=(SENT, RECEIVED)).build()
    state = state_of(two)
    assert list(state["part"]) == ["0"], "what is received has no weights"
    sent, received = call(two, state, random(2, 3, 4))
    np.testing.assert_array_equal(sent, received)


def test_keys_that_nobody_sent_or_of_another_size_are_refused(random):
    x = jnp.asarray(random(2, 3, 4))
    with pytest.raises(ModuleError, match="no earlier layer sent anything through 'keys'"):
        functional(Two.Config(parts=(RECEIVED,)).build(), {}, x)
    two = Two.Config(parts=(SENT, evolve(RECEIVED, out_dim=2))).build
    with pytest.raises(ConfigError, match="out_dim is 2"):
        two()


def test_second_layers_have_no_keys_and_values_of_their_own():
    plain, shared = model(), with_variant(model(), "shared_keys")
    saved = count_params(plain.build().param_specs()) - count_params(shared.build().param_specs())
    assert saved == 2 * (2 * 16 * 8)
    assert shared.decoder.stack.num_layers == 2


def test_layers_that_take_turns_already_share_in_pairs():
    cfg = gemma3("toy")
    shared = with_variant(cfg, "shared_keys")
    assert len(find_config(shared, ReceivedProjection)) == 2 * (3 + 1)
    assert shared.decoder.stack.layers[0].num_layers == cfg.decoder.stack.layers[0].num_layers


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: with_variant(model(num_layers=3), "shared_keys"), "3 times 1 layers cannot share"),
        (
            lambda: with_variant(with_variant(model(), "shared_keys"), "shared_keys"),
            "use keys and values of earlier ones already",
        ),
        (
            lambda: with_variant(with_variant(model(), "latent_attention"), "shared_keys"),
            "no Attention",
        ),
        (
            lambda: with_variant(with_variant(model(), "shared_keys"), "latent_attention"),
            "keys have a projection of their own",
        ),
        (
            lambda: with_variant(with_variant(model(), "value_residual"), "value_residual").build(),
            "ValueResidual wraps another",
        ),
        (
            lambda: with_variant(with_variant(model(), "query_key_norm"), "query_key_norm").build(),
            "QueryKeyNorm wraps another",
        ),
    ],
)
def test_variants_that_cannot_be_applied_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        change()
