"""axl-gpu, proven by axcore's suites.

Where there is no GPU, cuDNN's calls are simulated, and the Pallas kernel is interpreted.
"""

import contextlib
import functools

import jax
import pytest
from axl_gpu.kernels.attention.cudnn import cudnn_attention
from axl_gpu.kernels.attention.cudnn_call import CUDNN
from axl_gpu.kernels.attention.cudnn_packed import cudnn_packed_attention
from axl_gpu.kernels.grouped_matmul.kernels import matrices_of_groups
from axl_gpu.kernels.grouped_matmul.mosaic import (
    mosaic_grouped_matmul,
    mosaic_grouped_matmul_backward,
)
from cudnn_simulator import SIMULATED
from mosaic_interpreter import SIMPLE, force_gpu_interpret_mode
from plain_matmuls import PLAIN_GROUPED

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


class TestPlugin(PluginSuite):
    plugin = "axl-gpu"


class TestMeshRules(MeshRuleSuite):
    plugin = "axl-gpu"


@pytest.mark.slow
class TestSampler(SamplerSuite):
    plugin = "axl-gpu"

    def model(self):
        # As wide as kernels want it.
        wide = {"dim": 256, "**.num_heads": 4, "**.num_kv_heads": 2, "**.hidden_dim": 512}
        return update_config(super().model(), wide)


FUNCTIONS = {
    "cudnn_attention": cudnn_attention,
    "cudnn_wide_attention": cudnn_attention,
    "cudnn_packed_attention": cudnn_packed_attention,
}


def attention(name, **fields):
    return attention_case(AttentionTestCase(name=name, **fields))


class Attention(KernelSuite):
    """With cuDNN's calls simulated: their arguments, masks and gradients are the plugin's own."""

    plugin = "axl-gpu"
    keys = tuple(f"attention/{name}" for name in FUNCTIONS)
    dtypes = ("bfloat16",)

    def implementation(self, kernel):
        library = CUDNN if jax.default_backend() == "gpu" else SIMULATED
        return functools.partial(FUNCTIONS[kernel.name], library=library)

    def extra_cases(self, kernel):
        documents = {"queries": 40, "keys": 40, "parts": ("segments",), "spec": {"right": 0}}
        return (
            attention("packed", **documents, key_heads=4),
            attention("packed_wide", **documents, width=256, value_width=256),
        )

    def tolerance(self, dtype):
        return 2e-2, 4e-2  # probabilities are rounded to bfloat16 before they meet the values


@pytest.mark.quick_one_in(4)
class TestAttention(Attention):
    keys = ("attention/cudnn_attention", "attention/cudnn_packed_attention")
    case_names = ("packed",)


@pytest.mark.slow
class TestAttentionOnEveryCase(Attention):
    def extra_cases(self, kernel):
        documents = {"queries": 40, "keys": 40, "parts": ("segments",)}
        return (
            *super().extra_cases(kernel),
            attention("packed_full", **documents, key_heads=4),
            attention("packed_window", **documents, key_heads=4, spec={"left": 5, "right": 0}),
            attention("documents", **documents, spec={"right": 0}),
            attention("values", **documents, width=24, value_width=8, spec={"right": 0}),
        )


def grouped(name, *group_sizes, num_rows, width=64, out_width=64):
    sample = GroupedMatmulTestCase(
        name=name, group_sizes=group_sizes, num_rows=num_rows, width=width, out_width=out_width
    )
    return grouped_matmul_case(sample)


class GroupedMatmul(KernelSuite):
    """Widths are multiples of 64, as few cases of the op have."""

    plugin = "axl-gpu"
    keys = ("grouped_matmul/mosaic_grouped_matmul",)
    dtypes = ("bfloat16",)

    def extra_cases(self, kernel):
        return (grouped("block_sizes", 20, 0, 50, num_rows=130, out_width=128),)


def stand_in_product(x, w, *, group_sizes, **block_sizes):
    return jax.lax.ragged_dot(x, w, group_sizes, preferred_element_type=x.dtype)


class TestGroupedMatmul(GroupedMatmul):
    """What is around the library's kernel."""

    def implementation(self, kernel):
        if jax.default_backend() == "gpu":
            return mosaic_grouped_matmul, mosaic_grouped_matmul_backward
        return (
            functools.partial(mosaic_grouped_matmul, product=stand_in_product),
            functools.partial(
                mosaic_grouped_matmul_backward, product=stand_in_product, kernels=PLAIN_GROUPED
            ),
        )


@pytest.mark.slow
class TestGroupedMatmulInterpreted(GroupedMatmul):
    """The library's kernel itself. Its interpreter does not know remat."""

    test_remat_changes_no_gradient = None

    @pytest.fixture(autouse=True)
    def interpreter(self):
        with contextlib.ExitStack() as stack:
            if jax.default_backend() != "gpu":
                stack.enter_context(force_gpu_interpret_mode())
            yield

    def implementation(self, kernel):
        if jax.default_backend() == "gpu":
            return mosaic_grouped_matmul, mosaic_grouped_matmul_backward
        matrices = functools.partial(matrices_of_groups, variant=SIMPLE)
        kernels = PLAIN_GROUPED._replace(matrices=matrices)
        backward = functools.partial(mosaic_grouped_matmul_backward, kernels=kernels)
        return mosaic_grouped_matmul, backward

    def extra_cases(self, kernel):
        return (  # of one group, XLA's compiler for processors divides by zero
            *super().extra_cases(kernel),
            grouped("one_group_takes_all", 0, 0, 70, num_rows=70),
            grouped("leftover_rows", 5, 0, 71, num_rows=96, width=128),
            grouped("nothing", 0, 0, num_rows=64),
        )
