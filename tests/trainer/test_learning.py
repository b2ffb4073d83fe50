"""Groups, averages and the guard against spikes, in full runs: resumed, sharded, evaluated."""

import signal

import jax
import numpy as np
import pytest

from axcore.config import evolve, replace_config, update_config
from axcore.errors import TrainingError
from axcore.layers import Pipeline, ScannedLayers
from axcore.learner import (
    EMA,
    SGD,
    SOAP,
    Adafactor,
    AdamW,
    Learner,
    LearnerState,
    Lion,
    Muon,
    ParamGroup,
    ScheduleFreeAdamW,
    SpikeGuard,
    WarmupCosine,
    WarmupStableDecay,
)
from axcore.modifiers import Int8Training
from axcore.plugins import Hardware
from axcore.runs import Run
from axcore.runs.run_weights import RunArrays
from axcore.testing import trainer_on
from axcore.trainer import StepsDone

SCHEDULE = WarmupCosine.Config(peak=0.02, warmup_steps=4)

MATRICES = ParamGroup(name="matrices", params=("**",), matrices_only=True, optimizer=Muon.Config())

LEARNERS = {
    "adafactor": Learner.Config(optimizer=Adafactor.Config(min_dim_to_factor=8)),
    "lion": Learner.Config(optimizer=Lion.Config()),
    "soap": Learner.Config(optimizer=SOAP.Config(frequency=3)),
    "schedule-free": Learner.Config(optimizer=ScheduleFreeAdamW.Config()),
    "sgd": Learner.Config(optimizer=SGD.Config(momentum=0.9)),
    "muon and adamw": Learner.Config(
        groups=(MATRICES,),
        ema=EMA.Config(decay=0.9),
        skip_spikes=SpikeGuard.Config(sigmas=9.0, window=4),
    ),
    "wsd and a frozen group": Learner.Config(
        schedule=WarmupStableDecay.Config(peak=0.02, warmup_steps=4, decay_fraction=0.25),
        groups=(ParamGroup(name="biases", params=("bias",), is_frozen=True),),
    ),
}


def stop_at(step):
    def observer(event):
        if isinstance(event, StepsDone) and event.step == step:
            signal.raise_signal(signal.SIGINT)

    return observer


@pytest.mark.parametrize(
    "name",
    [
        one if one.startswith("sgd") else pytest.param(one, marks=pytest.mark.long)
        for one in LEARNERS
    ],
)
@pytest.mark.slow
def test_a_run_that_was_stopped_ends_with_the_same_bits(
    toy_config, one_device, same_bits, tmp_path, name
):
    learner = LEARNERS[name]
    if name != "wsd and a frozen group":
        learner = evolve(learner, schedule=SCHEDULE)
    trainer = one_device(evolve(toy_config, learner=learner))
    whole = trainer.run(tmp_path / "whole")
    trainer.run(tmp_path / "run", [stop_at(6)], returns_when_stopped=True)
    resumed = trainer.run(tmp_path / "run")
    assert same_bits(resumed.state, whole.state)
    assert resumed.validation == whole.validation
    first = trainer.compiler.jitted_init()
    is_moved = jax.tree.map(lambda a, b: bool((a != b).any()), first.model, whole.state.model)
    assert is_moved["table"]
    assert is_moved["bias"] == (name != "wsd and a frozen group")


@pytest.fixture(scope="module")
def guarded(toy, toy_config, one_device):
    """The toy without dropout, with an average and a guard over three steps."""
    learner = evolve(
        toy_config.learner,
        ema=EMA.Config(decay=0.5),
        skip_spikes=SpikeGuard.Config(sigmas=4.0, window=3),
    )
    return one_device(evolve(toy_config, model=toy.Config(dropout=0.0), learner=learner))


@pytest.fixture(scope="module")
def batches(guarded):
    """A batch, and the same with targets that nothing was learned about."""
    batch = next(guarded.data.train())
    wrong = {**batch, "targets": (batch["targets"] + 100) % 256}
    return guarded.batch_sharding.device_put(batch), guarded.batch_sharding.device_put(wrong)


