"""Distillation: divergences are those of formulas, and a student learns what its teacher says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state

from axcore.config import evolve, update_config
from axcore.errors import ConfigError
from axcore.interop import HuggingFace
from axcore.models import llama2
from axcore.module import functional
from axcore.tasks import Distill, DistillTopK, FrozenModel, divergence, kl_divergence
from axcore.testing import small_experiment, trainer_on

STUDENT = update_config(llama2("toy"), {"**.num_layers": 1})
TEACHER = update_config(STUDENT, {"dim": 48, "**.hidden_dim": 40})
LENGTH = 8


def frozen(model):
    return FrozenModel.Config(model=model, init_from=HuggingFace.Config(path="none"))


def state_of(cfg):
    return jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))


@pytest.fixture(scope="module")
def state():
    return {**state_of(STUDENT), "teacher": state_of(TEACHER)}


def distributions(shape=(3, 7)):
    draw = np.random.default_rng(0)
    found = draw.dirichlet(np.full(shape[-1], 0.5), (2, *shape[:-1]))
    return found[0], found[1]


def formula(student, teacher, beta):
    """The divergence in numpy, of probabilities."""
    kl = lambda p, q: np.sum(p * np.log(p / q), axis=-1)  # noqa: E731
    if beta in (0, 1):
        return kl(student, teacher) if beta else kl(teacher, student)
    mixture = beta * teacher + (1 - beta) * student
    return beta * kl(teacher, mixture) + (1 - beta) * kl(student, mixture)


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0])
def test_a_divergence_is_that_of_the_formula(beta):
    student, teacher = distributions()
    found = divergence(jnp.log(student), jnp.log(teacher), beta)
    np.testing.assert_allclose(found, formula(student, teacher, beta), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_a_token_that_the_teacher_excludes_adds_nothing_that_is_not_finite(beta):
    student, teacher = (jnp.log(one) for one in distributions((7,)))
    teacher = jax.nn.log_softmax(teacher.at[2].set(-jnp.inf))
    value, gradient = jax.value_and_grad(divergence)(student, teacher, beta)
    assert jnp.isfinite(value)
    assert jnp.isfinite(gradient).all()
    probabilities = np.exp(np.asarray(teacher, np.float64)), np.exp(np.asarray(student, np.float64))
    keep = np.arange(7) != 2
    if not beta:
        wanted = np.sum((p := probabilities[0][keep]) * np.log(p / probabilities[1][keep]))
        np.testing.assert_allclose(value, wanted, rtol=1e-4)


def test_a_distribution_is_no_divergence_from_itself():
    student = jnp.log(distributions()[0])
    np.testing.assert_allclose(kl_divergence(student, student), 0, atol=1e-6)


def batch_of(draw=None):
    draw = draw or np.random.default_rng(0)
    tokens = draw.integers(0, 256, (2, LENGTH + 1)).astype(np.int32)
    weights = np.array([[0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 2, 1, 0, 0, 0]], np.float32)
    places = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (2, LENGTH))
    found = {
        "tokens": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "positions": places,
        "loss_weights": weights,
    }
    return jax.tree.map(jnp.asarray, found)


def losses_of(task, state, batch):
    return jax.jit(lambda batch: functional(task, state, batch, training=True)[1].losses)(batch)


@pytest.mark.parametrize("at_once", [512, 3])
def test_the_loss_is_that_of_the_formula_however_many_places_at_once(state, at_once, monkeypatch):
    monkeypatch.setattr("axcore.tasks.distillation.LOGITS_AT_ONCE", at_once)
    cfg = Distill.Config(
        teacher=frozen(TEACHER), beta=0.3, temperature=2.0, cross_entropy_weight=0.25
    )
    batch = batch_of()
    losses = losses_of(cfg.build(model=STUDENT), state, batch)
    own = {name: one for name, one in state.items() if name != "teacher"}
    logits = [
        functional(cfg.build(), weights, batch["tokens"], method="logits")[0]
        for cfg, weights in ((STUDENT, own), (TEACHER, state["teacher"]))
    ]
    cool = [np.asarray(jax.nn.softmax(one / 2.0), np.float64) for one in logits]
    weights = np.asarray(batch["loss_weights"])
    wanted = np.sum(formula(*cool, 0.3) * weights)
    np.testing.assert_allclose(losses["divergence"].sum, wanted, rtol=1e-4)
    every = jax.nn.log_softmax(logits[0])
    right = jnp.take_along_axis(every, batch["targets"][..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(losses["cross_entropy"].sum, -np.sum(right * weights), rtol=1e-4)
    assert [losses[name].scale for name in ("divergence", "cross_entropy")] == [0.75, 0.25]
    assert {float(one.weight) for one in losses.values()} == {float(weights.sum())}


def test_a_student_that_is_the_teacher_has_nothing_to_learn():
    task = Distill.Config(teacher=frozen(STUDENT), beta=0.5).build(model=STUDENT)
    own = state_of(STUDENT)

    def total(own):
        return functional(task, {**own, "teacher": state_of(STUDENT)}, batch_of())[1].total_loss()

    loss, gradient = jax.jit(jax.value_and_grad(total))(own)
    assert abs(float(loss)) < 1e-6
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient)) < 1e-6


def test_documents_in_one_row_are_taught_as_in_rows_of_their_own(state):
    task = Distill.Config(teacher=frozen(TEACHER)).build(model=STUDENT)
    apart = batch_of()
    packed = {name: one.reshape(1, -1) for name, one in apart.items()}
    packed["segment_ids"] = jnp.repeat(jnp.asarray([[1, 2]], jnp.int32), LENGTH, axis=1)
    found = [losses_of(task, state, batch)["divergence"].sum for batch in (apart, packed)]
    np.testing.assert_allclose(*found, rtol=1e-4)


def test_a_teacher_with_another_vocabulary_is_refused(tmp_path):
    task = Distill.Config(teacher=frozen(update_config(TEACHER, {"vocab_size": 300})))
    cfg = evolve(small_experiment(tmp_path), mesh={"fsdp": 1}, task=task)
    with pytest.raises(ConfigError, match="the student has 264 tokens and the teacher 300") as at:
        trainer_on(cfg, 1)
    assert "--set model.vocab_size=300" in at.value.hint


def test_the_cross_entropy_alone_has_a_perplexity():
    units = Distill.Config(teacher=frozen(TEACHER)).build(model=STUDENT).metric_units()
    assert units["loss"] == "nats of divergence a token"
    assert units["cross_entropy"] == "nats a token"


def likeliest(state, batch, top_k):
    """The batch with a teacher's likeliest tokens."""
    logits, _ = functional(TEACHER.build(), state["teacher"], batch["tokens"], method="logits")
    log_probs, tokens = jax.lax.top_k(jax.nn.log_softmax(logits), top_k)
    return {**batch, "teacher_tokens": tokens, "teacher_log_probs": log_probs}


