"""Learning rates at points computed by hand."""

import jax
import numpy as np
import pytest

from axcore.errors import ConfigError
from axcore.learner import Constant, WarmupCosine


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
    assert rates(Constant.Config(rate=0.25), 3, [0, 1, 99]) == [0.25] * 3


def test_a_warmup_as_long_as_training_is_an_error():
    with pytest.raises(ConfigError, match="warmup_steps is 5; it must be below the 5 steps of tra"):
        WarmupCosine.Config(warmup_steps=5).build(total_steps=5)
