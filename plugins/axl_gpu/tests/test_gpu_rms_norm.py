"""Our RMS normalisation for Hoppers: interpreted, and around it with plain arithmetic."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_gpu.kernels.rms_norm.api import (
    BLOCK_SIZES,
    RmsNormBlockSizes,
    gpu_rms_norm,
    gpu_rms_norm_backward,
    unsupported_reason,
)
from axl_gpu.kernels.rms_norm.kernels import backward_rows, forward_rows
from kernel_blocks import in_blocks
from mosaic_interpreter import INTERPRETER
from plain_matmuls import PLAIN_RMS_NORM

from axcore.ops import Call, RmsNormInputs, RmsNormSpec
from axcore.testing import KernelSuite
from axcore.testing.contracts import RmsNormTestCase, rms_norm_case

INTERPRETED = tuple(partial(one, interpreter=INTERPRETER) for one in (forward_rows, backward_rows))
SMALL = RmsNormBlockSizes(rows=2, backward_rows=3)


def case(name, **fields):
    return rms_norm_case(RmsNormTestCase(name=name, **fields))


class RmsNorm(KernelSuite):
    plugin = "axl-gpu"
    keys = ("rms_norm/gpu_rms_norm",)
    kernels = PLAIN_RMS_NORM

    def implementation(self, kernel):
        halves = (gpu_rms_norm, gpu_rms_norm_backward)
        if jax.default_backend() == "gpu":
            return halves
        return tuple(
            in_blocks(BLOCK_SIZES, SMALL, partial(half, kernel=one))
            for half, one in zip(halves, self.kernels, strict=True)
        )

    def extra_cases(self, kernel):
        return (
            case("wide", shape=(2, 5, 256), scale_offset=1.0),
            case("wide_no_scale", shape=(7, 256), scale_dtype=None),
        )


@pytest.mark.quick_one_in(8)
class TestAround(RmsNorm):
    """What is around the kernels: meshes, remat and batches of calls."""


@pytest.mark.quick_one_in(8)
class TestInterpreted(RmsNorm):
    """The kernels themselves. Their interpreter does not know remat."""

    test_remat_changes_no_gradient = None
    test_vmap_equals_one_call_after_another = None
    test_jit_changes_nothing = None
    kernels = INTERPRETED


@pytest.mark.slow
class TestInterpretedOnEveryCase(RmsNorm):
    test_remat_changes_no_gradient = None
    kernels = INTERPRETED

    def extra_cases(self, kernel):
        return (
            case("wide_row", shape=(512,)),
            case("wide_narrow_scale", shape=(3, 768), scale_dtype="bfloat16"),
            case("wide_epsilon", shape=(1, 1, 256), epsilon=0.5),
        )


@pytest.mark.slow
def test_rows_of_zeros_and_of_nan_stay_among_themselves():
    x = jnp.ones((5, 256)).at[1].set(0).at[2].set(jnp.nan)
    run = partial(gpu_rms_norm, spec=RmsNormSpec(epsilon=1e-6), kernel=INTERPRETED[0])
    with BLOCK_SIZES.forced(SMALL):
        y = np.asarray(jax.jit(run)(RmsNormInputs(x, jnp.ones(256))))
    np.testing.assert_allclose(y[[0, 3, 4]], 1.0, rtol=1e-5)
    assert not y[1].any()
    assert np.isnan(y[2]).all()


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        ((4, 384), "bfloat16", "multiples of 256 up to 8192, not 384"),
        ((4, 16384), "bfloat16", "multiples of 256 up to 8192, not 16384"),
        ((4, 256), "float64", "bfloat16, float16, float32, not float64"),
        ((0, 256), "bfloat16", "no empty array"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(shape, dtype, reason):
    call = Call(op="rms_norm", shapes=(("x", shape),), dtypes=(("x", dtype),))
    assert reason in unsupported_reason(call)
