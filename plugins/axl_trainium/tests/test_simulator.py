"""The simulator computes what numpy does, shows what was never written, and knows the limits."""

import numpy as np
import pytest
from axl_trainium.simulator import isa as nisa
from axl_trainium.simulator import jit
from axl_trainium.simulator import language as nl

from axcore.errors import KernelError

NUMBERS = np.random.default_rng(0)
X = NUMBERS.standard_normal((8, 12)).astype(np.float32)
Y = NUMBERS.standard_normal((8, 12)).astype(np.float32)
COLUMN = NUMBERS.standard_normal((8, 1)).astype(np.float32)


def run(body, *arrays, shape=X.shape, dtype=nl.float32):
    """Run `body(dst, *tiles)` on arrays in SBUF and return what it wrote to `dst`."""

    @jit
    def kernel(*tensors):
        tiles = [load(tensor) for tensor in tensors]
        dst = tile(shape, dtype)
        body(dst, *tiles)
        out = nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=dst)
        return out

    return kernel(*arrays)


def load(tensor):
    dst = tile(tensor.shape, tensor.dtype)
    nisa.dma_copy(dst=dst, src=tensor)
    return dst


def tile(shape, dtype=nl.float32, buffer=nl.sbuf):
    return nl.ndarray(shape, dtype=dtype, buffer=buffer)


def in_psum(x):
    dst = tile(x.shape, x.dtype, nl.psum)
    nisa.tensor_copy(dst=dst, src=x)
    return dst


@pytest.mark.parametrize(
    ("op", "function"),
    [
        (nl.copy, lambda x: x),
        (nl.exp, np.exp),
        (nl.tanh, np.tanh),
        (nl.square, np.square),
    ],
)
def test_activation_scales_shifts_applies_and_sums(op, function):
    def body(dst, x, bias):
        total = tile((8, 1))
        nisa.activation(
            dst=dst,
            op=op,
            data=x,
            scale=0.5,
            bias=bias,
            reduce_op=nl.add,
            reduce_res=total,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )
        nisa.tensor_scalar(dst=dst, data=dst, op0=nl.add, operand0=total)

    result = function(X * 0.5 + COLUMN)
    expected = result + result.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(run(body, X, COLUMN), expected, rtol=1e-5)


@pytest.mark.parametrize(("op", "function"), [(nl.log, np.log), (nl.rsqrt, lambda x: x**-0.5)])
def test_activation_of_positive_numbers(op, function):
    body = lambda dst, x: nisa.activation(dst=dst, op=op, data=x)  # noqa: E731
    np.testing.assert_allclose(run(body, np.abs(X)), function(np.abs(X)), rtol=1e-6)


def test_binary_instructions_take_operands_in_the_order_that_is_asked_for():
    def body(dst, x, y, column):
        nisa.tensor_tensor(dst=dst, data1=x, data2=y, op=nl.subtract)
        nisa.scalar_tensor_tensor(
            dst=dst,
            data=dst,
            op0=nl.subtract,
            operand0=column,
            op1=nl.maximum,
            operand1=y,
            reverse0=True,
        )
        nisa.tensor_scalar(
            dst=dst,
            data=dst,
            op0=nl.multiply,
            operand0=2.0,
            op1=nl.subtract,
            operand1=column,
            reverse1=True,
        )

    expected = COLUMN - 2 * np.maximum(COLUMN - (X - Y), Y)
    np.testing.assert_allclose(run(body, X, Y, COLUMN), expected, rtol=1e-6)


@pytest.mark.parametrize("op", [nl.add, nl.maximum, nl.minimum])
def test_reduction_is_over_columns(op):
    def body(dst, x):
        nisa.tensor_reduce(dst=dst, op=op, data=x, axis=1, negate=True, keepdims=True)

    expected = -op.reduce(X, axis=1, keepdims=True)
    np.testing.assert_allclose(run(body, X, shape=(8, 1)), expected, rtol=1e-6)


def test_products_sum_over_partitions_and_accumulate():
    def body(dst, x, y):
        total = tile((12, 12), buffer=nl.psum)
        nisa.nc_matmul(dst=total, stationary=x, moving=y, accumulate=False)
        nisa.nc_matmul(dst=total, stationary=y, moving=x, accumulate=True)
        nisa.tensor_copy(dst=dst, src=total)

    result = run(body, X, Y, shape=(12, 12))
    np.testing.assert_allclose(result, X.T @ Y + Y.T @ X, rtol=1e-4, atol=1e-5)


def test_transposition_and_reciprocal():
    def body(dst, x):
        transposed = tile((12, 8), buffer=nl.psum)
        nisa.nc_transpose(dst=transposed, data=x)
        nisa.reciprocal(dst=dst, data=transposed)

    np.testing.assert_allclose(run(body, X, shape=(12, 8)), 1 / X.T, rtol=1e-6)


