"""Our float8 product for Hoppers: interpreted, and around it with a plain product."""

from functools import partial

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_gpu.kernels.float8_kernels import float8_matmul
from axl_gpu.kernels.float8_matmul import TILES, accepts, candidates, gpu_float8_matmul
from axl_gpu.kernels.matmul_tiles import MatmulTiles
from mosaic_interpreter import SIMPLE, TUNED
from plain_products import plain_float8_matmul

from axcore.ops import Narrow, Operands, ProductSpec, Quantization
from axcore.ops.quantized_dot_calls import product_calls
from axcore.ops.quantized_dot_kernels import emulated_product
from axcore.ops.quantized_dot_samples import E4M3, FLOAT8, INT8
from axcore.parallel import make_mesh
from axcore.plugins import Hardware
from axcore.testing import KernelSuite

H100 = Hardware.parse("gpu-h100-8")
ALL_E4M3 = attrs.evolve(FLOAT8, gradients=E4M3)
SMALL = MatmulTiles(rows=64, columns=64, warp_groups=1, depth=128, num_ahead=2)
INTERPRETED = partial(float8_matmul, variant=SIMPLE)


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
                return emulated_product(operands, spec)
            with TILES.forced(SMALL):
                return ours(operands, spec)

        return run


class TestAround(Float8):
    """What is around the kernel: meshes, remat and batches of calls."""

    case_names = ("float8", "float8_odd")


class TestInterpreted(Float8):
    """The kernel itself. Its interpreter knows neither remat nor `shard_map`."""

    test_remat_changes_no_gradient = None
    test_devices_of_a_mesh_give_what_one_device_does = None
    test_vmap_equals_one_call_after_another = None
    test_jit_changes_nothing = None
    matmul = staticmethod(INTERPRETED)
    case_names = ("float8_odd",)


@pytest.mark.slow
class TestInterpretedOnEveryCase(Float8):
    test_remat_changes_no_gradient = None
    test_devices_of_a_mesh_give_what_one_device_does = None
    dtypes = ("float32",)
    matmul = staticmethod(INTERPRETED)


def operands(rows, columns, width, dtype="float8_e4m3fn"):
    numbers = np.random.default_rng(4)
    return [jnp.asarray(numbers.standard_normal((n, width)), dtype) for n in (rows, columns)]


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_result_is_scaled_before_it_is_rounded(dtype):
    lhs, rhs = operands(3, 70, 130, dtype)
    scale = jnp.float32(2.0**-20)  # unscaled, float16 would hold the result; scaled, no float8
    run = partial(INTERPRETED, dtype="float16", tiles=SMALL)
    got = jax.jit(lambda *args: run(*args))(lhs * 128, rhs * 128, scale)
    wanted = 2.0**-20 * (np.float32(lhs * 128) @ np.float32(rhs * 128).T)
    np.testing.assert_allclose(np.float32(got), wanted, rtol=2e-3, atol=1e-6)


def test_gradients_of_weights_are_summed_over_devices():
    numbers = np.random.default_rng(4)
    shapes = (4, 6, 32), (4, 6, 16)
    arrays = [jnp.asarray(numbers.standard_normal(s), "float8_e4m3fn") for s in shapes]
    given = Operands(*(Narrow(one, jnp.float32(0.5)) for one in arrays))
    spec = ProductSpec(product="weight_gradient", contracting=((0, 1), (0, 1)), dtype="float32")
    run = jax.jit(partial(gpu_float8_matmul, spec=spec, matmul=plain_float8_matmul))
    alone = run(given)
    with jax.set_mesh(make_mesh({"fsdp": 2, "model": 2}, jax.devices()[:4])):
        split = run(given)
    np.testing.assert_allclose(split, alone, rtol=1e-5)
    np.testing.assert_allclose(alone, emulated_product(given, spec), rtol=1e-5)


@pytest.mark.slow
def test_tuned_form_does_what_the_simple_one_says():
    lhs, rhs = operands(64, 64, 256)

    def run(variant):
        run = partial(float8_matmul, dtype="float32", tiles=SMALL, variant=variant)
        return np.asarray(jax.jit(run)(lhs, rhs, jnp.float32(0.5)))

    np.testing.assert_array_equal(run(TUNED), run(SIMPLE))


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
    calls = product_calls((2, 64, 128), (128, 256), spec, dtype="bfloat16")
    assert reason in accepts(calls[product])


def test_every_product_of_one_format_is_taken_and_its_tiles_fit_shared_memory():
    for dtype in ("bfloat16", "float32"):
        calls = product_calls((2, 64, 128), (128, 256), ALL_E4M3, dtype=dtype)
        for call in calls.values():
            assert accepts(call) is None
            tried = list(candidates(call, H100))
            assert TILES.entry(call, H100).tiles in tried
            is_summed = call.feature("product") == "weight_gradient"
            size = 4 if is_summed else jnp.dtype(dtype).itemsize
            assert all(tiles.shared_bytes(1, size) <= 227 * 1024 for tiles in tried)
