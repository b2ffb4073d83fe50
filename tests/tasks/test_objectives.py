"""Each objective's loss and gradient are those of its formula, written again in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import preference_formulas as formulas
import pytest
from numpy_state import numpy_state

from axcore.config import update_config
from axcore.layers import whole_rows
from axcore.models import llama2
from axcore.modifiers import LoRA
from axcore.module import functional
from axcore.tasks import DPO, IPO, KTO, ORPO, PreferenceTask, SimPO

MODEL = llama2("toy")
ROWS, LENGTH = 4, 10
TASKS = {
    "dpo": DPO.Config(beta=0.3, label_smoothing=0.2),
    "ipo": IPO.Config(beta=0.3),
    "simpo": SimPO.Config(beta=2.5, gamma=0.4),
    "orpo": ORPO.Config(beta=0.7),
    "kto": KTO.Config(beta=0.3, good_weight=1.5, bad_weight=0.5),
}


def batch_of(has_labels):
    """Returns three rows of answers of several lengths, and one of padding."""
    draw = np.random.default_rng(0)
    tokens = draw.integers(0, 256, (ROWS, 2, LENGTH + 1)).astype(np.int32)
    begins, ends = draw.integers(1, 4, (ROWS, 2, 1)), draw.integers(6, LENGTH, (ROWS, 2, 1))
    places = np.arange(LENGTH)
    counts = ((places >= begins) & (places < ends)).astype(np.float32)
    counts[-1] = 0
    found = {
        "tokens": tokens[..., :-1],
        "targets": tokens[..., 1:],
        "token_mask": np.ones(tokens[..., 1:].shape, bool),
        "loss_weights": counts,
        "row_weights": np.array([1, 1, 1, 0], np.float32),
    }
    found |= {"is_good": np.array([1, 0, 1, 0], np.float32)} if has_labels else {}
    return jax.tree.map(jnp.asarray, found)


@pytest.fixture(scope="module")
def states():
    """The parameters now, and those before training."""
    now = jax.tree.map(jnp.asarray, numpy_state(MODEL.build().param_specs()))
    draw = np.random.default_rng(1)
    move = lambda leaf: leaf * jnp.asarray(draw.uniform(0.6, 1.4, leaf.shape), leaf.dtype)  # noqa: E731
    return now, jax.tree.map(move, now)


def log_probs(params, batch):
    """Returns the log-probabilities of answers, from the full logits."""
    flat = {name: batch[name].reshape(-1, LENGTH) for name in ("tokens", "targets")}
    logits, _ = functional(MODEL.build(), params, flat["tokens"], method="logits")
    every = jax.nn.log_softmax(logits, axis=-1)
    chosen = jnp.take_along_axis(every, flat["targets"][..., None], axis=-1)[..., 0]
    return (chosen.reshape(ROWS, 2, LENGTH) * batch["loss_weights"]).sum(axis=-1)


def expected(name, policy, reference, batch):
    """Returns the loss by its formula, as a function of the policy's log-probabilities."""
    batch = jax.device_get(batch)
    real = batch["row_weights"] > 0
    num_tokens = batch["loss_weights"].sum(axis=-1)[real]
    is_good = batch.get("is_good", batch["row_weights"])[real] > 0
    frozen = {"z": formulas.kto_divergence(policy[real], reference[real])} if name == "kto" else {}

    def loss(policy):
        rows = getattr(formulas, name)(policy[real], reference[real], num_tokens, is_good, **frozen)
        more = formulas.orpo_cross_entropy(policy[real], num_tokens) if name == "orpo" else 0.0
        return rows.mean() + more

    return loss


def slopes(loss, at):
    """Returns the gradient of a numpy function by central differences."""
    found = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[place] = 1e-5
        found[place] = (loss(at + step) - loss(at - step)) / 2e-5
    return found


