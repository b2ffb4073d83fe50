"""axl-tpu, proven by axcore's suites; where there is no TPU, splash attention is interpreted."""

from functools import partial

import jax
from axl_tpu.splash_attention import splash_attention

from axcore.testing import (
    AttentionSample,
    KernelSuite,
    MeshRuleSuite,
    PluginSuite,
    attention_case,
)


class TestPlugin(PluginSuite):
    plugin = "axl-tpu"


class TestMeshRules(MeshRuleSuite):
    plugin = "axl-tpu"


class TestKernels(KernelSuite):
    """The kernel takes multiples of 128 tokens, and no case of the op has as many."""

    plugin = "axl-tpu"
    dtypes = ("float32",)
    case_names = ("segments_128",)

    def implementation(self, kernel):
        return partial(splash_attention, interpret=jax.default_backend() != "tpu")

    def extra_cases(self, kernel):
        packed = AttentionSample(
            name="segments_128",
            batch=1,
            queries=128,
            keys=128,
            parts=("segments",),
            spec={"right": 0, "left": 20},
        )
        return (attention_case(packed),)

    def tolerance(self, dtype):
        return 2e-5, 1e-4  # sums run over tiles, in another order
