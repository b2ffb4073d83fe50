"""`Linear` is an affine map of the last dimension, whatever is before it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.hardware import Hardware
from axcore.layers import Linear, use_decode_matmul
from axcore.layers.linear import matmul, matmul_transposed
from axcore.module import DTypes, functional
from axcore.ops import KernelPolicy, use_policy
from axcore.parallel import ActivationSharding, make_mesh, sharding_activations

CONFIG = Linear.Config(in_dim=6, out_dim=4, axes=("embed", "mlp"), has_bias=True)


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 3, 2)])
def test_linear_is_affine_in_the_last_dimension(call, random, perturbed, leading):
    linear = CONFIG.build()
    state = perturbed(linear.init(0))
    x = random(*leading, 6)
    if len(leading) == 0:
        linear = Linear.Config(in_dim=6, out_dim=4, axes=("embed", "mlp")).build()
        expected = x @ np.asarray(state["weight"])
        del state["bias"]
    else:
        expected = x @ np.asarray(state["weight"]) + np.asarray(state["bias"])
    np.testing.assert_allclose(call(linear, state, x), expected, rtol=1e-5, atol=1e-5)


def _gradients(linear, state, x, weights):
    def loss(state, x):
        return jnp.sum(functional(linear, state, x)[0] * weights)

    return jax.jit(jax.grad(loss, argnums=(0, 1)))(state, x)


def test_gradients_sum_over_all_leading_dimensions(random):
    linear = CONFIG.build()
    state, x, weights = linear.init(0), random(2, 3, 6), random(2, 3, 4)
    of_state, of_x = _gradients(linear, state, x, weights)
    np.testing.assert_allclose(
        of_state["weight"], np.einsum("bti,bto->io", x, weights), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(of_state["bias"], weights.sum((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(of_x, weights @ np.asarray(state["weight"]).T, rtol=1e-5, atol=1e-5)


def test_time_that_is_split_over_a_mesh_stays_split(random):
    linear = Linear.Config(in_dim=8, out_dim=4, axes=("embed", "mlp")).build()
    mesh = make_mesh({"data": 2, "seq": 2}, jax.devices()[:4])
    spec = jax.sharding.PartitionSpec("data", "seq")
    x = jax.device_put(random(2, 4, 8), jax.sharding.NamedSharding(mesh, spec))
    with sharding_activations(ActivationSharding(mesh)):
        run = jax.jit(lambda state, x: functional(linear, state, x)[0])
        compiled = run.lower(linear.init(0), x).compile()
    assert "all-gather" not in compiled.as_text()
    assert compiled.output_shardings.spec == spec


def test_compute_dtype_rounds_the_weight_before_the_product(call, random):
    linear = Linear.Config(
        in_dim=6, out_dim=4, axes=("embed", "mlp"), dtypes=DTypes(compute="bfloat16")
    ).build()
    state = linear.init(0)
    x = jnp.asarray(random(2, 3, 6), jnp.bfloat16)
    got = call(linear, state, x)
    assert state["weight"].dtype == jnp.float32
    assert got.dtype == jnp.bfloat16
    rounded = np.asarray(state["weight"].astype(jnp.bfloat16), np.float32)
    np.testing.assert_allclose(
        got.astype(np.float32), np.asarray(x, np.float32) @ rounded, rtol=1e-2, atol=1e-2
    )


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


@pytest.mark.parametrize("product", [matmul, matmul_transposed])
def test_parts_change_the_product_of_one_row_by_rounding_only(product):
    x, weight = _operands(1)
    held = weight if product is matmul else weight.T
    with use_policy(_portable()), use_decode_matmul():
        found = product(x, held)
        assert _numbers_of_parts(product, x, held) == [4]
    exact = np.asarray(x, np.float64) @ np.asarray(weight, np.float64)
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("product", [matmul, matmul_transposed])
def test_one_product_stays_one_where_parts_gain_nothing(product):
    several, one, rounded = _operands(2), _operands(1), _operands(1, jnp.bfloat16)
    small = [array[..., :64] for array in _operands(1)]
    assert _numbers_of_parts(product, *one) == [1]
    with use_policy(_portable()), use_decode_matmul():
        for operands in (several, rounded, (small[0], small[1][:64])):
            assert _numbers_of_parts(product, *operands) == [1]
        # Of a size that no number of parts divides.
        odd = (one[0][:, :263] if product is matmul else one[0]), one[1][:263]
        assert _numbers_of_parts(product, *odd) == [1]
    with use_policy(_portable("tpu-v5p-8")), use_decode_matmul():
        assert _numbers_of_parts(product, *one) == [1]
