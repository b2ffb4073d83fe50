"""State in fewer bits: rounded without bias, sharded as parameters, and training as before."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from rounding import assert_same_to_rounding

from axcore.config import evolve
from axcore.learner import (
    SGD,
    Adafactor,
    AdamW,
    ConstantSchedule,
    Learner,
    Lion,
    LowPrecisionState,
    Muon,
)
from axcore.learner.low_precision import Bfloat16, Int8Rows, round_to_bfloat16
from axcore.module import Module, Param
from axcore.parallel import PARAM_RULES, make_mesh, param_shardings, shardings_like

FORMATS = {"bfloat16": Bfloat16(), "int8_rows": Int8Rows(min_size=1)}


def skewed(shape=(16, 64), seed=0):
    """Numbers of very different sizes, some of them 0."""
    x = jax.random.normal(jax.random.key(seed), shape, jnp.float32) ** 3
    return jnp.where(jnp.abs(x) < 1e-3, 0, x)


def bits_of(seed, shape):
    return jax.random.bits(jax.random.key(seed), shape, jnp.uint32)


def rounded(stored_in, x, seed):
    return stored_in.decode(stored_in.encode(x, bits_of(seed, x.shape)))


# -- formats ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("x", [skewed(), skewed() ** 2], ids=["signed", "not negative"])
def test_the_mean_of_all_roundings_is_the_number(name, x):
    """Bits go evenly through all samples; where these agree, the number is near them."""
    bits = [jnp.full(x.shape, number * 0x01010101, jnp.uint32) for number in range(256)]
    rounding = jax.jit(lambda b: FORMATS[name].decode(FORMATS[name].encode(x, b)))
    draws = np.stack([rounding(one) for one in bits]).astype(np.float64)
    error, spread = np.abs(draws.mean(axis=0) - x), np.ptp(draws, axis=0)
    assert np.all(error <= np.where(spread > 0, spread / 200, 0.001 * np.abs(x)))
    assert np.mean(spread[x != 0] > 0) > 0.9


@pytest.mark.slow
def test_codes_are_near_in_the_fourth_root():
    """By one step at most, of 127 where there are negative numbers and of 255 elsewhere."""
    for x, steps in ((skewed(), 127), (skewed() ** 2, 255)):
        back = rounded(FORMATS["int8_rows"], x, 1)
        largest = jnp.max(jnp.abs(x), axis=-1, keepdims=True)
        root = lambda y, of=largest: (jnp.abs(y) / of) ** 0.25  # noqa: E731
        assert float(jnp.max(jnp.abs(root(x) - root(back)))) <= 1.001 / steps
        np.testing.assert_array_equal(jnp.sign(back), jnp.sign(x))


@pytest.mark.slow
def test_the_largest_of_a_row_and_a_row_of_zeros_are_exact():
    x = jnp.zeros((2, 64), jnp.float32).at[0, 5].set(-3.25)
    np.testing.assert_array_equal(rounded(FORMATS["int8_rows"], x, 3), x)


def test_rounding_to_bfloat16_keeps_what_is_bfloat16():
    x = skewed().astype(jnp.bfloat16)
    np.testing.assert_array_equal(round_to_bfloat16(x.astype(jnp.float32), bits_of(0, x.shape)), x)


@pytest.mark.parametrize("pattern", [0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0x7F800001])
def test_what_is_no_number_stays_so_whatever_its_bits(pattern):
    x = jax.lax.bitcast_convert_type(jnp.full((64,), pattern, jnp.uint32), jnp.float32)
    assert np.isnan(round_to_bfloat16(x, bits_of(0, x.shape)).astype(jnp.float32)).all()


def test_small_arrays_and_short_rows_stay_float32():
    assert not Int8Rows(1).can_store((64, 8))
    assert not Int8Rows(4096).can_store((4095,))
    assert not Int8Rows(1).can_store(())
    assert Int8Rows(1).can_store((64, 14336))


# -- the optimizer ------------------------------------------------------------------------------


class Matrices(Module):
    """Two matrices of one shape and a vector."""

    def setup(self, cfg):
        self.up = Param((64, 32), axes=("embed", "mlp"))
        self.down = Param((64, 32), axes=("embed", "mlp"))
        self.scale = Param((32,), axes=("mlp",), init=1.0)


def loss_of(params, noise):
    """How far the matrices' product is from one that is given; gradients differ much in size."""
    x = jax.random.normal(jax.random.key(1), (128, 64), jnp.float32) * jnp.logspace(-2, 0, 64)[None]
    x = x + 0.1 * jax.random.normal(jax.random.key(noise), x.shape, jnp.float32)
    p = jax.tree.map(lambda one: one.astype(jnp.float32), params)
    out = jnp.tanh(x @ p["up"]) * p["scale"][None] @ p["down"].T
    return jnp.mean((out - jnp.sin(3 * x)) ** 2)


def losses(optimizer, num_steps=60, rate=0.01, dtype=jnp.float32):
    """Returns the losses of training, and the last state."""
    model = Matrices.Config().build()
    learner = Learner.Config(optimizer=optimizer, schedule=ConstantSchedule.Config(peak=rate))
    learner = learner.build(total_steps=num_steps)
    transformation = learner.transformation(learner.with_frozen(model.param_specs()))
    params = jax.tree.map(lambda p: p.astype(dtype), model.init(0))

    def step(carry, noise):
        params, state = carry
        loss, gradients = jax.value_and_grad(loss_of)(params, noise)
        done = learner.update(transformation, gradients, state, params, loss=loss)
        return (done.params, done.opt_state), loss

    start = (params, learner.init(transformation, params))
    (params, state), found = jax.jit(lambda s: jax.lax.scan(step, s, jnp.arange(num_steps)))(start)
    return np.asarray(found), state


