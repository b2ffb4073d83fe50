"""Our float8 product for Hoppers: interpreted, and around it with a plain product."""

from functools import partial

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_gpu.kernels.matmul.block_sizes import MatmulBlockSizes
from axl_gpu.kernels.matmul.float8 import (
    BLOCK_SIZES,
    candidates,
    gpu_float8_matmul,
    unsupported_reason,
)
from axl_gpu.kernels.matmul.float8_kernel import float8_matmul_kernel
from mosaic_interpreter import SIMPLE, TUNED
from plain_matmuls import plain_float8_matmul
from rounding import assert_same_to_rounding

from axcore.ops import Quantization
from axcore.ops.quantized.contract import E4M3, FLOAT8, INT8
from axcore.ops.quantized.kernels import emulated_matmul
from axcore.ops.quantized.op import matmul_calls
from axcore.plugins import Hardware
from axcore.testing import KernelSuite

H100 = Hardware.parse("gpu-h100-8")
ALL_E4M3 = attrs.evolve(FLOAT8, gradients=E4M3)
SMALL = MatmulBlockSizes(rows=64, columns=64, warp_groups=1, depth=128, num_ahead=2)
INTERPRETED = partial(float8_matmul_kernel, variant=SIMPLE)


class Float8(KernelSuite):
    """Products of two formats, as those of gradients are, are left to the reference."""

    plugin = "axl-gpu"
    keys = ("quantized_dot/gpu_float8_matmul",)
    dtypes = ("bfloat16",)
    matmul = staticmethod(plain_float8_matmul)

    def implementation(self, kernel):
        ours = partial(gpu_float8_matmul, matmul=self.matmul)
        if jax.default_backend() == "gpu":
            ours = gpu_float8_matmul

        def run(operands, spec):
            formats = {one.values.dtype for one in operands}
            if len(formats) > 1:
                return emulated_matmul(operands, spec)
            with BLOCK_SIZES.forced(SMALL):
                return ours(operands, spec)

        return run


class TestAround(Float8):
    """What is around the kernel: meshes, remat and batches of calls."""

    case_names = ("float8", "float8_odd")


class TestInterpreted(Float8):
    """The kernel itself. Its interpreter does not know remat."""

    test_remat_changes_no_gradient = None
    test_vmap_equals_one_call_after_another = None
    test_jit_changes_nothing = None
    matmul = staticmethod(INTERPRETED)
    case_names = ("float8_odd",)


@pytest.mark.slow
class TestInterpretedOnEveryCase(Float8):
    test_remat_changes_no_gradient = None
    dtypes = ("float32",)
    matmul = staticmethod(INTERPRETED)


def operands(rows, columns, width, dtype="float8_e4m3fn"):
    numbers = np.random.default_rng(4)
    return [jnp.asarray(numbers.standard_normal((n, width)), dtype) for n in (rows, columns)]


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_result_is_scaled_before_it_is_rounded(dtype):
    lhs, rhs = operands(3, 70, 130, dtype)
    scale = jnp.float32(2.0**-20)  # unscaled, float16 would hold the result; scaled, no float8
    run = partial(INTERPRETED, dtype="float16", block_sizes=SMALL)
    got = jax.jit(lambda *args: run(*args))(lhs * 128, rhs * 128, scale)
    wanted = 2.0**-20 * (np.float32(lhs * 128) @ np.float32(rhs * 128).T)
    np.testing.assert_allclose(np.float32(got), wanted, rtol=2e-3, atol=1e-6)


@pytest.mark.slow
def test_tuned_form_does_what_the_simple_one_says():
    lhs, rhs = operands(64, 64, 256)

    def run(variant):
        run = partial(float8_matmul_kernel, dtype="float32", block_sizes=SMALL, variant=variant)
        return np.asarray(jax.jit(run)(lhs, rhs, jnp.float32(0.5)))

    assert_same_to_rounding(run(TUNED), run(SIMPLE))


@pytest.mark.parametrize(
    ("spec", "product", "reason"),
    [
        (FLOAT8, "input_gradient", "of one format, not float8_e4m3fn and float8_e5m2"),
        (INT8, "forward", "float8, not int8"),
        (
            attrs.evolve(FLOAT8, inputs=Quantization(format="float8_e4m3fn", per="channel")),
            "forward",
            "one scale per tensor, not one per channel",
        ),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(spec, product, reason):
    calls = matmul_calls((2, 64, 128), (128, 256), spec, dtype="bfloat16")
    assert reason in unsupported_reason(calls[product])


def test_every_product_of_one_format_is_taken_and_its_tiles_fit_shared_memory():
    for dtype in ("bfloat16", "float32"):
        calls = matmul_calls(
            (2, 64, 128), (128, 256), ALL_E4M3, dtype=dtype, weight_gradient_dtype="float32"
        )
        for call in calls.values():
            assert unsupported_reason(call) is None
            tried = list(candidates(call, H100))
            assert BLOCK_SIZES.entry(call, H100).block_sizes in tried
            is_summed = call.feature("product") == "weight_gradient"
            size = 4 if is_summed else jnp.dtype(dtype).itemsize
            assert all(block_sizes.shared_bytes(1, size) <= 227 * 1024 for block_sizes in tried)
