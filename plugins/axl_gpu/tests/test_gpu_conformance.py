"""axl-gpu, proven by axcore's suites; where there is no GPU, cuDNN attention by XLA's stand-in."""

import jax
import pytest
from axl_gpu.cudnn_attention import attend, cudnn_attention

from axcore.testing import (
    AttentionSample,
    KernelSuite,
    MeshRuleSuite,
    PluginSuite,
    attention_case,
)


def stand_in(inputs, spec):
    return attend(inputs, spec, implementation="xla")


class TestPlugin(PluginSuite):
    plugin = "axl-gpu"


class TestMeshRules(MeshRuleSuite):
    plugin = "axl-gpu"


class TestKernels(KernelSuite):
    """The stand-in takes the same arguments and masks; its rounding is XLA's."""

    plugin = "axl-gpu"
    dtypes = ("bfloat16",)
    case_names = ("even_segments",)

    @pytest.fixture(autouse=True)
    def promotion_that_jax_nn_relies_on(self):
        with jax.numpy_dtype_promotion("standard"):
            yield

    def implementation(self, kernel):
        return cudnn_attention if jax.default_backend() == "gpu" else stand_in

    def extra_cases(self, kernel):
        packed = AttentionSample(
            name="even_segments", queries=40, keys=40, parts=("segments",), spec={"right": 0}
        )
        return (attention_case(packed),)

    def tolerance(self, dtype):
        return 2e-2, 4e-2  # probabilities are rounded to bfloat16 before they meet the values
