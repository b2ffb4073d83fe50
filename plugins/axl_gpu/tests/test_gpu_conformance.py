"""axl-gpu, proven by axcore's suites; where there is no GPU, cuDNN attention by XLA's stand-in."""

from functools import partial

import jax
from axl_gpu.cudnn_attention import attend, cudnn_attention

from axcore.testing import (
    AttentionSample,
    KernelSuite,
    MeshRuleSuite,
    PluginSuite,
    attention_case,
)


class TestPlugin(PluginSuite):
    plugin = "axl-gpu"


class TestMeshRules(MeshRuleSuite):
    plugin = "axl-gpu"


class TestKernels(KernelSuite):
    """The stand-in takes the same arguments and masks; its rounding is XLA's."""

    plugin = "axl-gpu"
    dtypes = ("bfloat16",)
    case_names = ("causal", "causal_window", "even_segments")

    def implementation(self, kernel):
        is_here = jax.default_backend() == "gpu"
        return cudnn_attention if is_here else partial(attend, implementation="xla")

    def extra_cases(self, kernel):
        packed = AttentionSample(
            name="even_segments", queries=40, keys=40, parts=("segments",), spec={"right": 0}
        )
        return (attention_case(packed),)

    def tolerance(self, dtype):
        return 2e-2, 4e-2  # probabilities are rounded to bfloat16 before they meet the values
