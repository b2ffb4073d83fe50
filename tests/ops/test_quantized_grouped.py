"""The quantized grouped product is a quantized dot for each group."""

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.errors import KernelError
from axcore.ops import (
    Amaxes,
    KernelPolicy,
    Quantization,
    amax_of_groups,
    grouped_matmul,
    quantized_dot,
    quantized_grouped_matmul,
    use_policy,
)
from axcore.ops.contract import relative_error
from axcore.ops.quantized.contract import FLOAT8, INT8
from axcore.plugins import Hardware

EMULATED = KernelPolicy(hardware=Hardware.parse("cpu-2"), pins={"quantized_dot": "emulated"})
SIZES, NUM_ROWS = (16, 0, 9, 7), 40
GIVEN = (3.0, 0.5, 1.0, 0.0)
"""Magnitudes to scale by, smaller than some of what is there; those of the last group unknown."""


def arrays(sizes=SIZES, num_rows=NUM_ROWS):
    numbers = np.random.default_rng(0)
    shapes = ((num_rows, 24), (len(sizes), 24, 20), (num_rows, 20))
    x, w, dy = (numbers.standard_normal(shape, np.float32) for shape in shapes)
    x *= np.linspace(0.1, 4.0, num_rows, dtype=np.float32)[:, None]
    dy[sum(sizes) :] = 0
    return tuple(map(jnp.asarray, (x, w, dy)))


def pulled(function, x, w, dy, policy=EMULATED):
    """Return the output and the gradients of x and w for a gradient of the output."""

    def run(x, w, dy):
        y, pull = jax.vjp(function, x, w)
        return (y, *pull(dy))

    with use_policy(policy):
        return jax.jit(run)(x, w, dy)


def one_by_one(spec, amaxes, x, w):
    """Return the rows of every group by a quantized dot of their own, and zeros after them."""
    ends = np.cumsum(SIZES)
    outputs = []
    for group, (size, end) in enumerate(zip(SIZES, ends, strict=True)):
        own = None if amaxes is None else jax.tree.map(lambda x: x[group], amaxes)  # noqa: B023
        if size:
            rows = x[end - size : end]
            outputs.append(quantized_dot(rows, w[group], spec, amaxes=own))
    return jnp.concatenate([*outputs, jnp.zeros((NUM_ROWS - ends[-1], w.shape[2]), x.dtype)])


@pytest.mark.parametrize("name", ["int8", "float8", "float8_given"])
@pytest.mark.quick_one_in(6)
def test_grouped_equals_a_quantized_dot_for_each_group(name):
    spec = INT8 if name == "int8" else FLOAT8
    amaxes = Amaxes(*[jnp.asarray(GIVEN)] * 4) if name == "float8_given" else None
    sizes = jnp.asarray(SIZES)

    def grouped(x, w):
        return quantized_grouped_matmul(x, w, sizes, spec, amaxes=amaxes)

    got = pulled(grouped, *arrays())
    want = pulled(lambda x, w: one_by_one(spec, amaxes, x, w), *arrays())
    for one, other in zip(got, want, strict=True):
        assert relative_error(one, other) <= 1e-6


@pytest.mark.quick_one_in(2)
@pytest.mark.parametrize(("spec", "allowed"), [(INT8, 0.02), (FLOAT8, 0.08)])
def test_groups_of_many_blocks_are_near_the_wide_product(spec, allowed):
    sizes = jnp.asarray((70, 3, 0, 127))
    given = arrays(sizes=(70, 3, 0, 127), num_rows=200)
    got = pulled(lambda x, w: quantized_grouped_matmul(x, w, sizes, spec), *given)
    want = pulled(lambda x, w: grouped_matmul(x, w, sizes), *given)
    for one, other in zip(got, want, strict=True):
        assert 1e-4 < relative_error(one, other) <= allowed


def test_wide_weight_gradient_is_that_of_the_plain_product():
    spec = attrs.evolve(INT8, weight_gradient=False)
    sizes = jnp.asarray(SIZES)
    _, _, got = pulled(lambda x, w: quantized_grouped_matmul(x, w, sizes, spec), *arrays())
    _, _, want = pulled(lambda x, w: grouped_matmul(x, w, sizes), *arrays())
    assert relative_error(got, want) <= 1e-6


@pytest.mark.slow
def test_gradient_of_seen_is_the_largest_gradient_of_each_group():
    x, w, dy = arrays()
    sizes, known = jnp.asarray(SIZES), jnp.ones(4)

    def run(seen):
        amaxes = Amaxes(known, known, known, seen)
        return jnp.sum(dy * quantized_grouped_matmul(x, w, sizes, FLOAT8, amaxes=amaxes))

    with use_policy(EMULATED):
        got = jax.jit(jax.grad(run))(known)
    np.testing.assert_array_equal(got, amax_of_groups(dy, sizes))
    assert got[1] == 0


@pytest.mark.quick_one_in(2)
@pytest.mark.parametrize("per", ["channel", "tensor"])
def test_stochastic_rounding_is_right_in_the_mean(per):
    gradients = Quantization(format="int8", per=per, is_stochastic=True)
    spec = attrs.evolve(INT8, gradients=gradients)
    x, w, dy = arrays()
    sizes = jnp.asarray(SIZES)

    @jax.jit
    def dx(key):
        with use_policy(EMULATED):
            run = lambda x: quantized_grouped_matmul(x, w, sizes, spec, key=key)  # noqa: E731
            return jax.vjp(run, x)[1](dy)[0]

    draws = jnp.stack([dx(jax.random.key(number)) for number in range(64)])
    nearest = pulled(lambda x, w: quantized_grouped_matmul(x, w, sizes, INT8), x, w, dy)[1]
    want = pulled(lambda x, w: grouped_matmul(x, w, sizes), x, w, dy)[1]
    assert not jnp.array_equal(draws[0], draws[1])
    assert relative_error(jnp.mean(draws, axis=0), want) < relative_error(nearest, want)


def test_hardware_without_the_format_is_refused_with_the_reason():
    x, w, dy = arrays()
    policy = KernelPolicy(hardware=Hardware.parse("tpu-v5e-8"))
    sizes = jnp.asarray(SIZES)
    with pytest.raises(
        KernelError, match=r"no kernel can serve quantized_dot\(lhs float8"
    ) as error:
        pulled(lambda x, w: quantized_grouped_matmul(x, w, sizes, FLOAT8), x, w, dy, policy)
    assert "float8" in str(error.value).partition("\n")[2]


@pytest.mark.parametrize(
    ("change", "amaxes", "message"),
    [
        ({"x": jnp.ones((40, 23))}, None, r"quantized_grouped_matmul: x RD \(40, 23\)"),
        ({"w": jnp.ones((4, 24, 20), jnp.bfloat16)}, None, r"dtypes are x float32 and w bfloat16"),
        ({"sizes": jnp.ones(4)}, None, r"group_sizes are float32; expected integers"),
        ({}, Amaxes(*[jnp.ones(3)] * 4), r"amaxes.inputs is float32\[3\]; expected float32\[4\]"),
        ({"spec": INT8}, Amaxes(*[jnp.ones(4)] * 4), r"amaxes are given for operands with a sca"),
    ],
)
def test_misfits_are_named(change, amaxes, message):
    x, w, _ = arrays()
    given = {"x": x, "w": w, "sizes": jnp.asarray(SIZES), "spec": FLOAT8, **change}
    with pytest.raises(KernelError, match=message):
        quantized_grouped_matmul(*given.values(), amaxes=amaxes)
