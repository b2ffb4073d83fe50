"""Numbers in fewer bits, exp and tanh, as kernels have them, are those of numpy."""

from collections.abc import Callable

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_cpu.kernels.decode_attention.api import cpu_decode_attention
from axl_cpu.llvm.host_call import host_call
from axl_cpu.llvm.numbers import INT4_FACTORS, exp, tanh, widened
from other_processors import RUNNING_HERE, on

from axcore.ops.decode_attention.kernels import decode_attention_reference
from axcore.testing.contracts import DecodeTestCase


@attrs.frozen
class Mapped:
    """The numbers of `x [N]` through a function of vectors, `y [num_results, N]`."""

    name: str
    function: Callable
    dtype: str = "float32"

    def emit_num_parts(self, e, buffers, threads):
        return e.whole(1)

    def emit_part(self, e, buffers, part, parts):
        count = buffers.size(0, 0)

        def body(i, _):
            vectors = self.function(e, e.at(buffers.argument(0), i, self.dtype))
            for index, vector in enumerate(vectors):
                at = e.add(e.mul(count, index), i)
                e.store(vector, e.at(buffers.result(0), at))
            return ()

        e.loop(0, count, e.lanes, (), body)


@pytest.fixture(params=RUNNING_HERE, ids=lambda one: one.name)
def mapped(request):
    """Return a function that gives what a kernel makes of numbers, on some processor."""

    def call(name, function, x, *, dtype="float32", num_results=1):
        result = jax.ShapeDtypeStruct((num_results, len(x)), jnp.float32)
        kernel = Mapped(f"test_{name}", function, dtype)
        run = on(request.param, lambda: host_call(kernel, (jnp.asarray(x),), result))
        return np.asarray(run())

    return call


WIDENED = {
    dtype: lambda e, at, dtype=dtype: widened(e, at, dtype)
    for dtype in ("bfloat16", "float16", "float8_e4m3fn", "int8", "int4")
}
"""One function by dtype, as a kernel's name is registered once."""


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "int8"])
def test_every_narrow_number_becomes_what_it_is(mapped, dtype):
    bits = np.arange(1 << (8 * jnp.dtype(dtype).itemsize))
    numbers = bits.astype(f"uint{8 * jnp.dtype(dtype).itemsize}").view(jnp.dtype(dtype))
    (wide,) = mapped(dtype, WIDENED[dtype], numbers, dtype=dtype)
    wanted = numbers.astype(np.float32)
    np.testing.assert_array_equal(wide, wanted)
    np.testing.assert_array_equal(np.signbit(wide), np.signbit(wanted))


def test_both_numbers_of_every_byte_are_integers_of_four_bits(mapped):
    codes = np.arange(256, dtype=np.uint8)
    halves = mapped("int4", WIDENED["int4"], codes, dtype="int4", num_results=2)
    parts = zip(halves, INT4_FACTORS, (codes & 15, codes >> 4), strict=True)
    for wide, factor, nibbles in parts:
        np.testing.assert_array_equal(wide * factor, nibbles - 16.0 * (nibbles > 7))


def one(function):
    return lambda e, at: [function(e, e.load_vector(at))]


EXP, TANH = one(exp), one(tanh)


def test_exp_is_that_of_numpy_to_two_units_in_the_last_place(mapped):
    x = np.linspace(-87, 88, 1 << 16, dtype=np.float32)
    (y,) = mapped("exp", EXP, x)
    wanted = np.exp(x.astype(np.float64))
    assert np.max(np.abs(y - wanted) / np.spacing(wanted.astype(np.float32))) <= 2


def test_exp_stays_finite_and_is_1_at_0(mapped):
    x = np.resize(np.array([0, -0.0, 1e-40, -1e30, -np.inf, 1e30, np.inf, -88], np.float32), 16)
    (y,) = mapped("exp", EXP, x)
    small, large = np.exp(np.float32([-87, 88]))
    np.testing.assert_array_equal(y[:3], 1)
    np.testing.assert_allclose(y[3:8], [small, small, large, large, small], rtol=3e-7)


def test_tanh_is_that_of_numpy_to_rounding_at_1(mapped):
    x = np.concatenate([np.linspace(-20, 20, (1 << 16) - 16), np.resize([1e30, -np.inf], 16)])
    (y,) = mapped("tanh", TANH, x.astype(np.float32))
    assert np.max(np.abs(y - np.tanh(x.astype(np.float32).astype(np.float64)))) <= 2**-22


@pytest.mark.parametrize(("name", "function"), [("exp", EXP), ("tanh", TANH)])
def test_what_is_no_number_stays_none(mapped, name, function):
    (y,) = mapped(name, function, np.resize(np.array([np.nan, 1], np.float32), 16))
    np.testing.assert_array_equal(np.isnan(y), [True, False] * 8)


@pytest.mark.parametrize("field", ["q_BTNH", "k", "v"])
def test_attention_hides_no_number_that_is_none(field):
    """So that a fault before it shows, as it does by the op's reference."""
    inputs, spec = DecodeTestCase(name="nan").make()
    spoilt = getattr(inputs, field).at[0, 0, 0, 0].set(jnp.nan)
    inputs = inputs._replace(**{field: spoilt})
    got, want = (
        np.isnan(f(inputs, spec)) for f in (cpu_decode_attention, decode_attention_reference)
    )
    assert np.any(want)
    np.testing.assert_array_equal(got, want)
