"""axl-tpu, proven by axcore's suites; where there is no TPU, its Pallas kernels are interpreted."""

from functools import partial

import jax
import pytest
from axl_tpu.megablox import megablox
from axl_tpu.splash_attention import splash_attention

from axcore.testing import (
    AttentionSample,
    GroupedMatmulSample,
    KernelSuite,
    MeshRuleSuite,
    PluginSuite,
    attention_case,
    grouped_matmul_case,
)

FUNCTIONS = {"splash_attention": splash_attention, "megablox": megablox}


class TestPlugin(PluginSuite):
    plugin = "axl-tpu"


class TestMeshRules(MeshRuleSuite):
    plugin = "axl-tpu"


def attention(name, **fields):
    """Splash attention takes multiples of 128 tokens, as few cases of the op have."""
    sizes = {"batch": 2, "queries": 128, "keys": 128}
    return attention_case(AttentionSample(name=name, **{**sizes, **fields}))


class Interpreted(KernelSuite):
    plugin = "axl-tpu"
    keys = ("attention/splash_attention", "grouped_matmul/megablox")

    def implementation(self, kernel):
        return partial(FUNCTIONS[kernel.name], interpret=jax.default_backend() != "tpu")

    def tolerance(self, dtype):
        if dtype == "bfloat16":
            return super().tolerance(dtype)
        return 2e-5, 1e-4  # sums run over tiles, in another order


class TestKernels(Interpreted):
    dtypes = ("float32",)
    case_names = ("segments_128", "uneven")

    def extra_cases(self, kernel):
        parts = {"parts": ("segments",), "spec": {"right": 0, "left": 20}}
        return (attention("segments_128", **parts),) if kernel.op == "attention" else ()


@pytest.mark.slow
class TestKernelsOnEveryCase(Interpreted):
    def extra_cases(self, kernel):
        if kernel.op != "attention":
            sample = GroupedMatmulSample(
                name="tiles", group_sizes=(100, 0, 300, 7), num_rows=450, width=200, out_width=130
            )
            return (grouped_matmul_case(sample),)
        causal = {"right": 0}
        widths = tuple(
            attention(f"width_{width}", width=width, value_width=width, spec=causal)
            for width in (64, 80, 128, 256)
        )
        return (
            attention("full"),
            attention("tiles", queries=384, keys=384, parts=("segments",), spec=causal),
            attention("lonely", parts=("lonely_segments",), spec=causal),
            attention("one_key_head", key_heads=1, spec=causal),
            attention("value_width", width=24, value_width=8, spec=causal),
            attention("window", spec={"left": 5, "right": 3}),
            attention("soft_cap", spec={"soft_cap": 2.0, "right": 0}),
            *widths,
        )
