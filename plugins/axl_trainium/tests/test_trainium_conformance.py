"""axl-trainium, proven by axcore's suites; where there is no SDK, kernels run in the simulator."""

import pytest

from axcore.testing import (
    AttentionTestCase,
    KernelSuite,
    MeshRuleSuite,
    PluginSuite,
    attention_case,
)
from axcore.testing.contracts import (
    CrossEntropyTestCase,
    attention_backward_case,
    cross_entropy_case,
    functions_of,
)


class TestPlugin(PluginSuite):
    plugin = "axl-trainium"


class TestMeshRules(MeshRuleSuite):
    plugin = "axl-trainium"


def attention_cases(kernel, *samples):
    make = {"attention": attention_case, "attention_backward": attention_backward_case}
    return tuple(make[kernel.op](sample) for sample in samples if kernel.op in make)


@pytest.mark.usefixtures("runs_nki")
class Simulated(KernelSuite):
    plugin = "axl-trainium"

    def implementation(self, kernel):
        return functions_of(kernel)

    def tolerance(self, dtype):
        if dtype == "bfloat16":
            return super().tolerance(dtype)
        return 2e-5, 1e-4  # sums run over tiles, in another order


@pytest.mark.quick_one_in(8)
class TestKernels(Simulated):
    dtypes = ("float32",)
    case_names = ("odd_width", "documents", "everything", "amplitude")

    def extra_cases(self, kernel):
        documents = AttentionTestCase(
            name="documents",
            queries=21,
            keys=21,
            width=8,
            value_width=8,
            parts=("segments",),
            spec={"left": 9, "right": 0, "soft_cap": 3.0},
        )
        return attention_cases(kernel, documents)


class OnTiles(Simulated):
    """Calls of several tiles, in addition to those of the op."""

    def extra_cases(self, kernel):
        if kernel.op == "cross_entropy":
            sizes = {"leading": (2, 150), "width": 200, "vocabulary": 1100}
            spec = {"z_loss": 0.01, "soft_cap": 5.0}
            return (cross_entropy_case(CrossEntropyTestCase(name="blocks", **sizes, spec=spec)),)
        causal = {"right": 0}
        tiles = {"batch": 1, "heads": 2, "key_heads": 1}
        return attention_cases(
            kernel,
            AttentionTestCase(name="tiles", queries=300, keys=300, **tiles, spec=causal),
            AttentionTestCase(
                name="far_window",
                queries=300,
                keys=700,
                **tiles,
                spec={"right": 0, "left": 260, "query_offset": 400},
            ),
            AttentionTestCase(
                name="long_documents", queries=700, keys=700, **tiles, parts=("segments",)
            ),
            AttentionTestCase(
                name="placed", queries=70, keys=140, **tiles, parts=("offset", "sinks"), spec=causal
            ),
        )


@pytest.mark.slow
class TestKernelsOnEveryCase(OnTiles):
    dtypes = ("float32",)


@pytest.mark.slow
class TestKernelsInBfloat16(OnTiles):
    dtypes = ("bfloat16",)
    case_names = ("plain", "quantized_scale", "wide_projection", "tiles", "blocks")