@pytest.mark.quick_one_in(5)
@pytest.mark.parametrize("name", TASKS)
def test_loss_and_gradient_are_those_of_the_formula(name, states):
    now, before = states
    batch = batch_of(has_labels=name == "kto")
    task = TASKS[name].build(model=MODEL)
    kept = {"reference": before} if task.has_reference else {}

    def total(params):
        _, outputs = functional(task, {**params, **kept}, batch)
        return outputs.total_loss()

    found, gradient = jax.jit(jax.value_and_grad(total))(now)
    policy, pull = jax.vjp(lambda params: log_probs(params, batch), now)
    reference = np.asarray(log_probs(before, batch), np.float64)
    loss = expected(name, np.asarray(policy, np.float64), reference, batch)
    at = np.asarray(policy, np.float64)
    np.testing.assert_allclose(found, loss(at), rtol=2e-5)
    (wanted,) = pull(jnp.asarray(slopes(loss, at), jnp.float32))
    for ours, theirs in zip(jax.tree.leaves(gradient), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5 * float(jnp.abs(theirs).max()) + 1e-7)


@pytest.mark.quick_one_in(5)
@pytest.mark.parametrize("name", TASKS)
def test_a_row_of_padding_changes_nothing(name, states):
    batch = batch_of(has_labels=name == "kto")
    task = TASKS[name].build(model=MODEL)
    kept = {"reference": states[1]} if task.has_reference else {}
    run = jax.jit(lambda batch: functional(task, {**states[0], **kept}, batch)[1].losses)
    padded = run(batch)
    short = run({key: array[:-1] for key, array in batch.items()})
    for loss in padded:
        np.testing.assert_allclose(padded[loss].sum, short[loss].sum, rtol=1e-4)
        assert float(padded[loss].weight) == float(short[loss].weight)


def test_the_first_loss_is_that_of_no_preference(states):
    state = {**states[0], "reference": states[0]}
    _, outputs = functional(DPO.Config().build(model=MODEL), state, batch_of(has_labels=False))
    assert float(outputs.total_loss()) == pytest.approx(np.log(2))
    assert float(outputs.losses["reward_margin"].sum) == 0.0


@pytest.mark.quick_one_in(3)
@pytest.mark.every_case
@pytest.mark.parametrize("name", ["dpo", "ipo", "kto"])
def test_dropout_leaves_the_first_loss_that_of_no_preference(name):
    dropping = LoRA(rank=2, dropout=0.5).apply(
        update_config(MODEL, {"**.num_layers": 1, "decoder.dropout.rate": 0.5}), None
    )
    batch = batch_of(has_labels=name == "kto")
    losses = []
    for model in (dropping, update_config(dropping, {"**.dropout.rate": 0.0})):
        task = TASKS[name].build(model=model)
        state = jax.tree.map(jnp.asarray, numpy_state(model.build().param_specs()))
        state |= task.kept_state(state, task.param_specs())
        run = jax.jit(
            lambda task, state: functional(task, state, batch, rng=3, training=True)[1],
            static_argnums=0,
        )
        losses.append(float(run(task, state).losses["preference"].contribution()))
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


@pytest.mark.slow
def test_logits_in_parts_give_the_same_log_probabilities(states, monkeypatch):
    batch = batch_of(has_labels=False)
    flat = [batch[name].reshape(-1, LENGTH) for name in ("tokens", "targets")]
    model = MODEL.build()
    flat.append(whole_rows(flat[0]))
    whole, _ = functional(model, states[0], *flat, method="log_probs")
    monkeypatch.setattr("axcore.models.causal_lm.LOGITS_AT_ONCE", 4)
    parts, _ = functional(model, states[0], *flat, method="log_probs")
    np.testing.assert_allclose(whole, parts, rtol=1e-6)


def test_every_objective_of_the_core_is_tried_here():
    from axcore.plugins import TrainingTask, plugin_host

    records = [one for one in plugin_host().records(TrainingTask) if one.plugin == "core"]
    found = {one.name for one in records if issubclass(one.config.resolve(), PreferenceTask.Config)}
    assert found == set(TASKS)
