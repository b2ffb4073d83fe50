"""Quantized dots: their distance from float32, which products are quantized, where they run."""

import re

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from rounding import assert_same_to_rounding

from axcore.errors import KernelError
from axcore.ops import (
    Amaxes,
    KernelPolicy,
    Quantization,
    QuantizedDotSpec,
    quantize_input,
    quantized_dot,
    recording_choices,
    use_policy,
)
from axcore.ops.quantized.contract import E4M3, E5M2, FLOAT8, INT8, INT8_CHANNELS
from axcore.ops.quantized.quantize import quantized
from axcore.plugins import Hardware
from axcore.testing import KernelSuite

EMULATED = KernelPolicy(hardware=Hardware.parse("cpu-1"), pins={"quantized_dot": "emulated"})
STOCHASTIC = QuantizedDotSpec(
    inputs=INT8_CHANNELS,
    weights=INT8_CHANNELS,
    gradients=Quantization(format="int8", per="channel", is_stochastic=True),
)
SPECS = {"int8": INT8, "float8": FLOAT8}


@pytest.mark.quick_one_in(6)
class TestKernels(KernelSuite):
    """On a CPU, XLA converts float8 to multiply it, which gives what a matrix unit would."""

    plugin = "core"
    keys = ("quantized_dot/int8", "quantized_dot/float8")
    case_names = ("int8_odd", "int8_zeros", "float8_odd", "float8_zeros", "float8_delayed")

    def implementation(self, kernel):
        return kernel.forward.resolve()


@pytest.fixture
def operands():
    numbers = np.random.default_rng(0)
    x, w, dy = (numbers.normal(size=shape) for shape in ((4, 6, 48), (48, 20), (4, 6, 20)))
    return tuple(jnp.asarray(array, jnp.float32) for array in (x, w / 7, dy))


def value_and_gradients(function, x, w, dy):
    def run(x, w, dy):
        y, pull = jax.vjp(function, x, w)
        return (y, *pull(dy))

    return jax.jit(run)(x, w, dy)


def by(spec, **options):
    return lambda x, w: quantized_dot(x, w, spec, **options)


def in_policy(policy, function, *args):
    with use_policy(policy):
        return function(*args)


def wide(x, w):
    return jnp.einsum("...k,kn->...n", x, w, precision="highest")


# -- How far from float32 ----------------------------------------------------------------------


@pytest.mark.slow
def test_int8_error_is_within_half_a_step_of_every_operand(operands):
    """Each of the three products errs by no more than its operands' rounding adds up to."""
    x, w, dy = operands
    got = value_and_gradients(by(INT8), x, w, dy)
    expected = value_and_gradients(wide, x, w, dy)
    rows, grads = x.reshape(-1, 48), dy.reshape(-1, 20)
    for one, other, lhs, rhs in (
        (got[0], expected[0], rows, w),
        (got[1], expected[1], grads, w.T),
        (got[2], expected[2], rows.T, grads),
    ):
        half_lhs = jnp.abs(lhs).max(1, keepdims=True) / 254
        half_rhs = jnp.abs(rhs).max(0, keepdims=True) / 254
        bound = half_lhs * jnp.abs(rhs).sum(0, keepdims=True)
        bound += jnp.abs(lhs).sum(1, keepdims=True) * half_rhs
        bound += lhs.shape[1] * half_lhs * half_rhs + 1e-4
        error = jnp.abs(one - other).reshape(bound.shape)
        assert (error <= bound).all()
        assert 1e-3 < float(jnp.linalg.norm(one - other) / jnp.linalg.norm(other)) < 0.015


@pytest.mark.parametrize("amaxes", [None, (8.0, 1.0, 8.0, 0.0)])
def test_float8_error_is_within_half_a_unit_in_the_last_place_of_every_operand(operands, amaxes):
    """float8_e4m3fn has three bits after the leading one, float8_e5m2 two."""
    x, w, dy = operands
    given = None if amaxes is None else Amaxes(*map(jnp.float32, amaxes))
    with use_policy(EMULATED):
        got = value_and_gradients(by(FLOAT8, amaxes=given), x, w, dy)
    expected = value_and_gradients(wide, x, w, dy)
    magnitudes = value_and_gradients(wide, *map(jnp.abs, operands))
    shares = (2**-4 + 2**-4 + 2**-8, 2**-3 + 2**-4 + 2**-7, 2**-3 + 2**-4 + 2**-7)
    for one, other, most, share in zip(got, expected, magnitudes, shares, strict=True):
        assert (jnp.abs(one - other) <= share * most + 1e-3).all()
        assert 1e-2 < float(jnp.linalg.norm(one - other) / jnp.linalg.norm(other)) < 0.07


