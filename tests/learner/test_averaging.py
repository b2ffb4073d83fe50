"""The average of parameters is its formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.errors import ConfigError
from axcore.learner import EMA


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