def test_range_select_keeps_a_range_of_each_row_and_finds_its_maximum():
    lower = np.arange(8, dtype=np.float32)[:, None]
    upper = lower + 3

    def body(dst, x, lower, upper):
        most = tile((8, 1))
        nisa.range_select(
            dst=dst,
            on_true_tile=x,
            comp_op0=nl.greater_equal,
            comp_op1=nl.less,
            bound0=lower,
            bound1=upper,
            reduce_res=most,
            range_start=2,
        )
        nisa.tensor_scalar(dst=dst, data=dst, op0=nl.maximum, operand0=most)

    place = np.arange(12)[None, :] + 2
    kept = np.where((place >= lower) & (place < upper), X, np.finfo(np.float32).min)
    expected = np.maximum(kept, kept.max(axis=1, keepdims=True))
    np.testing.assert_array_equal(run(body, X, lower, upper), expected)


def test_iota_counts_along_columns_and_partitions():
    def body(dst):
        nisa.iota(dst=dst, pattern=[[2, 12]], offset=5, channel_multiplier=100)

    expected = 5 + 2 * np.arange(12)[None, :] + 100 * np.arange(8)[:, None]
    np.testing.assert_array_equal(run(body, dtype=nl.int32), expected)


def test_results_are_rounded_to_the_tile_and_memset_fills():
    def body(dst):
        nisa.memset(dst=dst, value=1.001)

    assert run(body, dtype=nl.bfloat16).astype(np.float32).tolist() == np.ones(X.shape).tolist()


def test_ap_strides_repeats_and_starts_where_the_loop_is():
    @jit
    def kernel(x):
        out = nl.ndarray((3, 2, 4), dtype=nl.float32, buffer=nl.shared_hbm)

        def body(i):
            part = tile((2, 4))
            source = x.ap(pattern=[[0, 2], [2, 4]], offset=1, scalar_offset=i, indirect_dim=0)
            nisa.dma_copy(dst=part, src=source)
            target = out.ap(pattern=[[4, 2], [1, 4]], scalar_offset=i)
            nisa.dma_copy(dst=target, src=part)

        nl.fori_loop(0, 3, body)
        return out

    x = np.arange(24, dtype=np.float32).reshape(3, 8)
    np.testing.assert_array_equal(kernel(x), np.stack([x[:, 1::2]] * 2, axis=1))


# -- What was never written ------------------------------------------------------------------


def test_reading_what_was_never_written_is_refused():
    def body(dst, x):
        half = tile((8, 12))
        nisa.tensor_copy(dst=half[:, 0:6], src=x[:, 0:6])
        nisa.tensor_copy(dst=dst, src=half)

    with pytest.raises(KernelError, match=r"element \(0, 6\) of a tile \(8, 12\) in sbuf that was"):
        run(body, X)


def test_returning_what_was_never_written_is_refused():
    @jit
    def kernel():
        return nl.ndarray((4, 4), dtype=nl.float32, buffer=nl.shared_hbm)

    with pytest.raises(KernelError, match="the kernel's return reads element"):
        kernel()


@pytest.mark.parametrize(("dtype", "is_poison"), [(nl.bfloat16, np.isnan), (nl.int32, np.all)])
def test_new_memory_is_poisoned(dtype, is_poison):
    seen = []
    run(lambda dst: (seen.append(dst.values.copy()), nisa.memset(dst=dst, value=0)), dtype=dtype)
    assert is_poison(seen[0]).all()


# -- Limits ----------------------------------------------------------------------------------


def refuse(text, body, *arrays, **sizes):
    with pytest.raises(KernelError, match=text):
        run(body, *arrays, **sizes)


@pytest.mark.parametrize(
    ("shape", "buffer", "text"),
    [
        ((129, 1), nl.sbuf, r"129 partitions; there are 128"),
        ((1, 49153), nl.sbuf, r"196612 bytes of each partition of sbuf, where 48 of 196608"),
        ((1, 513), nl.psum, r"2052 bytes of each partition of psum; a bank has 2048"),
        ((4,), nl.sbuf, r"expected two or more sizes"),
    ],
)
def test_memories_have_an_end(shape, buffer, text):
    refuse(text, lambda dst: tile(shape, buffer=buffer))


def test_psum_has_eight_banks_and_takes_them_back():
    def body(dst):
        for _ in range(20):
            tile((8, 512), buffer=nl.psum)
        nisa.memset(dst=dst, value=0)
        kept = [tile((8, 1), buffer=nl.psum) for _ in range(8)]
        tile((8, len(kept)), buffer=nl.psum)

    refuse("all 8 banks are in use", body)


def test_sbuf_is_given_back():
    def body(dst):
        for _ in range(20):
            tile((128, 40000))
        nisa.memset(dst=dst, value=1)

    assert (run(body) == 1).all()


def wide(rows, columns, dtype=np.float32):
    return np.ones((rows, columns), dtype)