def test_a_spike_changes_nothing_and_training_goes_on(guarded, batches, same_bits):
    program, (batch, wrong) = guarded.compiler.compiled_step, batches
    state, losses = guarded.compiler.jitted_init(), []
    for _ in range(8):
        state, metrics = program(state, batch)
        losses.append(float(metrics.losses["cross_entropy"].sum))
    assert int(state.skipped) == 0
    before = jax.tree.map(np.array, state)
    state, metrics = program(state, wrong)
    assert float(metrics.losses["cross_entropy"].sum) > losses[-1] * 1.05
    assert metrics.is_finite
    assert same_bits((before.model, before.opt_state), (state.model, state.opt_state))
    assert (int(state.step), int(state.skipped)) == (9, 1)
    before = jax.tree.map(np.array, state)
    state, _ = program(state, batch)
    assert int(state.skipped) == 1
    assert not same_bits(before.model, state.model)


def test_without_a_guard_such_a_step_is_taken(toy_config, one_device, toy, guarded, batches):
    learner = evolve(guarded.config.learner, skip_spikes=SpikeGuard.Config())
    trainer = one_device(evolve(guarded.config, learner=learner))
    program, state = trainer.compiler.compiled_step, trainer.compiler.jitted_init()
    for batch in (*[batches[0]] * 8, batches[1]):
        state, _ = program(state, batch)
    assert int(state.skipped) == 0


@pytest.mark.slow
def test_too_many_spikes_stop_the_run_and_are_named(toy_config, one_device, tmp_path):
    guard = SpikeGuard.Config(sigmas=1e-3, window=2)
    too_high = WarmupCosine.Config(peak=30.0, warmup_steps=0)
    learner = evolve(toy_config.learner, schedule=too_high, skip_spikes=guard)
    trainer = one_device(
        update_config(toy_config, {"learner": learner, "rollback.max_skipped_steps": 0})
    )
    with pytest.raises(TrainingError, match="not finite, or a spike of the loss, which is more"):
        trainer.run(tmp_path)


