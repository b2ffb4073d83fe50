"""axl-tpu, proven by axcore's suites; where there is no TPU, its Pallas kernels are interpreted."""

from functools import partial

import jax
import pytest
from axl_tpu.kernels.attention.splash import splash_attention
from axl_tpu.kernels.grouped_matmul.megablox import megablox, megablox_backward

from axcore.config import update_config
from axcore.testing import (
    AttentionTestCase,
    GroupedMatmulTestCase,
    KernelSuite,
    MeshRuleSuite,
    PluginSuite,
    SamplerSuite,
    attention_case,
    grouped_matmul_case,
)

INTERPRET = jax.default_backend() != "tpu"
FUNCTIONS = {
    "splash_attention": partial(splash_attention, interpret=INTERPRET),
    "megablox": tuple(partial(half, interpret=INTERPRET) for half in (megablox, megablox_backward)),
}


class TestPlugin(PluginSuite):
    plugin = "axl-tpu"


@pytest.mark.slow
class TestSampler(SamplerSuite):
    plugin = "axl-tpu"

    def model(self):
        # As wide as kernels want it.
        wide = {"dim": 256, "**.num_heads": 4, "**.num_kv_heads": 2, "**.hidden_dim": 512}
        return update_config(super().model(), wide)


class TestMeshRules(MeshRuleSuite):
    plugin = "axl-tpu"


def attention(name, **fields):
    """Splash attention takes multiples of 128 tokens, as few cases of the op have."""
    sizes = {"batch": 2, "queries": 128, "keys": 128}
    return attention_case(AttentionTestCase(name=name, **{**sizes, **fields}))


class Interpreted(KernelSuite):
    plugin = "axl-tpu"
    keys = ("attention/splash_attention", "grouped_matmul/megablox")

    def implementation(self, kernel):
        return FUNCTIONS[kernel.name]

    def tolerance(self, dtype):
        if dtype == "bfloat16":
            return super().tolerance(dtype)
        return 2e-5, 1e-4  # sums run over blocks, in another order


@pytest.mark.quick_one_in(4)
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
            sample = GroupedMatmulTestCase(
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
            attention("block_sizes", queries=384, keys=384, parts=("segments",), spec=causal),
            attention("lonely", parts=("lonely_segments",), spec=causal),
            attention("one_key_head", key_heads=1, spec=causal),
            attention("value_width", width=24, value_width=8, spec=causal),
            attention("window", spec={"left": 5, "right": 3}),
            attention("soft_cap", spec={"soft_cap": 2.0, "right": 0}),
            *widths,
        )
