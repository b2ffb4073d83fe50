"""A spike is a loss more than k sigma above the mean of its window, and no other loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.errors import ConfigError
from axcore.learner import SpikeGuard

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
