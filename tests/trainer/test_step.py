"""The step: micro-batches are one batch, norms of gradients by module, and what is in no `loss`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import axcore as ax
from axcore.config import evolve, replace_config, update_config
from axcore.errors import ConfigError
from axcore.layers import FeedForward, MoE, Router
from axcore.learner import AdamW, Learner, LowPrecisionState, WarmupCosine
from axcore.testing import small_experiment, trainer_on
from axcore.trainer.callbacks.metrics import LossMeter
from axcore.trainer.step import GradientNorms, TrainStep


def uneven_batch(seq_len=16):
    """Eight rows with very different numbers of tokens that count, one row with none."""
    draw = np.random.default_rng(0)
    length_B = np.array([16, 1, 9, 0, 3, 16, 12, 5]) * seq_len // 16
    positions_BT = np.broadcast_to(np.arange(seq_len), (8, seq_len))
    is_real_BT = positions_BT < length_B[:, None]
    return {
        "tokens": draw.integers(3, 260, (8, seq_len)).astype(np.int32),
        "targets": draw.integers(3, 260, (8, seq_len)).astype(np.int32),
        "positions": np.where(is_real_BT, positions_BT, 0).astype(np.int32),
        "segment_ids": is_real_BT.astype(np.int32),
        "loss_weights": is_real_BT.astype(np.float32)
        * draw.uniform(0.5, 2, (8, seq_len)).astype(np.float32),
    }


def step_of(model, count, optimizer=AdamW.Config()):  # noqa: B008 - frozen
    schedule = WarmupCosine.Config(warmup_steps=1)
    learner = Learner.Config(optimizer=optimizer, schedule=schedule).build(total_steps=9)
    return TrainStep(model.build(), learner, num_micro_batches=count)


def after_one_step(model, count, batch):
    step = step_of(model, count)
    state, metrics = jax.jit(step)(jax.jit(step.init)(), batch)
    return state, metrics


def assert_same_step(one, many):
    (state, metrics), (state_k, metrics_k) = one, many
    for name, loss in metrics.losses.items():
        np.testing.assert_allclose(loss.sum, metrics_k.losses[name].sum, rtol=2e-6)
        np.testing.assert_allclose(loss.weight, metrics_k.losses[name].weight, rtol=2e-6)
    np.testing.assert_allclose(metrics.gradient_norm, metrics_k.gradient_norm, rtol=1e-5)
    first_moments = [jax.tree.leaves(optax.tree.get(s.opt_state, "mu")) for s in (state, state_k)]
    for mean, mean_k in zip(*first_moments, strict=True):
        scale = np.abs(mean).max()
        np.testing.assert_allclose(mean / scale, mean_k / scale, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def whole(toy):
    return after_one_step(toy.Config(dropout=0.0), 1, uneven_batch())


@pytest.mark.parametrize("count", [2, 8])
def test_micro_batches_of_unequal_tokens_and_two_losses_equal_one_batch(toy, whole, count):
    parts = after_one_step(toy.Config(dropout=0.0), count, uneven_batch())
    assert_same_step(whole, parts)
    np.testing.assert_allclose(whole[0].model["mean"], parts[0].model["mean"], atol=1e-9)
    assert int(parts[0].model["calls"]) == int(whole[0].model["calls"]) == 1


def test_gradients_of_parameters_of_16_bits_add_up_in_32(toy):
    half = evolve(toy.Config(dropout=0.0), dtypes=evolve(toy.Config().dtypes, param="bfloat16"))
    step = step_of(half, 4, LowPrecisionState.Config())
    state = step.init()
    assert state.model["table"].dtype == jnp.bfloat16
    jaxpr = jax.make_jaxpr(step)(state, uneven_batch())
    scans = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    (sums,) = (found for found in map(carried, scans) if len(found) == 2)
    assert [aval.dtype for aval in sums] == [jnp.float32] * 2


def carried(scan):
    """What a scan hands from round to round: its results, without those that it stacks."""
    once_a_round = scan.params["jaxpr"].out_avals
    results = [var.aval for var in scan.outvars]
    pairs = zip(results, once_a_round, strict=True)
    return [result for result, once in pairs if result.shape == once.shape]


def test_counting_weights_beforehand_costs_no_second_forward_pass(toy):
    """The compiler counts a loop's body once, so a micro-batch of a quarter costs a quarter."""
    batch = uneven_batch(64)
    flops = {}
    for count in (1, 4):
        step = step_of(toy.Config(dropout=0.0), count)
        program = jax.jit(step).lower(jax.eval_shape(step.init), batch).compile()
        flops[count] = program.cost_analysis()["flops"]
    assert flops[4] < 1.1 * flops[1] / 4 + 30 * 264 * 8  # and the optimizer's share