@pytest.mark.parametrize("how", [E4M3, E5M2])
@pytest.mark.parametrize("power", [-40, -6, 0, 9])
def test_float8_keeps_what_it_can_hold_exactly(how, power):
    """Scales are powers of two, so scaling rounds nothing."""
    held = jnp.array([1.0, -1.25, 1.75, 0.5, 0.0, 6.0])
    x = held * 2.0**power
    narrow = quantized(x, how, (0,))
    np.testing.assert_array_equal(narrow.values.astype(jnp.float32) * narrow.scale, x)


def test_int8_keeps_what_it_can_hold_exactly():
    x = jnp.array([[127.0, -3.0, 64.0], [0.0, 0.0, 0.0]]) * 2.0**-5
    narrow = quantized(x, INT8_CHANNELS, (1,))
    np.testing.assert_array_equal(narrow.values[0], [127, -3, 64])
    np.testing.assert_array_equal(narrow.values.astype(jnp.float32) * narrow.scale, x)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("magnitude", [1e-25, 1e30])
def test_magnitude_does_not_matter(operands, name, magnitude):
    x, w, _ = operands
    with use_policy(EMULATED):
        y = jax.jit(by(SPECS[name]))(x * magnitude, w)
    expected = wide(x, w)
    assert float(jnp.linalg.norm(y / magnitude - expected) / jnp.linalg.norm(expected)) < 0.07


def test_sums_of_many_products_stay_within_int32():
    """All at the largest, so many int8 would add up to four times what int32 holds."""
    num = 600_000
    y = jax.jit(by(INT8))(jnp.ones((1, num)), jnp.ones((num, 1)))
    assert float(y[0, 0]) == pytest.approx(num, rel=1e-6)


def test_one_vector_is_a_row(operands):
    x, w, dy = operands
    row = value_and_gradients(by(INT8), x[0, 0], w, dy[0, 0])
    matrix = value_and_gradients(by(INT8), x[0, :1], w, dy[0, :1])
    for one, other in zip(row, matrix, strict=True):
        np.testing.assert_allclose(one, other.reshape(one.shape), rtol=1e-6)


@pytest.mark.parametrize("place", [(), (0, 0)])
def test_a_narrow_input_that_is_given_gives_what_one_made_here_gives(operands, place):
    x, w, dy = operands
    x, dy = x[place], dy[place]
    shared = lambda x, w: quantized_dot(x, w, FLOAT8, quantized_x=quantize_input(x, FLOAT8))  # noqa: E731
    with use_policy(EMULATED):
        given = value_and_gradients(shared, x, w, dy)
        made_here = value_and_gradients(by(FLOAT8), x, w, dy)
    assert_same_to_rounding(given, made_here)


@pytest.mark.parametrize("bad", [jnp.inf, -jnp.inf, jnp.nan])
@pytest.mark.parametrize(
    ("name", "has_amaxes"), [("int8", False), ("float8", False), ("float8", True)]
)
def test_what_is_not_finite_is_not_passed_off_as_a_number(operands, name, bad, has_amaxes):
    """A trainer sees that the step went wrong, in the output and in either gradient."""
    given = Amaxes(*map(jnp.float32, (4.0, 1.0, 4.0, 0.0))) if has_amaxes else None
    x, w, dy = operands
    with use_policy(EMULATED):
        run = by(SPECS[name], amaxes=given)
        assert not jnp.isfinite(jax.jit(run)(x.at[1, 2, 3].set(bad), w)[1, 2]).any()
        _, dx, dw = value_and_gradients(run, x, w, dy.at[1, 2, 3].set(bad))
    assert not jnp.isfinite(dx[1, 2]).any()
    assert not jnp.isfinite(dw[:, 3]).any()


# -- Which products are quantized
# -------------------------------------------------------------------


