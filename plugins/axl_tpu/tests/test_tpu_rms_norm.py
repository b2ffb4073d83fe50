"""RMS normalisation by our Pallas kernel: interpreted against the reference, and compiled."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from axl_tpu.kernels.rms_norm.api import (
    BLOCK_SIZES,
    RmsNormBlockSizes,
    tpu_rms_norm,
    tpu_rms_norm_backward,
    unsupported_reason,
)
from kernel_blocks import in_blocks
from pallas_races import CAREFUL, check_no_race_was_printed

from axcore.ops import Call, RmsNormInputs, RmsNormSpec
from axcore.ops.contract import relative_error
from axcore.ops.rms_norm.kernels import rms_norm_portable
from axcore.ops.rms_norm.op import RMS_NORM_OP
from axcore.plugins import Hardware
from axcore.testing import CompileSuite, KernelSuite
from axcore.testing.contracts import RmsNormTestCase, rms_norm_case

KEYS = ("rms_norm/tpu_rms_norm",)
SMALL = RmsNormBlockSizes(block_rows=32, chunk_rows=16)


def halves(interpret):
    both = (tpu_rms_norm, tpu_rms_norm_backward)
    return tuple(partial(half, interpret=interpret) for half in both)


def in_small_blocks(interpret):
    return tuple(in_blocks(BLOCK_SIZES, SMALL, half) for half in halves(interpret))


class TestKernel(KernelSuite):
    plugin = "axl-tpu"
    keys = KEYS
    dtypes = ("float32",)
    case_names = ("plain", "odd_width", "no_scale")

    def implementation(self, kernel):
        return halves(jax.default_backend() != "tpu")


@pytest.mark.slow
class TestKernelOnEveryCase(TestKernel):
    dtypes = ("float32", "bfloat16")
    case_names = None

    def implementation(self, kernel):
        return in_small_blocks(jax.default_backend() != "tpu")

    def extra_cases(self, kernel):
        return (
            rms_norm_case(RmsNormTestCase(name="blocks_and_a_rest", shape=(3, 47, 130))),
            rms_norm_case(RmsNormTestCase(name="two_slabs", shape=(4, 32, 256))),
        )


def call_of(shape, dtype):
    return Call(op="rms_norm", shapes=(("x", shape),), dtypes=(("x", dtype),))


def gradients(fn, inputs, dy):
    spec = RmsNormSpec(epsilon=1e-6)
    y, pull_back = jax.vjp(lambda inputs: fn(inputs, spec), inputs)
    return y, *pull_back(dy)[0]


def arrays(rows, width, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(0), 3)
    x, dy = (jax.random.normal(key, (rows, width), dtype) for key in keys[:2])
    return RmsNormInputs(x, jax.random.normal(keys[2], (width,))), dy


@pytest.mark.slow
def test_steps_do_not_race_and_padding_is_not_seen(capsys):
    inputs, dy = arrays(rows=56, width=24)
    forward, backward = in_small_blocks(CAREFUL)
    careful = partial(RMS_NORM_OP.custom_vjp, forward=forward, backward=backward)
    got = gradients(careful, inputs, dy)
    wanted = gradients(rms_norm_portable, inputs, dy)
    for one, other in zip(got, wanted, strict=True):
        assert relative_error(one, other) < 1e-5
    check_no_race_was_printed(capsys)


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        ((8, 64), "float16", "not float16"),
        ((0, 64), "float32", "no empty array"),
        ((8, 40000), "float32", "widths up to 16384, not 40000"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(shape, dtype, reason):
    assert reason in unsupported_reason(call_of(shape, dtype))


@pytest.mark.parametrize(("width", "rows"), [(64, 512), (4096, 128), (16384, 32)])
def test_blocks_shrink_as_rows_widen(width, rows):
    call = call_of((8, 1024, width), "bfloat16")
    assert BLOCK_SIZES.entry(call, Hardware.parse("tpu-v5e-8")).block_sizes == RmsNormBlockSizes(
        rows, 16
    )


class TestCompile(CompileSuite):
    plugin = "axl-tpu"
    keys = KEYS
    targets = ("tpu-v5e-8", "tpu-v5p-8", "tpu-v6e-8")
    dtypes = ("bfloat16", "float32")
    calls = {"tpu_rms_norm": ('custom_call_target="tpu_custom_call"', 1)}

    def cases(self, kernel):
        return tuple(
            rms_norm_case(RmsNormTestCase(name="x".join(map(str, shape)), shape=shape))
            for shape in ((8, 4096, 4096), (8, 100, 16384), (3, 77))
        )
