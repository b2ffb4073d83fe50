"""Updates are those of AdamW computed by hand: clipped, decayed, averaged, or skipped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.config import evolve
from axcore.errors import ConfigError
from axcore.layers import FeedForward
from axcore.learner import EMA, AdamW, ConstantSchedule, Learner, SpikeGuard
from axcore.module import Module, Param, ParamSpec

RATE, DECAY, B1, B2, EPSILON = 0.1, 0.5, 0.9, 0.95, 1e-8


class Shapes(Module):
    """Parameters that decay and that do not."""

    def setup(self, cfg):
        self.matrix = Param((2, 2), axes=(None, None), init=1.0)
        self.vector = Param((2,), axes=(None,), init=1.0)
        self.kept_matrix = Param((2, 2), axes=(None, None), init=1.0, decay=False)
        self.decayed_vector = Param((2,), axes=(None,), init=1.0, decay=True)


LEARNER = Learner.Config(
    optimizer=AdamW.Config(b1=B1, b2=B2, epsilon=EPSILON, weight_decay=DECAY),
    schedule=ConstantSchedule.Config(peak=RATE),
    clip_norm=None,
)


def update(cfg, gradients_of, num_steps=1):
    """Returns the parameters, all 1 before, after updates with constant gradients."""
    model = Shapes.Config().build()
    learner = cfg.build(total_steps=100)
    transformation = learner.transformation(model.param_specs())
    params = model.init(0)
    opt_state = transformation.init(params)
    gradients = jax.tree.map(lambda p: jnp.full_like(p, gradients_of), params)
    for _ in range(num_steps):
        done = learner.update(transformation, gradients, opt_state, params, loss=jnp.float32(1))
        params, opt_state = done.params, done.opt_state
    return params, done


def test_weight_decay_applies_only_where_the_specs_say():
    params, _ = update(LEARNER, 0.0)
    expected = {
        "matrix": 1 - RATE * DECAY,
        "vector": 1.0,
        "kept_matrix": 1.0,
        "decayed_vector": 1 - RATE * DECAY,
    }
    assert {name: float(value.ravel()[0]) for name, value in params.items()} == pytest.approx(
        expected
    )


def test_updates_are_those_of_adamw_by_hand():
    params, _ = update(LEARNER, 3.0, num_steps=4)
    value, mean, square = 1.0, 0.0, 0.0
    for step in range(1, 5):
        mean = B1 * mean + (1 - B1) * 3.0
        square = B2 * square + (1 - B2) * 9.0
        direction = mean / (1 - B1**step) / (np.sqrt(square / (1 - B2**step)) + EPSILON)
        value -= RATE * (direction + DECAY * value)
    np.testing.assert_allclose(params["matrix"], value, rtol=1e-5)


@pytest.mark.parametrize(("clip_norm", "factor"), [(None, 1.0), (100.0, 1.0), (0.6, 0.1)])
def test_gradients_above_the_norm_are_scaled_down_to_it(clip_norm, factor):
    """Twelve elements of sqrt(3) have the norm 6; the first moment shows what the optimizer got."""
    _, done = update(evolve(LEARNER, clip_norm=clip_norm), float(np.sqrt(3)))
    assert float(done.gradient_norm) == pytest.approx(6.0)
    moments = [leaf for leaf in jax.tree.leaves(done.opt_state) if leaf.ndim == 2]
    np.testing.assert_allclose(moments[0], (1 - B1) * np.sqrt(3) * factor, rtol=1e-5)


def test_gradients_of_zero_are_clipped_to_zero():
    params, done = update(evolve(LEARNER, clip_norm=1.0), 0.0)
    assert float(done.gradient_norm) == 0.0
    np.testing.assert_array_equal(params["vector"], 1.0)


def test_the_schedule_gives_every_update_its_rate():
    """Adam's first directions under a constant gradient are all one."""
    from axcore.learner import WarmupCosine

    schedule = WarmupCosine.Config(peak=0.3, warmup_steps=3)
    params, _ = update(evolve(LEARNER, schedule=schedule), 1.0, num_steps=3)
    np.testing.assert_allclose(params["vector"], 1 - (0.1 + 0.2 + 0.3), rtol=1e-5)


