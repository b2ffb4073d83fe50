"""A task around a model: what it keeps, and that the model does not notice it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rounding import assert_same_to_rounding

from axcore.config import config, evolve, update_config
from axcore.errors import ConfigError
from axcore.learner import Learner, WarmupCosine
from axcore.models import llama2
from axcore.modifiers import LoRA, with_changes
from axcore.module import functional
from axcore.plugins import Hardware
from axcore.tasks import DPO, IPO, KTO, ORPO, SimPO, Task
from axcore.testing import trainer_on
from axcore.trainer.callbacks.metrics import LossMeter, described, validation_line
from axcore.trainer.step import TrainStep

MODEL = update_config(llama2("toy"), {"**.num_layers": 1})
LEARNER = Learner.Config(schedule=WarmupCosine.Config(warmup_steps=1))


class Plain(Task):
    """Pre-training, by a task."""

    @config
    class Config(Task.Config):
        """Describes it."""

    def forward(self, batch):
        total, weight = self.model(batch)
        self.add_measure("half", total / 2, weight)


def text_batch():
    draw = np.random.default_rng(0)
    tokens = draw.integers(0, 256, (4, 9)).astype(np.int32)
    places = np.broadcast_to(np.arange(8, dtype=np.int32), (4, 8))
    weights = np.ones((4, 8), np.float32)
    arrays = (tokens[:, :-1], tokens[:, 1:], places, weights)
    names = ("tokens", "targets", "positions", "loss_weights")
    return dict(zip(names, map(jnp.asarray, arrays), strict=True))


def pairs(rows=8):
    draw = np.random.default_rng(0)
    tokens = draw.integers(0, 256, (rows, 2, 9)).astype(np.int32)
    weights = (draw.random((rows, 2, 8)) < 0.6).astype(np.float32)
    weights[..., -1] = 1
    mask, rated = np.ones(weights.shape, bool), np.array([1.0] * (rows - 1) + [0.0])
    arrays = (tokens[..., :-1], tokens[..., 1:], mask, weights, rated)
    names = ("tokens", "targets", "token_mask", "loss_weights", "row_weights")
    found = dict(zip(names, map(jnp.asarray, arrays), strict=True))
    return found | {"row_weights": found["row_weights"].astype(jnp.float32)}


def test_a_model_in_a_task_is_the_model_alone():
    alone, inside = MODEL.build(), Plain.Config().build(model=MODEL)
    state = alone.init(0)
    jax.tree.map(np.testing.assert_array_equal, state, inside.init(0))
    (_, ours), (_, theirs) = (functional(one, state, text_batch()) for one in (inside, alone))
    assert ours.losses.keys() == {*theirs.losses, "half"}
    assert_same_to_rounding(ours.total_loss(), theirs.total_loss())


def dropped_loss(module, state):
    return functional(module, state, text_batch(), rng=3, training=True)[1].total_loss()


@pytest.mark.slow
def test_random_numbers_in_a_task_are_those_of_the_model_alone():
    dropping = update_config(MODEL, {"decoder.dropout.rate": 0.5})
    state = MODEL.build().init(0)
    losses = [
        jax.jit(lambda state, one=one: dropped_loss(one, state))(state)
        for one in (dropping.build(), Plain.Config().build(model=dropping))
    ]
    assert_same_to_rounding(*losses)


@pytest.mark.slow
def test_a_measure_is_reported_and_not_minimised():
    task = Plain.Config().build(model=MODEL)
    state = task.init(0)

    def total(scale):
        def loss(state):
            _, outputs = functional(task, state, text_batch())
            outputs.losses["half"] = jax.tree.map(lambda x: x * scale, outputs.losses["half"])
            return outputs.total_loss(), outputs.losses

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(state)

    (loss, losses), gradient = total(jnp.nan)
    assert np.isfinite(loss)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    meter = LossMeter()
    (loss, losses), _ = total(1.0)
    meter.add(jax.device_get(losses))
    assert meter.metrics() == {"loss": pytest.approx(loss), "half": pytest.approx(loss / 2)}


def test_the_frozen_copy_shares_what_is_not_trained():
    cfg = LoRA(rank=2).apply(small(), Hardware.parse("cpu-1"))
    learner = evolve(LEARNER, trainable=cfg.learner.trainable).build(total_steps=9)
    kept = TrainStep(DPO.Config().build(model=cfg.model), learner).specs["reference"]
    names = {spec.name for spec in jax.tree.leaves(kept, is_leaf=is_spec)}
    of_model = jax.tree.leaves(cfg.model.build().param_specs(), is_leaf=is_spec)
    assert names == {f"reference.{spec.name}" for spec in of_model if "lora_" in spec.name}


def is_spec(leaf):
    return hasattr(leaf, "state_path")


def small(tmp=None):
    import axcore as ax

    return evolve(ax.experiment("tiny"), model=MODEL)


@pytest.mark.slow
def test_the_frozen_copy_is_the_first_state_and_stays_it():
    step = TrainStep(DPO.Config(beta=1.0).build(model=MODEL), LEARNER.build(total_steps=9))
    first = jax.jit(step.init)()
    jax.tree.map(
        np.testing.assert_array_equal, first.model["reference"], step.own_part(first.model)
    )
    state, margins = first, []
    train = jax.jit(step)
    for _ in range(3):
        state, metrics = train(state, pairs())
        margins.append(float(metrics.losses["reward_margin"].sum))
    jax.tree.map(np.testing.assert_array_equal, state.model["reference"], first.model["reference"])
    assert margins[0] == 0.0 < margins[1] < margins[2]
    wanted = jax.eval_shape(step.init)
    assert jax.tree.structure(wanted) == jax.tree.structure(step.abstract_state())


@pytest.mark.slow
def test_micro_batches_are_one_batch():
    after = []
    for count in (1, 4):
        task = DPO.Config().build(model=MODEL)
        step = TrainStep(task, LEARNER.build(total_steps=9), num_micro_batches=count)
        state = jax.jit(step.init)()
        for _ in range(2):
            state, metrics = jax.jit(step)(state, pairs())
        after.append((step.own_part(state.model), metrics.losses))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), *after)


def test_batches_of_another_kind_are_refused():
    import axcore as ax

    cfg = evolve(ax.experiment("tiny"), mesh={"fsdp": 1}, task=DPO.Config())
    with pytest.raises(
        ConfigError, match=r"DPO is trained on loss_weights, row_weights, targets, token_mask"
    ):
        trainer_on(cfg, 1)


def test_a_task_is_asked_for_by_name():
    cfg = with_changes(small(), ["dpo(beta=0.25)"])
    assert cfg.task == DPO.Config(beta=0.25)


PAIRS = {"loss": 0.69, "reward_margin": 0.5, "reward_accuracy": 0.75}


@pytest.mark.parametrize("task", [DPO, IPO, SimPO])
def test_objectives_on_pairs_have_no_perplexity(task):
    units = task.Config().build(model=llama2("toy")).metric_units()
    shown = ["loss 0.6900 a pair", "reward_margin 0.5000", "reward_accuracy 0.7500 of pairs"]
    assert described(PAIRS, units) == shown
    assert validation_line(PAIRS, units) == "validation " + "  ".join(shown)


def test_kto_is_a_loss_of_answers():
    units = KTO.Config().build(model=llama2("toy")).metric_units()
    assert described({"loss": 0.5, "reward_good": 0.1}, units) == [
        "loss 0.5000 an answer",
        "reward_good 0.1000",
    ]


def test_orpo_has_the_perplexity_of_its_cross_entropy_alone():
    units = ORPO.Config().build(model=llama2("toy")).metric_units()
    metrics = {**PAIRS, "loss": 2.1, "loss/cross_entropy": 2.0, "loss/preference": 0.1}
    assert described(metrics, units)[:2] == [
        "loss 2.1000 a pair",
        "loss/cross_entropy 2.0000 nats a token, perplexity 7.389",
    ]


def test_a_language_model_has_a_perplexity_and_a_total_with_other_losses_has_none():
    units = llama2("toy").build().metric_units()
    assert described({"loss": 2.0}, units) == ["loss 2.0000 nats a token, perplexity 7.389"]
    balanced = {"loss": 2.5, "loss/cross_entropy": 2.0, "loss/router.z": 0.5}
    assert validation_line(balanced, units) == "validation loss 2.5000 nats a token"
    assert described(balanced, units)[1].endswith("perplexity 7.389")


def test_metrics_of_a_module_that_says_nothing_have_no_unit():
    assert described({"accuracy": 0.91, "loss": 0.3}, {}) == ["loss 0.3000", "accuracy 0.9100"]
