"""Encoders of text: as many parameters as published, and laws of padding, packing and the loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state

from axcore.config import from_json, to_json, update_config
from axcore.errors import ConfigError
from axcore.interop import EncoderAlone, HuggingFace, to_hugging_face
from axcore.layers import TokenInfo, whole_rows
from axcore.models import BiasedTiedHead, bert, bert_classifier, modernbert
from axcore.module import count_params, functional

PUBLISHED = {
    (bert, "tiny"): 4_416_698,
    (bert, "base"): 109_514_298,
    (bert, "large"): 335_174_458,
    (modernbert, "base"): 149_655_232,
    (modernbert, "large"): 395_881_664,
}
TOYS = {"bert": bert("toy"), "modernbert": modernbert("toy")}
LENGTH = 12
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 264, (2, LENGTH)), jnp.int32)
IS_REAL = jnp.arange(LENGTH)[None, :] < jnp.array([[LENGTH], [7]])


@pytest.mark.parametrize(
    ("family", "size"), PUBLISHED, ids=lambda part: getattr(part, "__name__", part)
)
def test_a_family_has_as_many_parameters_as_published(family, size):
    assert count_params(family(size).build().param_specs()) == PUBLISHED[family, size]


@pytest.fixture(params=TOYS)
def cfg(request):
    return TOYS[request.param]


def logits_of(cfg, *args):
    model = cfg.build()
    state = jax.tree.map(jnp.asarray, numpy_state(model.param_specs()))
    return np.asarray(
        jax.jit(lambda *args: functional(model, *args, method="logits")[0])(state, *args)
    )


def test_a_config_survives_being_saved_and_loaded(cfg):
    assert from_json(to_json(cfg)) == cfg


def test_padding_changes_no_logits(cfg):
    info = whole_rows(TOKENS, IS_REAL)
    other = jnp.where(IS_REAL, TOKENS, 3)
    first, second = (np.asarray(logits_of(cfg, one, info)) for one in (TOKENS, other))
    np.testing.assert_allclose(first[IS_REAL], second[IS_REAL], atol=1e-5)
    alone = logits_of(cfg, TOKENS[1:, :7])
    np.testing.assert_allclose(first[1:, :7], alone, atol=1e-5)


def test_a_token_sees_what_follows_it_and_no_other_document(cfg):
    segments = jnp.broadcast_to(jnp.where(jnp.arange(LENGTH) > 6, 2, 1), TOKENS.shape)
    positions = jnp.broadcast_to(jnp.arange(LENGTH) % 7, TOKENS.shape).astype(jnp.int32)
    info = TokenInfo(positions, segments)
    first = logits_of(cfg, TOKENS, info)
    changed = logits_of(cfg, TOKENS.at[:, 6].add(1), info)
    assert (np.abs(first - changed)[:, :7].max(-1) > 1e-4).all()
    np.testing.assert_allclose(first[:, 7:], changed[:, 7:], atol=1e-5)


def test_types_of_tokens_tell_two_texts_apart():
    cfg, info = bert("toy"), whole_rows(TOKENS)
    plain, zero, one = (
        logits_of(cfg, TOKENS, info, types)
        for types in (None, jnp.zeros_like(TOKENS), jnp.ones_like(TOKENS))
    )
    np.testing.assert_allclose(plain, zero, atol=1e-6)
    assert np.abs(plain - one).max() > 0.01


def test_the_biased_head_gives_the_cross_entropy_the_accuracy_and_the_z_loss():
    head = BiasedTiedHead.Config(dim=4, vocab_size=6, z_loss=0.5, soft_cap=3.0).build()
    draw = np.random.default_rng(0)
    x, table = (draw.normal(size=s).astype(np.float32) for s in ((2, 5, 4), (6, 4)))
    bias = draw.normal(size=6).astype(np.float32)
    targets, weights = draw.integers(0, 6, (2, 5)), draw.random((2, 5)).astype(np.float32)
    arrays = [jnp.asarray(one) for one in (x, table, targets, weights)]
    state = {"bias": jnp.asarray(bias)}
    found, outputs = functional(head, state, *arrays, method="loss_and_correct")
    total, weight, correct = map(float, found)
    logits = 3 * np.tanh(x @ table.T / 3) + bias
    partition = np.log(np.exp(logits).sum(-1))
    nll = partition - np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    assert total == pytest.approx((nll * weights).sum(), rel=1e-5)
    assert float(outputs.losses["z"].sum) == pytest.approx((partition**2 * weights).sum(), rel=1e-5)
    right = logits.argmax(-1) == targets
    assert correct == pytest.approx((right * weights).sum(), rel=1e-5)
    assert weight == pytest.approx(weights.sum(), rel=1e-6)


def test_positions_of_bert_end_with_their_table():
    cfg = update_config(bert("toy"), {"**.max_length": 8})
    with pytest.raises(Exception, match="rows have 12 tokens, but only 8 positions"):
        logits_of(cfg, TOKENS)


@pytest.fixture
def masked(tmp_path):
    """A folder with a toy BERT that fills in tokens, and its state."""
    state = jax.tree.map(jnp.asarray, numpy_state(bert("toy").build().param_specs()))
    to_hugging_face(tmp_path / "masked", bert("toy"), state)
    return tmp_path / "masked", state


def test_a_classifier_begins_with_the_encoder_of_a_masked_model(masked):
    folder, state = masked
    cfg = bert_classifier("toy", num_classes=3)
    specs = cfg.build().param_specs()
    wanted = jax.tree.map(
        lambda spec: spec.abstract, specs, is_leaf=lambda one: hasattr(one, "abstract")
    )
    source = HuggingFace.Config(path=str(folder), edits=(EncoderAlone(),)).build()
    found = source.plan(cfg).read(wanted)
    jax.tree.map(np.testing.assert_array_equal, found["encoder"], state["encoder"])
    assert not np.array_equal(
        found["transform"]["linear"]["weight"], state["transform"]["linear"]["weight"]
    )
    assert found["head"]["weight"].shape == (64, 3)


def test_an_encoder_of_another_kind_is_refused_with_what_differs(masked):
    cfg = update_config(bert_classifier("toy", num_classes=3), {"**.norm.epsilon": 0.1})
    source = HuggingFace.Config(path=str(masked[0]), edits=(EncoderAlone(),)).build()
    with pytest.raises(ConfigError, match=r"not the one that the weights are of[\s\S]*epsilon"):
        source.plan(cfg)