@pytest.mark.parametrize(
    ("count", "hint"),
    [
        (3, "--set num_micro_batches=2, or --set data.batch_size=9"),
        (16, "--set num_micro_batches=8, or --set data.batch_size=16"),
    ],
)
def test_a_batch_that_does_not_divide_is_an_error_with_both_ways_out(toy_config, count, hint):
    with pytest.raises(ConfigError) as error:
        evolve(toy_config, num_micro_batches=count).build()
    assert (error.value.what, error.value.where, error.value.hint) == (
        f"a batch of 8 rows does not divide into {count} micro-batches",
        "num_micro_batches",
        hint,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("norms")
    plain = ax.update_config(
        small_experiment(folder / "texts"),
        {"mesh": {"fsdp": 1}, "max_steps": 4, "logging.every_steps": 1},
    )
    found = {}
    for every in (0, 2):
        cfg = ax.update_config(plain, {"logging.gradient_norms_every_steps": every})
        result = trainer_on(cfg, 1).run(folder / str(every), quiet=True)
        found[every] = ax.load_run(folder / str(every)).metrics["train"], result.state
    return found


@pytest.mark.slow
def test_norms_are_parts_of_the_global_norm(runs):
    metrics, _ = runs[2]
    norms = {name: values for name, values in metrics.items() if name.startswith("gradient_norm/")}
    layers = [f"gradient_norm/decoder.stack.layer[{layer}]" for layer in range(2)]
    assert {*layers, "gradient_norm/decoder.embedding"} <= norms.keys()
    assert np.isnan(norms[layers[0]]).tolist() == [True, False, True, False]
    total = np.sqrt(sum(values**2 for values in norms.values()))[1::2]
    np.testing.assert_allclose(total, metrics["gradient_norm"][1::2], rtol=1e-6)


@pytest.mark.slow
def test_measuring_changes_no_bit_of_training(runs):
    (off, state), (on, other) = runs[0], runs[2]
    assert not [name for name in off if name.startswith("gradient_norm/")]
    np.testing.assert_array_equal(off["loss"], on["loss"])
    jax.tree.map(np.testing.assert_array_equal, state, other)


def test_layers_that_alternate_and_experts():
    model = ax.experiment("gpt-oss-20b").model.build()
    gradients = jax.eval_shape(lambda: model.init(0))
    norms = jax.eval_shape(GradientNorms(model.param_specs(), 1), gradients, 1)
    assert {name.removeprefix("gradient_norm/"): found.shape for name, found in norms.items()} == {
        "decoder.embedding": (),
        "decoder.norm": (),
        "decoder.stack.layer.layer[0]": (12,),
        "decoder.stack.layer.layer[1]": (12,),
        "head": (),
    }


def test_norms_at_steps_that_are_not_logged_are_refused(tmp_path):
    cfg = ax.update_config(
        small_experiment(tmp_path / "texts"),
        {"logging.every_steps": 10, "logging.gradient_norms_every_steps": 25},
    )
    with pytest.raises(
        ConfigError, match=r"25 is not a multiple of logging\.every_steps, 10"
    ) as found:
        trainer_on(cfg, 1)
    assert found.value.hint == "--set logging.gradient_norms_every_steps=30"


ROUTER = Router.Config(balance_loss=0.5, z_loss=0.1)
PLAIN = Router.Config(balance_loss=0.0)
Z, BALANCE = "loss/head.z", "loss/decoder.stack.layer.feed_forward.router.load_balance"


def with_regularizers(cfg, router, z_loss):
    moe = lambda ffn: MoE.Config(expert=ffn, num_experts=2, top_k=1, router=router)  # noqa: E731
    small = update_config(cfg, {"model.head.z_loss": z_loss, "**.num_layers": 1, "model.dim": 8})
    return replace_config(small, FeedForward, moe)


def validated(cfg):
    trainer = trainer_on(cfg, 1)
    with jax.set_mesh(trainer.mesh):
        state = trainer.first_state()
    return trainer.evaluate(trainer.step.evaluated_model(state))


@pytest.mark.slow
def test_the_validation_loss_is_the_cross_entropy_alone(tmp_path):
    cfg = small_experiment(tmp_path)
    plain = validated(with_regularizers(cfg, PLAIN, 0.0))
    found = validated(with_regularizers(cfg, ROUTER, 0.1))
    assert set(plain) == {"loss"}
    assert found["loss"] == pytest.approx(plain["loss"], rel=1e-6)
    assert found["loss/cross_entropy"] == found["loss"]
    assert found[Z] > 0.1
    assert found[BALANCE] >= 0.49
    parts = [value for name, value in found.items() if name.startswith("loss/")]
    assert found["total_loss"] == pytest.approx(sum(parts))


def test_a_meter_keeps_what_is_minimised_apart():
    from axcore.module import Loss

    meter = LossMeter()
    meter.add({"ce": Loss(6.0, 2.0), "z": Loss(8.0, 2.0, 0.5, is_regularizer=True)})
    assert meter.metrics() == {"loss": 3.0, "total_loss": 5.0, "loss/ce": 3.0, "loss/z": 2.0}
