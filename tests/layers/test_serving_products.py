"""Products where a model serves: those of the op, and of one row in parts where a host has it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.hardware import Hardware
from axcore.layers import products_by_op
from axcore.layers.linear import compared, times
from axcore.ops import KernelPolicy, use_policy

WIDTH = 264


def _operands(rows, dtype=jnp.float32):
    draw = np.random.default_rng(0)
    x, weight = draw.standard_normal((rows, WIDTH)), draw.standard_normal((WIDTH, WIDTH))
    return jnp.asarray(x, dtype), jnp.asarray(weight, dtype)


def _portable(target="cpu-1"):
    return KernelPolicy(hardware=Hardware.parse(target), pins={"decode_matmul": "portable"})


def _numbers_of_parts(function, *operands):
    """Returns for each product of a program how many it is at once."""
    equations = jax.make_jaxpr(function)(*operands).jaxpr.eqns
    dots = [equation for equation in equations if equation.primitive.name == "dot_general"]
    return [dot.outvars[0].aval.shape[0] if dot.outvars[0].aval.ndim == 3 else 1 for dot in dots]


@pytest.mark.parametrize("product", [times, compared])
def test_parts_change_the_product_of_one_row_by_rounding_only(product):
    x, weight = _operands(1)
    held = weight if product is times else weight.T
    with use_policy(_portable()), products_by_op():
        found = product(x, held)
        assert _numbers_of_parts(product, x, held) == [4]
    exact = np.asarray(x, np.float64) @ np.asarray(weight, np.float64)
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("product", [times, compared])
def test_one_product_stays_one_where_parts_gain_nothing(product):
    several, one, rounded = _operands(2), _operands(1), _operands(1, jnp.bfloat16)
    small = [array[..., :64] for array in _operands(1)]
    assert _numbers_of_parts(product, *one) == [1]
    with use_policy(_portable()), products_by_op():
        for operands in (several, rounded, (small[0], small[1][:64])):
            assert _numbers_of_parts(product, *operands) == [1]
        # Of a size that no number of parts divides.
        odd = (one[0][:, :263] if product is times else one[0]), one[1][:263]
        assert _numbers_of_parts(product, *odd) == [1]
    with use_policy(_portable("tpu-v5p-8")), products_by_op():
        assert _numbers_of_parts(product, *one) == [1]