@pytest.mark.parametrize("clip_norm", [0.0, -1.0])
def test_a_norm_that_no_gradient_can_have_is_an_error(clip_norm):
    with pytest.raises(ConfigError, match=r"clip_norm is .*; expected a number above 0") as error:
        evolve(LEARNER, clip_norm=clip_norm).build(total_steps=1)
    assert error.value.hint == "--set learner.clip_norm=none to train without clipping"


def test_the_average_is_its_formula():
    ema = EMA.Config(decay=0.75).build()
    values = [np.float32([1.0, -2.0]), np.float32([3.0, 0.5]), np.float32([-1.0, 8.0])]
    average = ema.init({"w": jnp.asarray(values[0])})
    for value in values[1:]:
        average = jax.jit(ema.update)(average, {"w": jnp.asarray(value)})
    expected = 0.75 * (0.75 * values[0] + 0.25 * values[1]) + 0.25 * values[2]
    np.testing.assert_allclose(average["w"], expected, rtol=1e-6)


def test_the_average_of_bfloat16_keeps_what_bfloat16_would_lose():
    """A step of 1/128 from 1, a thousandth of it at a time."""
    ema = EMA.Config(decay=0.999).build()
    average = ema.init({"w": jnp.ones((), jnp.bfloat16)})
    above = {"w": jnp.asarray(1 + 1 / 128, jnp.bfloat16)}
    for _ in range(3):
        average = ema.update(average, above)
    assert average["w"].dtype == jnp.float32
    assert float(average["w"]) == pytest.approx(1 + (1 - 0.999**3) / 128, rel=1e-6)


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_out_of_range_is_an_error(decay):
    with pytest.raises(ConfigError, match=f"decay is {decay}; expected 0 or more and less than 1"):
        EMA.Config(decay=decay)


def frozen(trained):
    specs = FeedForward.Config(dim=4, hidden_dim=8).build().param_specs()
    learner = Learner.Config(total_steps=200, trainable=trained).build()
    leaves = jax.tree.leaves(
        learner.with_frozen(specs), is_leaf=lambda leaf: isinstance(leaf, ParamSpec)
    )
    return {spec.name for spec in leaves if spec.is_frozen}


def test_all_parameters_are_trained_by_default():
    assert frozen(Learner.Config().trainable) == set()


def test_what_no_glob_matches_is_frozen():
    assert frozen(("up.*", "**.down.weight")) == {"gate.weight"}


def test_a_glob_that_matches_nothing_is_an_error():
    with pytest.raises(ConfigError, match=r"'donw.\*' matches no parameter of the model") as error:
        frozen(("donw.*",))
    assert error.value.where == "learner.trainable"


GUARD = SpikeGuard.Config(sigmas=2.0, window=4).build()
LOSSES = (4.0, 2.0, 4.0, 2.0)  # mean 3, sigma 1: above 5 is a spike


def window_of(*losses):
    window = GUARD.init()
    for loss in losses:
        window = jax.jit(GUARD.add)(window, jnp.float32(loss))
    return window


@pytest.mark.parametrize(("loss", "is_spike"), [(4.9, False), (5.1, True), (-50.0, False)])
def test_a_spike_is_above_k_sigma(loss, is_spike):
    assert bool(jax.jit(GUARD.is_spike)(window_of(*LOSSES), jnp.float32(loss))) == is_spike


def test_nothing_is_a_spike_before_the_window_is_full():
    assert not GUARD.is_spike(window_of(*LOSSES[:3]), jnp.float32(1e9))


def test_the_window_slides():
    window = window_of(900.0, -900.0, *LOSSES)
    np.testing.assert_array_equal(np.sort(window.losses), np.sort(LOSSES))
    assert GUARD.is_spike(window, jnp.float32(5.1))


@pytest.mark.parametrize(("field", "value"), [("sigmas", 0.0), ("window", 0)])
def test_a_guard_that_cannot_tell_is_an_error(field, value):
    with pytest.raises(ConfigError, match=f"{field} is {value}; expected"):
        SpikeGuard.Config(**{field: value})
