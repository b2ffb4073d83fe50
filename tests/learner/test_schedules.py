"""Learning rates at points computed by hand."""

import jax
import numpy as np
import optax
import pytest

from axcore.errors import ConfigError
from axcore.learner import (
    ConstantSchedule,
    WarmupCosine,
    WarmupInverseSqrt,
    WarmupLinear,
    WarmupPiecewise,
    WarmupStableDecay,
)


def rates(cfg, total_steps, steps):
    schedule = cfg.build(total_steps=total_steps)
    return [float(schedule(step)) for step in steps]


def test_warmup_cosine_at_points_computed_by_hand():
    cfg = WarmupCosine.Config(peak=0.8, warmup_steps=4, final_fraction=0.25)
    expected = {
        0: 0.2,
        1: 0.4,
        3: 0.8,  # the last step of the warm-up is at the peak
        5: 0.2 + 0.6 * (1 + np.cos(np.pi / 4)) / 2,
        7: 0.5,  # half of the way down, half of the fall
        11: 0.2,  # the last step has the final fraction of the peak
        50: 0.2,
    }
    assert rates(cfg, 12, expected) == pytest.approx(list(expected.values()), rel=1e-6)


def test_without_warmup_the_fall_begins_at_once():
    cfg = WarmupCosine.Config(peak=1.0, warmup_steps=0, final_fraction=0.0)
    assert rates(cfg, 2, [0, 1]) == pytest.approx([0.5, 0.0], abs=1e-7)


def test_rates_rise_then_fall_and_stay_within_bounds():
    cfg = WarmupCosine.Config(peak=1.0, warmup_steps=10, final_fraction=0.1)
    found = np.array(rates(cfg, 40, range(40)))
    assert (np.diff(found[:10]) > 0).all()
    assert (np.diff(found[9:]) < 0).all()
    assert found.max() == pytest.approx(1.0)
    assert found.min() == pytest.approx(0.1)


def test_a_step_on_the_device_has_the_rate_of_the_same_number():
    schedule = WarmupCosine.Config(warmup_steps=3).build(total_steps=9)
    traced = jax.jit(jax.vmap(schedule))(np.arange(9, dtype=np.int32))
    np.testing.assert_allclose(traced, [schedule(step) for step in range(9)], rtol=1e-6)
    assert traced.dtype == np.float32


def test_constant_is_constant():
    assert rates(ConstantSchedule.Config(peak=0.25), 3, [0, 1, 99]) == [0.25] * 3


@pytest.mark.parametrize(("share", "total", "steps"), [(0.1, 50, 5), (0.1, 8, 1), (0.04, 9, 0)])
def test_a_share_of_all_steps_is_as_many_as_are_nearest(share, total, steps):
    shared = WarmupCosine.Config(peak=0.8, warmup_steps=share).build(total_steps=total)
    counted = WarmupCosine.Config(peak=0.8, warmup_steps=steps).build(total_steps=total)
    assert [shared(s) for s in range(total)] == [counted(s) for s in range(total)]


@pytest.mark.parametrize("share", [1.0, 1.5, -0.1])
def test_a_share_is_below_one(share):
    with pytest.raises(ConfigError, match="expected a number of steps, or a share of all that"):
        WarmupCosine.Config(warmup_steps=share)


def test_a_warmup_as_long_as_training_is_an_error():
    with pytest.raises(ConfigError, match="warmup_steps is 5; it must be below the 5 steps of tra"):
        WarmupCosine.Config(warmup_steps=5).build(total_steps=5)


POINTS = {
    "linear": (
        WarmupLinear.Config(peak=0.8, warmup_steps=4, final_fraction=0.25),
        {0: 0.2, 3: 0.8, 7: 0.5, 11: 0.2, 50: 0.2},
    ),
    "inverse square root": (
        WarmupInverseSqrt.Config(peak=0.8, warmup_steps=4),
        {0: 0.2, 3: 0.8, 15: 0.4, 99: 0.16},
    ),
    "constant": (ConstantSchedule.Config(peak=0.8, warmup_steps=4), {0: 0.2, 3: 0.8, 99: 0.8}),
    "wsd, linear": (
        WarmupStableDecay.Config(
            peak=0.8, warmup_steps=2, decay_fraction=1 / 3, final_fraction=0.25
        ),
        {0: 0.4, 1: 0.8, 7: 0.8, 8: 0.65, 9: 0.5, 11: 0.2, 50: 0.2},
    ),
    "wsd, sqrt": (
        WarmupStableDecay.Config(peak=0.8, warmup_steps=0, decay_fraction=1 / 3, decay="sqrt"),
        {0: 0.8, 7: 0.8, 8: 0.4, 11: 0.0},
    ),
    "piecewise": (
        WarmupPiecewise.Config(peak=0.8, warmup_steps=2, steps=(5, 9), fractions=(0.5, 0.125)),
        {0: 0.4, 1: 0.8, 4: 0.8, 5: 0.4, 8: 0.4, 9: 0.1, 50: 0.1},
    ),
    "piecewise, linear": (
        WarmupPiecewise.Config(
            peak=0.8, warmup_steps=2, steps=(5, 9), fractions=(0.5, 0.75), interpolation="linear"
        ),
        {0: 0.4, 1: 0.8, 3: 0.6, 5: 0.4, 7: 0.5, 9: 0.6, 50: 0.6},
    ),
}


@pytest.mark.parametrize("name", POINTS)
def test_schedules_at_points_of_their_formulas(name):
    cfg, points = POINTS[name]
    assert rates(cfg, 12, points) == pytest.approx(list(points.values()), rel=1e-6, abs=1e-7)


def test_piecewise_changes_where_that_of_optax_does():
    cfg = WarmupPiecewise.Config(peak=0.5, warmup_steps=0, steps=(3, 7), fractions=(0.1, 0.05))
    theirs = optax.piecewise_constant_schedule(0.5, {3: 0.1, 7: 0.5})
    assert rates(cfg, 12, range(12)) == pytest.approx([float(theirs(s)) for s in range(12)])


@pytest.mark.parametrize("total", [1, 2, 4])
def test_the_fall_of_a_short_run_takes_a_step(total):
    schedule = WarmupStableDecay.Config(warmup_steps=0.1, peak=0.8).build(total_steps=total)
    assert [float(schedule(s)) for s in range(total)] == pytest.approx([0.8] * (total - 1) + [0.0])


@pytest.mark.parametrize("fraction", [0.0, 0.9, 1.5])
def test_a_decay_that_does_not_fit_after_the_warmup_is_an_error(fraction):
    with pytest.raises(ConfigError, match=f"decay_fraction is {fraction}, so the rate falls from"):
        WarmupStableDecay.Config(warmup_steps=3, decay_fraction=fraction).build(total_steps=10)


@pytest.mark.parametrize(
    ("steps", "fractions"), [((1, 5), (1.0, 0.5)), ((6, 5), (1.0, 0.5)), ((5,), ()), ((), ())]
)
def test_points_that_are_no_schedule_are_an_error(steps, fractions):
    cfg = WarmupPiecewise.Config(warmup_steps=2, steps=steps, fractions=fractions)
    with pytest.raises(ConfigError, match="steps are") as error:
        cfg.build(total_steps=10)
    assert "from warmup_steps=2 on" in error.value.hint


@pytest.mark.parametrize("peak", [-1.0, float("inf")])
def test_a_peak_that_is_no_rate_is_an_error(peak):
    with pytest.raises(ConfigError, match="expected a finite number of 0 or more"):
        WarmupCosine.Config(peak=peak).build(total_steps=1000)
