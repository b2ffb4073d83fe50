"""A reward model: the loss of its formula, and scores that depend on an answer alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state

import axcore as ax
from axcore.config import evolve, update_config
from axcore.errors import ConfigError, ModuleError
from axcore.layers import ScalarHead, packed_rows, whole_rows
from axcore.models import llama2
from axcore.modifiers import LoRA
from axcore.module import DTypes, functional
from axcore.tasks import RewardModel, rewards
from axcore.testing import small_experiment, trainer_on

MODEL = evolve(update_config(llama2("toy"), {"**.num_layers": 1}), head=ScalarHead.Config())
LENGTHS = np.array([[5, 9], [9, 5], [5, 9], [0, 0]])
"""Of the sequences of three pairs, and of a row of padding."""


@pytest.fixture(scope="module")
def state():
    return jax.tree.map(jnp.asarray, numpy_state(MODEL.build().param_specs()))


def batch_of(lengths=LENGTHS, size=9, pad_id=0):
    draw = np.random.default_rng(0)
    tokens = draw.integers(1, 256, (*lengths.shape, 9))
    tokens = np.pad(tokens, ((0, 0), (0, 0), (0, size - 9)))
    mask = np.arange(size) < lengths[..., None]
    found = {
        "tokens": np.where(mask, tokens, pad_id).astype(np.int32),
        "token_mask": mask,
        "row_weights": (lengths[:, 0] > 0).astype(np.float32),
    }
    return jax.tree.map(jnp.asarray, found)


def scores_alone(state, batch):
    """Returns the score of each sequence, each read in a row that it fills."""
    run = jax.jit(lambda row: rewards(MODEL.build(), state, row))
    tokens, lengths = np.asarray(batch["tokens"]), np.asarray(batch["token_mask"]).sum(-1)
    found = np.zeros(lengths.shape)
    for place in np.ndindex(*lengths.shape):
        if lengths[place]:
            row = jnp.asarray(tokens[place][None, : lengths[place]])
            found[place] = run(row)[0]
    return found


def test_the_loss_is_that_of_the_formula(state):
    batch = batch_of()
    task = RewardModel.Config(centering_weight=0.3).build(model=MODEL)
    losses = jax.jit(lambda batch: functional(task, state, batch)[1].losses)(batch)
    r = scores_alone(state, batch)[:3]
    margin = r[:, 0] - r[:, 1]
    wanted = {
        "preference": np.log1p(np.exp(-margin)).sum(),
        "centering": (r.sum(axis=1) ** 2).sum(),
        "reward_margin": margin.sum(),
        "reward_accuracy": (margin > 0).sum(),
        "reward_mean": r.mean(axis=1).sum(),
    }
    assert losses.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(losses[name].sum, value, rtol=1e-4)
        assert float(losses[name].weight) == 3
    assert losses["centering"].scale == pytest.approx(0.3)


def test_padding_changes_no_score(state):
    model = MODEL.build()
    wanted = scores_alone(state, batch_of())
    for batch in (batch_of(), batch_of(size=14, pad_id=5)):
        tokens, mask = (batch[name].reshape(8, -1) for name in ("tokens", "token_mask"))
        found = jax.jit(lambda *rows: rewards(model, state, rows[0], whole_rows(*rows)))(
            tokens, mask
        )
        np.testing.assert_allclose(found[:6], wanted.reshape(-1)[:6], rtol=1e-4, atol=1e-6)


def test_a_packed_answer_has_the_score_that_it_has_alone(state):
    batch = batch_of()
    first, second = np.asarray(batch["tokens"])[0, 0, :5], np.asarray(batch["tokens"])[1, 1, :5]
    packed = {
        "positions": jnp.asarray([[*range(5), *range(5), 0]]),
        "segment_ids": jnp.asarray([[1] * 5 + [2] * 5 + [0]]),
    }
    tokens = jnp.asarray([[*first, *second, 0]])
    model, info = MODEL.build(), packed_rows(packed)
    found, _ = functional(model, state, tokens, info, jnp.asarray([[4, 9]]), method="logits")
    alone = scores_alone(state, batch)
    np.testing.assert_allclose(found[0, :, 0], [alone[0, 0], alone[1, 1]], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(rewards(model, state, tokens, info), alone[1, 1], rtol=1e-4)


def test_computing_in_bfloat16_changes_scores_by_its_rounding_alone(state):
    low = evolve(MODEL, dtypes=DTypes(compute="bfloat16")).build()
    tokens = batch_of()["tokens"][:, 1]
    found = rewards(low, state, tokens)
    assert found.dtype == jnp.float32
    wanted = rewards(MODEL.build(), state, tokens)
    np.testing.assert_allclose(found, wanted, atol=0.03 * float(jnp.abs(wanted).max()))


def test_the_gradient_of_the_head_is_that_of_the_formula(state):
    """That of a linear layer: the loss's slope by a score, times the hidden vector."""
    batch = batch_of()
    task = RewardModel.Config().build(model=MODEL)

    def loss(weight):
        return functional(task, {**state, "head": {"weight": weight}}, batch)[1].total_loss()

    weight = state["head"]["weight"]
    gradient = jax.jit(jax.grad(loss))(weight)
    along = jnp.sign(gradient)
    slope = (loss(weight + 1e-2 * along) - loss(weight - 1e-2 * along)) / 2e-2
    np.testing.assert_allclose(jnp.sum(gradient * along), slope, rtol=1e-2)


def test_pairs_with_targets_are_refused_with_what_to_set(tmp_path):
    cfg = evolve(small_experiment(tmp_path), mesh={"fsdp": 1}, task=RewardModel.Config())
    with pytest.raises(ConfigError, match="RewardModel is trained on row_weights") as caught:
        trainer_on(cfg, 1)
    assert "data.has_targets=false" in caught.value.hint


def test_a_model_of_tokens_is_refused_with_what_to_set():
    from axcore.runs.base_model import reward_model

    cfg = update_config(reward_model(), {"data.source.path": "x", "init_from": None})
    with pytest.raises(ConfigError, match="a UntiedHead") as caught:
        trainer_on(evolve(cfg, mesh={"fsdp": 1}), 1)
    assert caught.value.hint == "--modify scalar_head"


def test_a_model_of_scores_is_not_trained_on_tokens(state):
    batch = {name: jnp.zeros((1, 4), jnp.int32) for name in ("tokens", "targets", "positions")}
    with pytest.raises(ModuleError, match="whose head gives one number"):
        functional(MODEL.build(), state, batch | {"loss_weights": jnp.ones((1, 4))})


def test_adapters_are_trained_with_the_head():
    cfg = LoRA(rank=2).apply(MODEL, None)
    learner = LoRA(rank=2).apply(evolve(ax.experiment("tiny"), model=MODEL), None).learner
    specs = learner.build(total_steps=9).with_frozen(cfg.build().param_specs())
    leaves = jax.tree.leaves(specs, is_leaf=lambda leaf: hasattr(leaf, "state_path"))
    trained = {spec.name for spec in leaves if spec.is_trainable}
    assert "head.weight" in trained
    assert all("lora_" in name for name in trained - {"head.weight"})