def own(state):
    return {name: one for name, one in state.items() if name != "teacher"}


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_all_tokens_of_a_cache_teach_what_the_teacher_itself_does(state, beta):
    live = Distill.Config(teacher=frozen(TEACHER), beta=beta).build(model=STUDENT)
    cached = DistillTopK.Config(beta=beta).build(model=STUDENT)
    found = losses_of(cached, own(state), likeliest(state, batch_of(), 264))
    wanted = losses_of(live, state, batch_of())
    np.testing.assert_allclose(found["divergence"].sum, wanted["divergence"].sum, rtol=1e-4)


def test_a_cache_of_few_tokens_has_one_more_outcome_for_all_others(state):
    batch = likeliest(state, batch_of(), 5)
    task = DistillTopK.Config().build(model=STUDENT)
    loss, gradient = jax.jit(
        jax.value_and_grad(lambda own: functional(task, own, batch)[1].total_loss())
    )(own(state))
    logits, _ = functional(STUDENT.build(), own(state), batch["tokens"], method="logits")
    student = np.asarray(jax.nn.softmax(logits), np.float64)
    student = np.take_along_axis(student, np.asarray(batch["teacher_tokens"]), axis=-1)
    teacher = np.exp(np.asarray(batch["teacher_log_probs"], np.float64))
    whole = [np.append(one, 1 - one.sum(-1, keepdims=True), -1) for one in (student, teacher)]
    weights = np.asarray(batch["loss_weights"])
    wanted = np.sum(formula(*whole, 0.0) * weights) / weights.sum()
    np.testing.assert_allclose(loss, wanted, rtol=1e-3)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_a_batch_without_the_teachers_tokens_is_refused(tmp_path):
    cfg = evolve(small_experiment(tmp_path), mesh={"fsdp": 1}, task=DistillTopK.Config())
    with pytest.raises(ConfigError, match="learns from teacher_tokens") as caught:
        trainer_on(cfg, 1)
    assert "axcore data teach" in caught.value.hint
