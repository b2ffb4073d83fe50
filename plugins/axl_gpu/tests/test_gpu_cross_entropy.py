"""Our cross-entropy for Hoppers: interpreted, and around it with plain products."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_gpu.kernels.cross_entropy.api import (
    BLOCK_SIZES,
    KERNELS,
    Kernels,
    candidates,
    gpu_cross_entropy,
    gpu_cross_entropy_backward,
    unsupported_reason,
)
from axl_gpu.kernels.cross_entropy.kernels import CrossEntropyBlockSizes, Vocabulary, statistics
from kernel_blocks import in_blocks
from mosaic_interpreter import SIMPLE, TUNED
from plain_matmuls import PLAIN_CROSS_ENTROPY
from rounding import assert_same_to_rounding

from axcore.ops import Call, CrossEntropySpec, CrossEntropyTokens
from axcore.plugins import Hardware
from axcore.testing import KernelSuite
from axcore.testing.contracts import CrossEntropyTestCase, cross_entropy_case

H100 = Hardware.parse("gpu-h100-8")
SMALL = CrossEntropyBlockSizes(rows=64, vocabulary=64, warp_groups=1, run=2, parts=2)
INTERPRETED = Kernels(*(partial(one, variant=SIMPLE) for one in KERNELS))


def case(name, *, width=64, vocabulary=150, **fields):
    sample = CrossEntropyTestCase(name=name, width=width, vocabulary=vocabulary, **fields)
    return cross_entropy_case(sample)


EVERYTHING = {"z_loss": 0.1, "soft_cap": 3.0}


def in_small_blocks(forward, backward, kernels):
    return tuple(
        in_blocks(BLOCK_SIZES, SMALL, partial(half, kernels=kernels))
        for half in (forward, backward)
    )


class CrossEntropy(KernelSuite):
    plugin = "axl-gpu"
    keys = ("cross_entropy/gpu_cross_entropy",)
    dtypes = ("bfloat16",)
    kernels = PLAIN_CROSS_ENTROPY

    def implementation(self, kernel):
        halves = (gpu_cross_entropy, gpu_cross_entropy_backward)
        return halves if jax.default_backend() == "gpu" else in_small_blocks(*halves, self.kernels)

    def extra_cases(self, kernel):
        tied = {**EVERYTHING, "vocabulary_first": True}
        return (
            case("wide_everything", spec=EVERYTHING),
            case("wide_tied", leading=(2, 70), spec=tied, w_dtype="float32"),
        )


class TestAround(CrossEntropy):
    """What is around the kernels: meshes, remat and batches of calls."""


class TestInterpreted(CrossEntropy):
    """The kernels themselves. Their interpreter does not know remat."""

    test_remat_changes_no_gradient = None
    test_vmap_equals_one_call_after_another = None
    test_jit_changes_nothing = None
    kernels = INTERPRETED
    case_names = ("wide_tied",)


@pytest.mark.slow
class TestInterpretedOnEveryCase(CrossEntropy):
    test_remat_changes_no_gradient = None
    kernels = INTERPRETED

    def extra_cases(self, kernel):
        return (
            case("wide_plain", vocabulary=50),
            case("wide_everything", spec=EVERYTHING),
            case("wide_blocks", width=128, vocabulary=300),
            case("wide_one_token", leading=(1, 1)),
            case("wide_no_batch", leading=(19,), spec={"soft_cap": 3.0}),
            case("wide_two_batches", leading=(2, 3, 7), spec={"z_loss": 0.1}),
        )


def arrays(num_tokens, width, vocabulary_size):
    numbers = np.random.default_rng(3)
    x_RD = jnp.asarray(numbers.standard_normal((num_tokens, width)), jnp.bfloat16)
    w_DV = jnp.asarray(numbers.standard_normal((width, vocabulary_size)), jnp.bfloat16)
    targets_R = jnp.asarray(numbers.integers(0, vocabulary_size, num_tokens), jnp.int32)
    return x_RD, w_DV, targets_R


@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul:RuntimeWarning")
@pytest.mark.parametrize("kernels", [PLAIN_CROSS_ENTROPY, INTERPRETED], ids=["plain", "kernel"])
@pytest.mark.parametrize("value", [jnp.inf, jnp.nan])
def test_logits_that_are_no_numbers_are_told_by_the_loss(kernels, value):
    x_RD, w_DV, targets_R = arrays(3, 64, 100)
    inputs = CrossEntropyTokens(x_RD.at[1, 3].set(value), w_DV, targets_R)
    with BLOCK_SIZES.forced(SMALL):
        run = partial(gpu_cross_entropy, spec=CrossEntropySpec(), kernels=kernels)
        found = jax.jit(run)(inputs)
    assert not np.isfinite(np.sum(found.lse_BT - found.target_BT))


@pytest.mark.slow
def test_tuned_form_does_what_the_simple_one_says():
    x_RD, w_DV, targets_R = arrays(64, 64, 128)

    def run(variant):
        vocabulary = Vocabulary(w_DV, 100, is_transposed=False)
        spec = CrossEntropySpec(soft_cap=5.0)
        return statistics(x_RD, vocabulary, targets_R, spec, block_sizes=SMALL, variant=variant)

    tuned, simple = (jax.jit(run, static_argnums=0)(variant) for variant in (TUNED, SIMPLE))
    assert_same_to_rounding(tuned, simple)


@pytest.mark.parametrize(
    ("x", "w", "reason"),
    [
        (((2, 96), "bfloat16"), (96, 100), "multiples of 64, not 96"),
        (((2, 64), "float32"), (64, 100), "bfloat16, not float32"),
        (((0, 64), "bfloat16"), (64, 100), "no empty array"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(x, w, reason):
    call = Call(op="cross_entropy", shapes=(("x", x[0]), ("w", w)), dtypes=(("x", x[1]),))
    assert reason in unsupported_reason(call)


def test_tiles_fit_shared_memory():
    shapes = (("x", (4096, 1024)), ("w", (1024, 32000)))
    call = Call(op="cross_entropy", shapes=shapes)
    tried = list(candidates(call, H100))
    assert BLOCK_SIZES.entry(call, H100).block_sizes in tried
    assert all(block_sizes.shared_bytes <= 227 * 1024 for block_sizes in tried)
