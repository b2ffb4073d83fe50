"""`Dropout` keeps or scales, in training only."""

import numpy as np
import pytest

from axcore.errors import ConfigError, ModuleError
from axcore.layers import Dropout

ONES = np.ones((64, 64), np.float32)


def test_dropout_does_nothing_outside_of_training(call, random):
    x = random(3, 4)
    np.testing.assert_array_equal(call(Dropout.Config(rate=0.5).build(), {}, x), x)


def test_rate_zero_draws_no_key(call, random):
    x = random(3, 4)
    np.testing.assert_array_equal(call(Dropout.Config().build(), {}, x, training=True), x)


def test_dropped_are_zero_and_kept_are_scaled_so_that_the_mean_stays(call):
    dropped = call(Dropout.Config(rate=0.25).build(), {}, ONES, rng=0, training=True)
    assert set(np.unique(dropped)) == {np.float32(0.0), np.float32(1.0) / np.float32(0.75)}
    assert abs(dropped.mean() - 1.0) < 0.03
    other = call(Dropout.Config(rate=0.25).build(), {}, ONES, rng=1, training=True)
    assert abs((dropped == other).mean() - (0.75**2 + 0.25**2)) < 0.03


def test_training_without_a_key_is_an_error(call):
    with pytest.raises(ModuleError, match="a random key is needed but the call has none"):
        call(Dropout.Config(rate=0.5).build(), {}, ONES, training=True)


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_impossible_rates_are_refused(rate):
    with pytest.raises(ConfigError, match=rf"rate is {rate}; expected 0 or more and"):
        Dropout.Config(rate=rate).build()