def test_the_average_is_its_formula_over_the_steps(guarded, batches):
    program, state = guarded.compiler.compiled_step, guarded.compiler.jitted_init()
    expected = np.array(state.model["table"])
    for _ in range(4):
        state, _ = program(state, batches[0])
        expected = 0.5 * expected + 0.5 * np.array(state.model["table"])
    np.testing.assert_allclose(state.opt_state.average["table"], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_evaluation_uses_the_average(guarded, same_bits, tmp_path):
    result = guarded.run(tmp_path / "run")
    average = guarded.step.evaluated_model(result.state)
    assert not same_bits(average["table"], result.state.model["table"])
    assert same_bits(average["table"], result.state.opt_state.average["table"])
    assert same_bits(average["mean"], result.state.model["mean"])  # a buffer is not a parameter
    assert result.validation == guarded.evaluate(average)
    assert result.validation != guarded.evaluate(result.state.model)


@pytest.mark.slow
def test_the_average_of_an_optimizer_is_what_others_read(
    small_config, one_device, same_bits, tmp_path
):
    free = ScheduleFreeAdamW.Config()
    # A batch that divides over all devices of tests, which `Run` uses.
    cfg = update_config(small_config, {"learner.optimizer": free, "data.batch_size": 16})
    trainer = one_device(cfg)
    result = trainer.run(tmp_path / "run")
    average = trainer.step.evaluated_model(result.state)
    assert not same_bits(of_up(average), of_up(result.state.model))
    assert result.validation == trainer.evaluate(average)
    run = Run(tmp_path / "run")
    assert same_bits(run.restored(on_host=True).state, average)
    saved = RunArrays.of(run, None).saved
    assert all(place == f"opt_state.average.{name}" for name, place in saved.items())


def test_an_average_that_is_only_saved_is_not_evaluated(guarded, one_device, same_bits):
    ema = EMA.Config(decay=0.5, is_evaluated=False)
    trainer = one_device(evolve(guarded.config, learner=evolve(guarded.config.learner, ema=ema)))
    state = trainer.compiler.jitted_init()
    assert isinstance(state.opt_state, LearnerState)
    assert trainer.step.evaluated_model(state) is not None
    assert same_bits(trainer.step.evaluated_model(state), state.model)


MIXED = Learner.Config(
    optimizer=Adafactor.Config(min_dim_to_factor=8),
    schedule=WarmupCosine.Config(peak=1e-3, warmup_steps=1),
    groups=(
        ParamGroup(
            name="hidden",
            params=("decoder.stack.**",),
            matrices_only=True,
            optimizer=Muon.Config(),
        ),
        ParamGroup(name="norms", params=("**.norm.**",), optimizer=AdamW.Config(epsilon=1e-3)),
    ),
    ema=EMA.Config(decay=0.5),
    skip_spikes=SpikeGuard.Config(sigmas=9.0, window=2),
)


def test_moments_and_averages_are_sharded_as_their_parameters(small_config):
    cfg = evolve(small_config, learner=MIXED, mesh={"fsdp": 4, "model": 2})
    shardings = trainer_on(cfg, 8).compiler.shardings()
    weight = shardings.model["decoder"]["stack"]["layer"]["feed_forward"]["up"]["weight"]
    held = [
        sharding
        for path, sharding in jax.tree.leaves_with_path(shardings.opt_state)
        if "up" in jax.tree_util.keystr(path)
    ]
    assert held == [weight] * 2  # Muon's momentum, and the average
    assert "fsdp" in str(weight.spec)


@pytest.fixture(scope="module")
def mixed(small_config, one_device, tmp_path_factory):
    """A config with three optimizers, and its run on one device."""
    cfg = evolve(small_config, learner=MIXED)
    return cfg, one_device(cfg).run(tmp_path_factory.mktemp("mixed") / "run")


def assert_close(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=2e-3, atol=2e-4)


@pytest.mark.slow
def test_eight_devices_train_as_one(mixed, tmp_path):
    cfg, whole = mixed
    sharded = evolve(cfg, mesh={"fsdp": 4, "model": 2}, num_micro_batches=2)
    result = trainer_on(sharded, 8).run(tmp_path)
    assert_close(whole.state, result.state)


def of_up(tree):
    return tree["decoder"]["stack"]["layer"]["feed_forward"]["up"]["weight"]


def test_soaps_factors_are_split_where_they_divide(small_config):
    learner = Learner.Config(optimizer=SOAP.Config(), schedule=SCHEDULE)
    cfg = evolve(small_config, learner=learner, mesh={"fsdp": 4, "model": 2}, max_steps=8)
    shardings = trainer_on(cfg, 8).compiler.shardings()
    state, weight = shardings.opt_state[0], of_up(shardings.model)
    assert (of_up(state.mean), of_up(state.second)) == (weight, weight)
    assert "fsdp" in str(of_up(state.left).spec)  # 32 x 32 of 32 x 64
    assert not any(of_up(state.right).spec)  # 64 x 64


@pytest.mark.long
@pytest.mark.slow
def test_soap_trains_on_two_devices_as_on_one(small_config, one_device, tmp_path):
    soap = SOAP.Config(frequency=2, epsilon=1e-3)
    cfg = update_config(small_config, {"learner.optimizer": soap})
    two = trainer_on(evolve(cfg, mesh={"fsdp": 2}), 2).run(tmp_path / "two")
    one = one_device(cfg).run(tmp_path / "one")
    # Only the loss: bases of directions without a gradient are arbitrary.
    np.testing.assert_allclose(one.validation["loss"], two.validation["loss"], rtol=1e-3)


@pytest.mark.slow
def test_a_pipeline_of_int8_layers_trains_with_it_too(mixed, tmp_path):
    cfg, _ = mixed
    piped = replace_config(cfg, ScannedLayers, Pipeline.Config(num_micro_batches=4))
    int8 = evolve(Int8Training().apply(piped, Hardware.parse("cpu-2")), mesh={"pipeline": 2})
    result = trainer_on(int8, 2).run(tmp_path)
    assert (result.is_complete, int(result.state.skipped)) == (True, 0)
