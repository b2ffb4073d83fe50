"""Rotary positions by our Pallas kernel: interpreted against the reference, and compiled."""

from functools import partial

import jax
import pytest
from axl_tpu.kernels.rope.api import tpu_rope, unsupported_reason

from axcore.ops import Call, KernelPolicy, choose
from axcore.plugins import Hardware
from axcore.testing import CompileSuite, KernelSuite
from axcore.testing.contracts import RopeTestCase, rope_case

KEYS = ("rope/tpu_rope",)


class TestKernel(KernelSuite):
    plugin = "axl-tpu"
    keys = KEYS
    dtypes = ("float32", "bfloat16")
    case_names = ("width_128", "width_256")

    def implementation(self, kernel):
        return partial(tpu_rope, interpret=jax.default_backend() != "tpu")

    def extra_cases(self, kernel):
        return (rope_case(RopeTestCase(name="blocks_and_a_rest", tokens=530, heads=9, width=128)),)


def call_of(width, dtype="bfloat16"):
    return Call(op="rope", shapes=(("x", (2, 8, 4, width)),), dtypes=(("x", dtype),))


@pytest.mark.parametrize(
    ("width", "dtype", "reason"),
    [
        (64, "bfloat16", "multiples of 128 up to 1024, not 64"),
        (2048, "bfloat16", "multiples of 128 up to 1024, not 2048"),
        (128, "float16", "not float16"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(width, dtype, reason):
    assert reason in unsupported_reason(call_of(width, dtype))


@pytest.mark.parametrize(
    ("kernel_choice", "width", "kernel"),
    [
        ("fastest", 128, "tpu_rope"),
        ("fastest", 64, "portable"),
        ("validated", 128, "portable"),
    ],
)
def test_it_serves_where_the_fastest_is_asked_for_and_it_fits(kernel_choice, width, kernel):
    policy = KernelPolicy(hardware=Hardware.parse("tpu-v5p-8"), kernel_choice=kernel_choice)
    assert choose(call_of(width), policy).kernel.name == kernel


class TestCompile(CompileSuite):
    plugin = "axl-tpu"
    keys = KEYS
    targets = ("tpu-v5e-8", "tpu-v5p-8", "tpu-v6e-8")
    dtypes = ("bfloat16", "float32")
    calls = {"tpu_rope": ('custom_call_target="tpu_custom_call"', 2)}

    def cases(self, kernel):
        return tuple(
            rope_case(
                RopeTestCase(name=f"{heads}_of_{width}", tokens=4096, heads=heads, width=width)
            )
            for heads, width in ((32, 128), (5, 256))
        )