def low(optimizer, name):
    return LowPrecisionState.Config(optimizer=optimizer, format=name, min_size=1)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.slow
def test_training_follows_that_with_float32_state(name):
    wide, _ = losses(AdamW.Config())
    narrow, _ = losses(low(AdamW.Config(), name))
    assert wide[-1] < 0.6 * wide[0]
    np.testing.assert_allclose(narrow, wide, rtol=0.02)
    assert not np.array_equal(narrow, wide)


@pytest.mark.parametrize("optimizer", [Lion.Config(), SGD.Config(momentum=0.9)])
@pytest.mark.slow
def test_any_optimizer_can_be_wrapped(optimizer):
    wide, _ = losses(optimizer, rate=0.003, num_steps=20)
    narrow, _ = losses(low(optimizer, "int8_rows"), rate=0.003, num_steps=20)
    np.testing.assert_allclose(narrow, wide, rtol=0.03)


@pytest.mark.quick_one_in(2)
@pytest.mark.parametrize("optimizer", [Adafactor.Config(min_dim_to_factor=8), SGD.Config()])
def test_without_large_moments_of_a_parameters_shape_nothing_changes(optimizer):
    wide, _ = losses(optimizer, num_steps=5)
    narrow, _ = losses(evolve(low(optimizer, "int8_rows"), min_size=64), num_steps=5)
    assert_same_to_rounding(narrow, wide)


@pytest.mark.parametrize(("name", "num_bytes"), [("bfloat16", 2), ("int8_rows", 1 + 4 / 32)])
@pytest.mark.quick_one_in(2)
def test_the_state_takes_so_many_bytes_a_parameter(name, num_bytes):
    _, state = losses(low(AdamW.Config(), name), num_steps=1)
    num_params = 2 * 64 * 32 + 32
    moments = sum(leaf.nbytes for leaf in jax.tree.leaves(state) if leaf.ndim)
    assert moments == 2 * num_bytes * num_params


def test_bfloat16_parameters_take_part_in_steps_that_nearest_rounding_would_lose():
    """Their mean falls as that of float32 parameters does, by 2 % in steps of a 5000th."""
    cfg = Learner.Config(
        optimizer=low(SGD.Config(), "bfloat16"), schedule=ConstantSchedule.Config(peak=2e-4)
    )
    learner = cfg.build(total_steps=100)
    params = {"w": jnp.ones((64, 64), jnp.bfloat16)}
    transformation = learner.transformation({"w": Param((64, 64), axes=(None, None))})
    gradients = {"w": jnp.ones((64, 64), jnp.bfloat16)}

    def step(carry, _):
        with jax.numpy_dtype_promotion("standard"):
            updates, state = transformation.update(gradients, carry[1], carry[0])
        moved = jax.tree.map(
            lambda p, u: (p.astype(u.dtype) + u).astype(p.dtype), carry[0], updates
        )
        return (moved, state), None

    start = (params, transformation.init(params))
    (params, _), _ = jax.jit(lambda s: jax.lax.scan(step, s, length=100))(start)
    assert float(jnp.mean(params["w"].astype(jnp.float32))) == pytest.approx(0.98, abs=1e-3)


def test_arrays_and_updates_draw_apart():
    """Equal arrays are not rounded alike, nor one twice alike."""
    cfg = low(SGD.Config(momentum=0.5), "bfloat16").build()
    transformation = cfg.transformation(lambda step: 0.1, None)
    same = {"a": skewed(), "b": skewed()}
    _, first = transformation.update(same, transformation.init(same), same)
    a, b = (first.values[0].trace[name].astype(jnp.float32) for name in "ab")
    zero = jax.tree.map(jnp.zeros_like, first.values)
    _, second = transformation.update(same, first._replace(values=zero), same)
    again = second.values[0].trace["a"].astype(jnp.float32)
    assert not np.array_equal(a, b)
    assert not np.array_equal(a, again)
    np.testing.assert_allclose(a, again, rtol=0.02)


def test_the_stored_state_is_sharded_as_its_parameters():
    mesh = make_mesh({"fsdp": 4, "model": 2}, jax.devices()[:8])
    model = Matrices.Config().build()
    specs = model.param_specs()
    params = jax.eval_shape(lambda: model.init(0))
    transformation = (
        low(AdamW.Config(), "int8_rows").build().transformation(lambda step: 0.1, specs)
    )
    state = jax.eval_shape(transformation.init, params)
    shardings = param_shardings(specs, PARAM_RULES, mesh)
    found = shardings_like(state, params, shardings, mesh)
    assert found.values[0].mu == shardings
    assert found.values[0].nu == shardings
    assert state.scales[0].mu["up"].shape == (64, 1)
    assert found.scales[0].mu["up"].spec == PartitionSpec("fsdp", None)


@pytest.mark.slow
def test_muon_is_wrapped_too():
    specs = {"w": Matrices.Config().build().param_specs()["up"]}
    transformation = low(Muon.Config(), "int8_rows").build().transformation(lambda step: 0.1, specs)
    params = {"w": skewed((64, 32))}
    with jax.numpy_dtype_promotion("standard"):
        updates, state = transformation.update(params, transformation.init(params), params)
    assert jnp.dtype(jnp.uint8) in {leaf.dtype for leaf in jax.tree.leaves(state.values)}
    assert bool(jnp.all(jnp.isfinite(updates["w"])))