@pytest.mark.parametrize(
    ("x", "y", "text"),
    [
        (wide(8, 129), wide(8, 4), "stationary has 129 columns; at most 128"),
        (wide(8, 4), wide(8, 513), "moving has 513 columns; at most 512"),
        (wide(8, 4), wide(9, 4), "stationary has 8 partitions and moving 9"),
        (wide(8, 4, np.int32), wide(8, 4), "stationary is int32; expected floats"),
        (wide(8, 4, np.float16), wide(8, 4), "float32 goes with float32 only"),
    ],
)
def test_products_have_limits(x, y, text):
    def body(dst, x, y):
        total = tile((min(x.shape[1], 128), min(y.shape[1], 512)), buffer=nl.psum)
        nisa.nc_matmul(dst=total, stationary=x, moving=y, accumulate=False)

    refuse(text, body, x, y)


def product(_, x, **choices):
    total = tile((12, 12), buffer=nl.psum)
    nisa.nc_matmul(**{"dst": total, "stationary": x, "moving": x, "accumulate": False} | choices)


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("dst is in sbuf; the engine reaches psum", lambda d, x: product(d, x, dst=tile((12, 12)))),
        (
            "moving is in psum; the engine reaches sbuf",
            lambda d, x: product(d, x, moving=in_psum(x)),
        ),
        ("say whether dst is added to", lambda d, x: product(d, x, accumulate=None)),
        ("does not know is_transpose", lambda d, x: product(d, x, is_transpose=True)),
        ("reads element .* in psum", lambda d, x: product(d, x, accumulate=True)),
        (
            "dst is bfloat16; products are summed in float32",
            lambda d, x: product(d, x, dst=tile((12, 12), nl.bfloat16, nl.psum)),
        ),
        (
            "nc_matmul gives",
            lambda d, x: product(d, x, dst=tile((12, 11), buffer=nl.psum)),
        ),
        (
            "data1 and data2 are both in psum",
            lambda d, x: nisa.tensor_tensor(dst=d, data1=in_psum(x), data2=in_psum(x), op=nl.add),
        ),
        (
            "shapes differ: data1",
            lambda d, x: nisa.tensor_tensor(dst=d, data1=x, data2=x[:, 0:1], op=nl.add),
        ),
        (
            r"operand0 is float32 \(8, 12\); expected float32 \(8, 1\)",
            lambda d, x: nisa.tensor_scalar(dst=d, data=x, op0=nl.add, operand0=x),
        ),
        (
            "op is exp; expected one of add",
            lambda d, x: nisa.tensor_tensor(dst=d, data1=x, data2=x, op=nl.exp),
        ),
        ("op is add; expected one of copy", lambda d, x: nisa.activation(dst=d, op=nl.add, data=x)),
        (
            "reduce_cmd is idle; expected reset_reduce",
            lambda d, x: nisa.activation(
                dst=d, op=nl.exp, data=x, reduce_op=nl.add, reduce_res=tile((8, 1))
            ),
        ),
        (
            "axis=1 with keepdims=True, not 0",
            lambda d, x: nisa.tensor_reduce(dst=d, op=nl.add, data=x, axis=0, keepdims=True),
        ),
        (
            "data is float32 and dst bfloat16",
            lambda d, x: nisa.nc_transpose(dst=tile((12, 8), nl.bfloat16, nl.psum), data=x),
        ),
        (
            "src is float32 and dst bfloat16",
            lambda d, x: nisa.dma_copy(dst=tile((8, 12), nl.bfloat16), src=x),
        ),
        (
            "src is in psum; the engine reaches shared_hbm or sbuf",
            lambda d, x: nisa.dma_copy(dst=d, src=in_psum(x)),
        ),
        ("missing a required argument: 'data'", None),
        ("sliced 0:13 where it has 12", lambda d, x: x[:, 0:13]),
        ("begins at partition 3; engines begin at multiples of 32", lambda d, x: x[3:5]),
        ("indexed by 3; expected slices", lambda d, x: x[3]),
        ("asked whether a tensor is true", lambda d, x: x and d),
        ("known on the chip only; arithmetic", lambda d, x: nl.fori_loop(0, 2, lambda i: i + 1)),
        (
            "known on the chip only; arithmetic",
            lambda d, x: nl.fori_loop(0, 2, lambda i: x[:, 0:i]),
        ),
    ],
)
def test_what_the_hardware_cannot_do_is_refused(text, body):
    if body is None:
        with pytest.raises(TypeError, match=text):
            run(lambda dst, x: nisa.nc_transpose(dst=dst), X)
    else:
        refuse(text, body, X)


def test_arguments_cannot_be_written_and_must_have_a_known_dtype():
    @jit
    def kernel(x):
        nisa.dma_copy(dst=x, src=x)

    with pytest.raises(KernelError, match="writes to an argument"):
        kernel(X)
    with pytest.raises(KernelError, match="given float64; the simulator knows"):
        kernel(X.astype(np.float64))


def test_memory_exists_only_while_a_kernel_runs():
    with pytest.raises(KernelError, match="used outside of a kernel"):
        nl.ndarray((4, 4), dtype=nl.float32)


def test_ap_ends_with_its_tensor():
    @jit
    def kernel(x):
        x.ap(pattern=[[12, 8], [1, 12]], offset=1)

    with pytest.raises(KernelError, match=r"reads elements 1 to 96 of a tensor \(8, 12\) of 96"):
        kernel(X)
