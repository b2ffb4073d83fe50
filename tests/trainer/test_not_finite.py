"""A loss or gradient that is not finite changes nothing but the count of skipped steps."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from axcore.config import evolve, update_config
from axcore.errors import TrainingError
from axcore.modifiers import LowPrecisionOptimizer, apply_modifier
from axcore.plugins import Hardware

FINE, INFINITE_LOSS, NAN_GRADIENT = 3, 1, 2


@pytest.fixture(scope="module")
def poisoned(toy, toy_config, one_device):
    """A trainer whose loss is infinite, or has a gradient of nan, where the first token says so."""
    return one_device(evolve(toy_config, model=toy.Config(poison="marked", dropout=0.0)))


@pytest.fixture(scope="module")
def step(poisoned):
    """Runs one step; keeps the state that it is given."""
    program = poisoned.compiler.compiled_step
    batch = next(poisoned.data.train())

    def run(state, first_token):
        tokens = batch["tokens"].copy()
        tokens[0, 0] = first_token
        kept = jax.tree.map(np.array, state)
        return kept, *program(
            state, poisoned.batch_sharding.device_put({**batch, "tokens": tokens})
        )

    return run


@pytest.mark.parametrize("kind", [INFINITE_LOSS, NAN_GRADIENT])
def test_a_step_that_is_not_finite_keeps_parameters_statistics_and_optimizer(
    poisoned, step, same_bits, kind
):
    _, state, _ = step(poisoned.compiler.jitted_init(), FINE)
    before, after, metrics = step(state, kind)
    assert not metrics.is_finite
    assert np.isfinite(metrics.losses["poison"].sum) == (kind == NAN_GRADIENT)
    assert not np.isfinite(metrics.gradient_norm) or kind == INFINITE_LOSS
    assert same_bits((before.model, before.opt_state), (after.model, after.opt_state))
    assert (int(after.step), int(after.skipped)) == (2, 1)


def test_training_goes_on_after_a_skipped_step(poisoned, step, same_bits):
    _, state, _ = step(poisoned.compiler.jitted_init(), FINE)
    _, state, _ = step(state, NAN_GRADIENT)
    before, state, metrics = step(state, FINE)
    assert metrics.is_finite
    assert int(state.skipped) == 1
    assert not same_bits(before.model, state.model)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.model))


@pytest.fixture(scope="module")
def often(toy, toy_config, one_device, tmp_path_factory):
    """A finished run, and its lines of training, in which three steps in ten are infinite."""
    directory = tmp_path_factory.mktemp("often")
    trainer = one_device(evolve(toy_config, model=toy.Config(poison="often"), eval_every_steps=99))
    result = trainer.run(directory)
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return trainer, result, [line for line in map(json.loads, lines) if line["split"] == "train"]


@pytest.mark.slow
def test_skipped_steps_are_counted_as_they_happen(often):
    _, result, lines = often
    is_bad = [line["loss"] == "inf" for line in lines]
    assert 0 < sum(is_bad) < 12
    assert [line["skipped_steps"] for line in lines] == list(np.cumsum(is_bad))
    assert (result.is_complete, int(result.state.skipped)) == (True, sum(is_bad))


def test_a_skipped_step_does_not_move_the_schedule_on(often):
    trainer, _, lines = often
    updates = [line["step"] - line["skipped_steps"] for line in lines]
    expected = [float(trainer.learner.schedule(max(0, count - 1))) for count in updates]
    assert [line["learning_rate"] for line in lines] == pytest.approx(expected, rel=1e-6)
    assert int(optax.tree.get(often[1].state.opt_state, "count", filtering=is_adam)) == updates[-1]


def is_adam(path, _):
    return "ScaleByAdamState" in str(path)


def test_an_update_that_would_make_parameters_infinite_changes_nothing(
    toy_config, one_device, same_bits
):
    too_high = evolve(toy_config.learner.schedule, peak=3e38, warmup_steps=0)
    optimizer = evolve(toy_config.learner.optimizer, weight_decay=10.0)
    learner = evolve(toy_config.learner, schedule=too_high, optimizer=optimizer)
    trainer = one_device(evolve(toy_config, learner=learner))
    state = trainer.compiler.jitted_init()
    before = jax.tree.map(np.array, state)
    batch = trainer.batch_sharding.device_put(next(trainer.data.train()))
    after, metrics = trainer.compiler.compiled_step(state, batch)
    assert all(np.isfinite(x) for x in (metrics.gradient_norm, metrics.losses["size"].sum))
    assert (bool(metrics.is_finite), bool(metrics.is_applied)) == (False, False)
    assert same_bits((before.model, before.opt_state), (after.model, after.opt_state))


@pytest.mark.slow
def test_too_many_skipped_steps_stop_the_run_and_name_the_step(
    toy, toy_config, one_device, tmp_path
):
    late = update_config(
        toy_config, {"model": toy.Config(poison="late"), "rollback.max_skipped_steps": 2}
    )
    with pytest.raises(TrainingError) as error:
        one_device(late).run(tmp_path)
    assert str(error.value).startswith(
        "3 of the last 8 steps had a loss, gradient or update that is not finite, "
        "which is more than rollback.max_skipped_steps=2"
    )
    assert error.value.where == "step 8"
    assert "lower learner.schedule.peak" in error.value.hint
    assert (tmp_path / "checkpoints/step_00000004").is_dir()


@pytest.mark.slow
def test_a_run_resumed_with_stored_state_is_the_run_that_was_never_stopped(
    toy_config, one_device, same_bits, tmp_path
):
    hardware = Hardware.parse("cpu-1")
    cfg = apply_modifier(toy_config, LowPrecisionOptimizer(), hardware, where="here")
    cfg = update_config(
        cfg,
        {
            "model.dim": 16,
            "learner.optimizer.min_size": 1,
            "model.dtypes.param": "bfloat16",
        },
    )
    trainer = one_device(cfg)
    whole = trainer.run(tmp_path)
    resumed = trainer.run(tmp_path, from_step=4)
    assert same_bits(resumed.state, whole.state)
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(resumed.state.opt_state.values)}
    assert jnp.dtype(jnp.uint8) in dtypes
    assert resumed.state.model["table"].dtype == jnp.bfloat16
