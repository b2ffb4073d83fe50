"""`MultimodalLM`: inputs of another kind are in a row as soft tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from point_model import NUM_SOFT, PointEncoder, point_model

from axcore.config import evolve, replace_config, update_config
from axcore.errors import ConfigError
from axcore.layers import (
    FIRST_SOFT_TOKEN,
    FeedForward,
    MoE,
    MultimodalRoPE,
    RoPE,
    SoftTokenEmbedding,
)
from axcore.models import CausalLM, language_model_of, multimodal, transformer
from axcore.module import ArraySpec, BatchSpec, functional

VOCAB = 11
CFG = point_model(VOCAB)
POINTS = jnp.asarray(np.random.default_rng(0).normal(size=(2, 1, 3)), jnp.float32)
ROW = [1, FIRST_SOFT_TOKEN, FIRST_SOFT_TOKEN + 1, 4, 5, 6]


def batch(rows=(ROW, ROW), points=POINTS, **more):
    tokens = jnp.asarray(rows, jnp.int32)
    places = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    weights = jnp.zeros(tokens.shape, jnp.float32).at[:, 2:].set(1)
    targets = jnp.where(tokens >= FIRST_SOFT_TOKEN, 0, tokens)
    return {
        "tokens": tokens,
        "targets": jnp.roll(targets, -1, axis=1),
        "positions": places,
        "loss_weights": weights,
        "points": points,
        **more,
    }


def loss_of(model, state, **arrays):
    (total, weight), _ = functional(model, state, batch(**arrays))
    return total / weight


@pytest.fixture(scope="module")
def model():
    return CFG.build()


@pytest.fixture(scope="module")
def state(model):
    return model.init(0)


def test_soft_tokens_stand_in_the_places_of_their_numbers(model, state):
    """The same row with the vectors written into the table of an ordinary model."""
    soft = state["encoder"]["linear"]
    made = (POINTS[0, 0] @ soft["weight"] + soft["bias"]).reshape(NUM_SOFT, -1)
    plain = CausalLM.Config(vocab_size=VOCAB + NUM_SOFT, dim=16, decoder=CFG.decoder, head=CFG.head)
    plain = replace_config(plain, SoftTokenEmbedding, lambda old: old.embedding).build()
    table = jnp.concatenate([state["decoder"]["embedding"]["embedding"]["weight"], made])
    extra = jnp.zeros((NUM_SOFT, 16), jnp.float32)
    own = {
        "decoder": {**state["decoder"], "embedding": {"weight": table}},
        "head": {"weight": jnp.concatenate([state["head"]["weight"], extra])},
    }
    tokens = jnp.asarray([[1, VOCAB, VOCAB + 1, 4, 5, 6]], jnp.int32)
    logits, _ = functional(plain, own, tokens, method="logits")
    log_probs = jax.nn.log_softmax(logits[0, :, :VOCAB], axis=-1)
    row = batch(rows=(ROW,), points=POINTS[:1])
    nll = -jnp.take_along_axis(log_probs, row["targets"][0][:, None], axis=1)[:, 0]
    (total, _), _ = functional(model, state, row)
    np.testing.assert_allclose(total, jnp.sum(nll * row["loss_weights"][0]), rtol=1e-5)


def test_a_row_s_loss_depends_on_its_own_inputs(model, state):
    other = POINTS.at[1].add(1.0)
    grads = jax.grad(lambda points: loss_of(model, state, points=points))(POINTS)
    assert jnp.all(jnp.abs(grads).max(axis=(1, 2)) > 0)
    assert loss_of(model, state, points=other) != loss_of(model, state)


def test_rows_of_padding_weigh_nothing(model, state):
    one = loss_of(model, state, rows=(ROW,), points=POINTS[:1])
    weights = jnp.asarray([1.0, 0.0], jnp.float32)
    np.testing.assert_allclose(loss_of(model, state, row_weights=weights), one, rtol=1e-6)


def test_a_row_without_soft_tokens_is_that_of_the_language_model(state, model):
    tokens = jnp.asarray([[1, 4, 5]], jnp.int32)
    text = CausalLM.Config(vocab_size=VOCAB, dim=16, decoder=CFG.decoder, head=CFG.head).build()
    own = {name: one for name, one in state.items() if name != "encoder"}
    expected, _ = functional(text, own, tokens, method="logits")
    found, _ = functional(model, state, tokens, method="logits")
    np.testing.assert_array_equal(found, expected)


def test_features_apply_to_both_parts():
    cfg = replace_config(
        CFG, FeedForward, lambda ffn: MoE.Config(expert=ffn, num_experts=2, top_k=1)
    )
    cfg = update_config(cfg, {"encoder.linear.has_bias": False})
    model = cfg.build()
    assert jnp.isfinite(loss_of(model, model.init(0)))


def spec(points=(2, 1, 3), soft=NUM_SOFT, dtype="float32", **more):
    row = {"shape": (2, 6), "axes": ("batch", "time")}
    return BatchSpec(
        arrays={
            "tokens": ArraySpec(dtype="int32", num_values=FIRST_SOFT_TOKEN + soft, **row),
            "targets": ArraySpec(dtype="int32", num_values=VOCAB, **row),
            "positions": ArraySpec(dtype="int32", **row),
            "loss_weights": ArraySpec(dtype="float32", **row),
            "points": ArraySpec(
                shape=points, axes=("batch", *(None,) * (len(points) - 1)), dtype=dtype
            ),
            **more,
        },
        unit="row",
        num_units=2,
    )


def test_a_batch_is_taken(model):
    model.check_batch(spec())
    model.check_batch(spec(points=(2, 3)))
    model.check_batch(spec(points=(2, 2, 3), soft=2 * NUM_SOFT))


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (spec(points=(2, 1, 4)), "a row's 'points' is 1x4 float32, and the encoder takes 3"),
        (spec(dtype="int32"), "1x3 int32"),
        (spec(soft=1), "up to 1 soft tokens, and the encoder makes 2"),
        (spec(points=(2, 2, 3)), "up to 2 soft tokens, and the encoder makes 4"),
    ],
)
def test_what_does_not_belong_together_is_refused(model, batch, words):
    with pytest.raises(ConfigError, match=words):
        model.check_batch(batch)


def test_an_encoder_of_another_number_of_tokens_is_refused():
    text = transformer(vocab_size=VOCAB, dim=16, num_layers=1, num_heads=2, hidden_dim=16)
    cfg = multimodal(text, PointEncoder.Config(), num_soft_tokens=3)
    with pytest.raises(ConfigError, match="num_tokens is 3, and the encoder makes 2"):
        cfg.build()


@pytest.mark.parametrize("grid", [(2, 3), None])
def test_positions_on_several_axes_are_made_and_used(grid):
    """Either alone would give soft tokens the positions of a text, without a word."""
    cfg = point_model(VOCAB, grid=(2, 3))
    text = language_model_of(cfg)
    if grid is not None:
        text = replace_config(text, MultimodalRoPE, RoPE.Config())
    made = multimodal(text, cfg.encoder, num_soft_tokens=6, input_name="points", grid=grid)
    with pytest.raises(ConfigError, match="need each other"):
        made.build()


def test_a_decoder_without_a_place_for_soft_tokens_is_refused():
    plain = replace_config(CFG, SoftTokenEmbedding, lambda old: old.embedding)
    with pytest.raises(ConfigError, match="which has no place for soft tokens"):
        evolve(plain).build()