def products(jaxpr):
    """Yields the dtypes of both operands of every matrix product, those in inner jaxprs too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield tuple(variable.aval.dtype.name for variable in equation.invars)
        for inner in jaxprs_in_params(equation.params):
            yield from products(inner)


def products_of_a_step(spec, dtype):
    x, w = jnp.ones((2, 3, 8), dtype), jnp.ones((8, 4), dtype)

    def loss(x, w):
        return jnp.sum(quantized_dot(x, w, spec).astype(jnp.float32))

    policy = KernelPolicy(hardware=Hardware(family="acme", features={"int8", "float8"}))
    with use_policy(policy), recording_choices() as choices:
        step = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(x, w)
    plan = {str(one.call.feature("product")): one.kernel.name for one in choices}
    return list(products(step.jaxpr)), plan


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_three_products_are_narrow(dtype):
    found, plan = products_of_a_step(INT8, dtype)
    assert found == [("int8", "int8")] * 3
    assert plan == dict.fromkeys(("forward", "input_gradient", "weight_gradient"), "int8")
    found, _ = products_of_a_step(FLOAT8, dtype)
    assert found == [
        ("float8_e4m3fn", "float8_e4m3fn"),
        ("float8_e5m2", "float8_e4m3fn"),
        ("float8_e4m3fn", "float8_e5m2"),
    ]


@pytest.mark.parametrize("name", SPECS)
def test_weight_gradient_can_stay_wide(operands, name):
    spec = attrs.evolve(SPECS[name], weight_gradient=False)
    found, _ = products_of_a_step(spec, "bfloat16")
    assert found[2:] == [("bfloat16", "bfloat16")]
    x, w, dy = operands
    with use_policy(EMULATED):
        _, _, dw = value_and_gradients(by(spec), x, w, dy)
    np.testing.assert_allclose(dw, value_and_gradients(wide, x, w, dy)[2], rtol=1e-4, atol=1e-4)


# -- Amaxes that are given -----------------------------------------------------------------------


@pytest.mark.slow
def test_gradient_of_seen_is_the_largest_magnitude_of_the_output_gradient(operands):
    x, w, dy = operands

    def loss(seen, scale):
        amaxes = Amaxes(*map(jnp.float32, (4.0, 1.0, 4.0)), seen)
        first = quantized_dot(x, w, FLOAT8, amaxes=amaxes)
        second = quantized_dot(2 * x, w, FLOAT8, amaxes=amaxes)
        return jnp.sum(first * dy) + scale * jnp.sum(second * dy)

    with use_policy(EMULATED):
        got = [float(jax.grad(loss)(jnp.float32(0), jnp.float32(scale))) for scale in (0, 3)]
    largest = float(jnp.abs(dy).max())
    assert got == pytest.approx([largest, 4 * largest])


@pytest.mark.slow
def test_what_exceeds_a_given_amax_is_clipped():
    x, w = jnp.array([[3.0, -100.0]]), jnp.eye(2)
    amaxes = Amaxes(*map(jnp.float32, (4.0, 1.0, 1.0, 0.0)))
    with use_policy(EMULATED):
        y = quantized_dot(x, w, FLOAT8, amaxes=amaxes)
    np.testing.assert_array_equal(y, [[3.0, -7.0]])  # 448 times 2^-6, the power not below 4/448


# -- Stochastic rounding -------------------------------------------------------------------------


@pytest.mark.slow
def test_stochastic_rounding_is_right_in_the_mean(operands):
    x, w, dy = operands

    def gradient(key):
        return jax.vjp(by(STOCHASTIC, key=key), x, w)[1](dy)[0]

    keys = jax.random.split(jax.random.key(0), 400)
    each = jax.jit(jax.vmap(gradient))(keys)
    to_nearest = jax.vjp(by(INT8), x, w)[1](dy)[0]
    exact = jax.vjp(lambda x: wide(x, _rounded(w, 1)), x)[1](dy)[0]
    error = lambda got: float(jnp.linalg.norm(got - exact))  # noqa: E731
    assert error(each.mean(0)) < 0.2 * error(to_nearest)
    assert error(each[0]) > error(to_nearest)
    assert_same_to_rounding(each[0], jax.jit(gradient)(keys[0]))
    assert (each[0] != each[1]).any()


def _rounded(w, axis):
    narrow = quantized(w, INT8_CHANNELS, (axis,))
    return narrow.values.astype(jnp.float32) * narrow.scale


def test_without_a_key_it_rounds_to_nearest(operands):
    x, w, dy = operands
    got = value_and_gradients(by(STOCHASTIC), x, w, dy)
    assert_same_to_rounding(got, value_and_gradients(by(INT8), x, w, dy))


# -- Where it runs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "target", "kernel"),
    [
        ("int8", "cpu-1", "int8"),
        ("int8", "tpu-v5e-8", "int8"),
        ("int8", "tpu-v5p-8", "int8"),
        ("float8", "gpu-h100-8", "float8"),
        ("float8", "gpu-b200-8", "float8"),
    ],
)
def test_hardware_that_knows_the_format_takes_it(operands, name, target, kernel):
    policy = KernelPolicy(hardware=Hardware.parse(target))
    x, w, _ = operands
    with use_policy(policy), recording_choices() as choices:
        jax.eval_shape(by(SPECS[name]), x, w)
    assert {one.kernel.name for one in choices} == {kernel}


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("float8", "cpu-1"),
        ("float8", "tpu-v5p-8"),
        ("float8", "gpu-a100-8"),
        ("int8", "trainium-trn2-16"),
    ],
)
def test_hardware_that_lacks_the_format_is_refused_with_the_reason(operands, name, target):
    x, w, _ = operands
    reason = re.escape(f"(core) no: wants {name}, which {target} does not have")
    with (
        use_policy(KernelPolicy(hardware=Hardware.parse(target))),
        pytest.raises(KernelError, match=reason) as caught,
    ):
        jax.eval_shape(by(SPECS[name]), x, w)
    assert re.search(r"emulated +\w+ +\(core\) fits; runs only when pinned", str(caught.value))
    assert 'pin one: pins={"quantized_dot": "emulated"}' in str(caught.value)


@pytest.mark.parametrize("target", ["cpu-1", "tpu-v5p-8"])
def test_emulation_serves_where_it_is_pinned(operands, target):
    pins = {"quantized_dot": "emulated"}
    policy = KernelPolicy(hardware=Hardware.parse(target), pins=pins)
    x, w, _ = operands
    with recording_choices() as choices:
        y = in_policy(policy, by(FLOAT8), x, w)
    assert float(jnp.linalg.norm(y - wide(x, w)) / jnp.linalg.norm(wide(x, w))) < 0.07
    assert {one.why for one in choices} == {"pinned"}


def test_pin_to_hardware_that_lacks_the_format_is_refused(operands):
    policy = KernelPolicy(hardware=Hardware.parse("cpu-1"), pins={"quantized_dot": "float8"})
    x, w, _ = operands
    with pytest.raises(KernelError, match=r"pinned to float8, which cannot serve .*wants float8"):
        in_policy(policy, by(FLOAT8), x, w)


def test_formats_that_no_matrix_unit_multiplies_are_refused(operands):
    x, w, _ = operands
    policy = KernelPolicy(hardware=Hardware(family="acme", features={"int8", "float8"}))
    mixed = QuantizedDotSpec(inputs=INT8_CHANNELS, weights=E4M3, gradients=E5M2)
    with pytest.raises(KernelError, match="multiplies int8, not float8_e4m3fn and int8"):
        in_policy(policy, by(mixed), x, w)
    ranged = QuantizedDotSpec(inputs=E5M2, weights=E5M2, gradients=E5M2)
    with pytest.raises(KernelError, match="multiplies no float8_e5m2 by another"):
        in_policy(policy, by(ranged), x, w)


# -- Bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "w", "text"),
    [
        (jnp.ones((2, 3)), jnp.ones((4, 5)), r"x has shape \(2, 3\) and w \(4, 5\); expected \["),
        (jnp.ones(()), jnp.ones((4, 5)), r"x has shape \(\) and w"),
        (jnp.ones((2, 4)), jnp.ones((1, 4, 5)), r"w \(1, 4, 5\)"),
        (jnp.ones((2, 4)), jnp.ones((4, 5), jnp.bfloat16), "x float32 and w bfloat16; expected"),
        (jnp.ones((2, 4), int), jnp.ones((4, 5), int), "x int32 and w int32; expected one of"),
    ],
)
def test_misfits_are_named(x, w, text):
    with pytest.raises(KernelError, match=text):
        quantized_dot(x, w, INT8)


def test_amaxes_that_do_not_fit_are_named(operands):
    x, w, _ = operands
    scalars = Amaxes(*map(jnp.float32, (1.0, 1.0, 1.0, 0.0)))
    with pytest.raises(KernelError, match="given for operands with a scale per channel"):
        quantized_dot(x, w, INT8, amaxes=scalars)
    with pytest.raises(KernelError, match=r"amaxes.weights is float32\[2\]; expected a float32 sc"):
        quantized_dot(x, w, FLOAT8, amaxes=scalars._replace(weights=jnp.ones(2)))


def test_a_narrow_input_that_does_not_fit_is_named(operands):
    x, w, _ = operands
    narrow = quantize_input(x, FLOAT8)
    with pytest.raises(KernelError, match="quantized_x is given for an input with a scale per"):
        quantized_dot(x, w, INT8, quantized_x=narrow)
    with pytest.raises(
        KernelError, match=r"quantized_x is float8_e4m3fn\[4, 6, 48\]; expected .*\[6, 48"
    ):
        quantized_dot(x[0], w, FLOAT8, quantized_x=narrow)


def test_choices_that_do_not_exist_are_named():
    with pytest.raises(KernelError, match="no format is named 'int4'; there are int8, float8_e4"):
        Quantization(format="int4", per="tensor")
    with pytest.raises(KernelError, match="per channel or per tensor, not per 'block'"):
        Quantization(format="int8", per="block")
    with pytest.raises(KernelError, match="float8_e5m2 is rounded to nearest"):
        Quantization(format="float8_e5m2", per="tensor", is_stochastic=True)


@pytest.mark.parametrize("name", SPECS)
def test_no_rows_give_no_output_and_zero_gradients(name):
    with use_policy(EMULATED):
        y, dx, dw = value_and_gradients(
            by(SPECS[name]), jnp.zeros((0, 4)), jnp.ones((4, 3)), jnp.zeros((0, 3))
        )
    assert y.shape == (0, 3)
    assert dx.shape == (0, 4)
    np.testing.assert_array_equal(dw, jnp.zeros((4, 3)))
