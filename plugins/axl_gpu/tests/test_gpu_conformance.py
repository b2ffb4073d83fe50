"""axl-gpu, proven by axcore's suites.

Where there is no GPU, cuDNN attention is XLA's stand-in, and the Pallas kernel is interpreted.
"""

import contextlib
import functools

import jax
import pytest
from axl_gpu.cudnn_attention import attend, cudnn_attention
from axl_gpu.mosaic_grouped_matmul import mosaic_grouped_matmul
from jax._src.pallas.mosaic_gpu.interpret.params import force_gpu_interpret_mode

from axcore.testing import (
    AttentionSample,
    GroupedMatmulSample,
    KernelSuite,
    MeshRuleSuite,
    PluginSuite,
    attention_case,
    grouped_matmul_case,
)


def stand_in(inputs, spec):
    return attend(inputs, spec, implementation="xla")


class TestPlugin(PluginSuite):
    plugin = "axl-gpu"


class TestMeshRules(MeshRuleSuite):
    plugin = "axl-gpu"


class TestAttention(KernelSuite):
    """The stand-in takes the same arguments and masks; its rounding is XLA's."""

    plugin = "axl-gpu"
    keys = ("attention/cudnn_attention",)
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


def grouped(name, *group_sizes, num_rows, width=64, out_width=64):
    sample = GroupedMatmulSample(
        name=name, group_sizes=group_sizes, num_rows=num_rows, width=width, out_width=out_width
    )
    return grouped_matmul_case(sample)


class GroupedMatmul(KernelSuite):
    """Widths are multiples of 64, and no case of the op has such."""

    plugin = "axl-gpu"
    keys = ("grouped_matmul/mosaic_grouped_matmul",)
    dtypes = ("bfloat16",)

    def extra_cases(self, kernel):
        return (grouped("tiles", 20, 0, 50, num_rows=130, out_width=128),)


def stand_in_product(x, w, *, group_sizes, **tiles):
    return jax.lax.ragged_dot(x, w, group_sizes, preferred_element_type=x.dtype)


class TestGroupedMatmul(GroupedMatmul):
    """What is around the library's kernel."""

    def implementation(self, kernel):
        if jax.default_backend() == "gpu":
            return mosaic_grouped_matmul
        return functools.partial(mosaic_grouped_matmul, product=stand_in_product)


@pytest.mark.slow
class TestGroupedMatmulInterpreted(GroupedMatmul):
    """The library's kernel itself. Its interpreter knows neither remat nor `shard_map`."""

    test_remat_changes_no_gradient = None
    test_devices_of_a_mesh_give_what_one_device_does = None

    @pytest.fixture(autouse=True)
    def interpreter(self):
        with contextlib.ExitStack() as stack:
            if jax.default_backend() != "gpu":
                stack.enter_context(force_gpu_interpret_mode())
            yield

    def implementation(self, kernel):
        return mosaic_grouped_matmul

    def extra_cases(self, kernel):
        return (
            *super().extra_cases(kernel),
            grouped("one_group", 64, num_rows=64),
            grouped("one_group_takes_all", 0, 0, 70, num_rows=70),
            grouped("leftover_rows", 5, 0, 71, num_rows=96, width=128),
            grouped("nothing", 0, 0, num_rows=64),
            grouped("many_groups", *(1, 0) * 8, num_rows=64),
        )
