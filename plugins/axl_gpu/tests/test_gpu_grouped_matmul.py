"""Our grouped product for Hoppers: interpreted in both forms, and around it with plain products."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_gpu.kernels.grouped_matmul.api import (
    BLOCK_SIZES,
    KERNELS,
    Kernels,
    candidates,
    gpu_grouped_matmul,
    gpu_grouped_matmul_backward,
    unsupported_reason,
)
from axl_gpu.kernels.grouped_matmul.kernels import (
    GroupRows,
    RowTiles,
    matrices_of_groups,
    rows_of_groups,
)
from axl_gpu.kernels.matmul.block_sizes import MatmulBlockSizes
from mosaic_interpreter import SIMPLE, TUNED
from plain_matmuls import PLAIN_GROUPED
from rounding import assert_same_to_rounding

from axcore.ops import GroupedMatmulInputs
from axcore.ops.grouped_matmul.op import GROUPED_MATMUL_OP
from axcore.plugins import Hardware
from axcore.testing import GroupedMatmulTestCase, KernelSuite, grouped_matmul_case

H100 = Hardware.parse("gpu-h100-8")


def case(name, *group_sizes, num_rows, width=64, out_width=64):
    sample = GroupedMatmulTestCase(
        name=name, group_sizes=group_sizes, num_rows=num_rows, width=width, out_width=out_width
    )
    return grouped_matmul_case(sample)


def halves(kernels):
    both = (gpu_grouped_matmul, gpu_grouped_matmul_backward)
    return tuple(partial(half, kernels=kernels) for half in both)


class Grouped(KernelSuite):
    plugin = "axl-gpu"
    keys = ("grouped_matmul/gpu_grouped_matmul",)
    dtypes = ("bfloat16",)

    def extra_cases(self, kernel):
        return (case("block_sizes", 20, 0, 50, num_rows=130, out_width=128),)


class TestAround(Grouped):
    """What is around the kernels: meshes, remat and batches of calls."""

    def implementation(self, kernel):
        kernels = KERNELS if jax.default_backend() == "gpu" else PLAIN_GROUPED
        return halves(kernels)


class Interpreted(Grouped):
    """The kernels themselves. Their interpreter does not know remat."""

    test_remat_changes_no_gradient = None

    def implementation(self, kernel):
        if jax.default_backend() == "gpu":
            return halves(KERNELS)
        return halves(Kernels(*(partial(one, variant=SIMPLE) for one in KERNELS)))


class TestInterpreted(Interpreted):
    case_names = ("block_sizes",)
    test_vmap_equals_one_call_after_another = None
    test_jit_changes_nothing = None


@pytest.mark.slow
class TestInterpretedOnEveryCase(Interpreted):
    def extra_cases(self, kernel):
        return (
            *super().extra_cases(kernel),
            case("one_group_takes_all", 0, 0, 70, num_rows=70),
            case("leftover_rows", 5, 0, 71, num_rows=97, width=128),
            case("nothing", 0, 0, num_rows=10),
            case("more_groups_than_rows", *(1, 0) * 8, num_rows=16),
            case("large_tiles", 150, 120, num_rows=270, width=128, out_width=128),
        )


def arrays(num_rows, width, out_width):
    numbers = np.random.default_rng(3)
    shapes = ((num_rows, width), (num_rows, out_width))
    return [jnp.asarray(numbers.standard_normal(s), jnp.bfloat16) for s in shapes]


@pytest.mark.slow
def test_tuned_form_does_what_the_simple_one_says():
    x_RD, dy_RF = arrays(24, 128, 64)
    groups = GroupRows(jnp.array([3]), jnp.array([20]))
    block_sizes = MatmulBlockSizes(rows=64, columns=64, warp_groups=1, num_ahead=2)
    w_EDF = arrays(128, 64, 64)[0][None]

    def rows(variant):
        return rows_of_groups(
            x_RD, w_EDF, groups, is_transposed=False, block_sizes=block_sizes, variant=variant
        )[3:20]

    def matrices(variant):
        return matrices_of_groups(
            x_RD[:, :64], dy_RF, groups, block_sizes=block_sizes, variant=variant
        )

    for run in (rows, matrices):
        tuned, simple = (jax.jit(run, static_argnums=0)(v) for v in (TUNED, SIMPLE))
        assert_same_to_rounding(tuned, simple)


def test_rows_of_no_group_have_no_part_in_gradients_even_where_they_are_nan():
    x_RD, dy_RF = arrays(72, 64, 64)
    dy_RF = dy_RF.at[30:].set(jnp.nan)
    x_RD = x_RD.at[:5].set(jnp.inf)
    groups = GroupRows(jnp.array([5, 20]), jnp.array([20, 30]))
    block_sizes = MatmulBlockSizes(rows=64, columns=64, warp_groups=1)
    dw_EDF = jax.jit(partial(matrices_of_groups, block_sizes=block_sizes, variant=SIMPLE))(
        x_RD, dy_RF, groups
    )
    wanted = [np.float32(x_RD[a:b]).T @ np.float32(dy_RF[a:b]) for a, b in ((5, 20), (20, 30))]
    np.testing.assert_allclose(np.float32(dw_EDF), wanted, atol=0.1)


@pytest.mark.slow
def test_nan_stays_in_its_row():
    x_RD, _ = arrays(24, 64, 64)
    x_RD = x_RD.at[7].set(jnp.nan)
    w_EDF = jnp.ones((2, 64, 64), jnp.bfloat16)
    groups = GroupRows.of(jnp.array([8, 10]), 24)
    block_sizes = MatmulBlockSizes(rows=64, columns=64, warp_groups=1)
    run = jax.jit(
        partial(rows_of_groups, is_transposed=False, block_sizes=block_sizes, variant=SIMPLE)
    )
    is_nan = np.isnan(np.float32(run(x_RD, w_EDF, groups)))
    assert is_nan[7].all()
    assert not np.delete(is_nan, 7, axis=0).any()


@pytest.mark.parametrize("sizes", [(3, 0, 60, 9), (0, 0, 0, 0), (80, 0, 0, 0), (8, 64, 8, 0)])
def test_tiles_hold_each_row_once(sizes):
    groups = GroupRows.of(jnp.array(sizes), 80)
    layout = RowTiles.of(groups, 80, 64)
    owners = np.full(80, -1)
    for group, first, start, end in zip(*map(np.asarray, layout), strict=True):
        assert start >= 8 * first
        assert end <= 8 * first + 64
        assert (owners[start:end] == -1).all()
        owners[start:end] = group
    wanted = np.repeat(np.arange(5), [*sizes, 80 - sum(sizes)])
    np.testing.assert_array_equal(owners, wanted)


@pytest.mark.parametrize(
    ("sizes", "dtype", "reason"),
    [
        ((4, 64, 96), "bfloat16", "multiples of 64, not 64 and 96"),
        ((4, 64, 64), "float32", "bfloat16 and float16, not float32"),
        ((0, 64, 64), "bfloat16", "1 to 65535 groups, not 0"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(sizes, dtype, reason):
    x = jnp.zeros((128, sizes[1]), dtype)
    w = jnp.zeros(sizes, dtype)
    sizes_E = jnp.zeros(sizes[:1], "int32")
    assert reason in unsupported_reason(GROUPED_MATMUL_OP.call(GroupedMatmulInputs(x, w, sizes_E)))


def test_tiles_fit_shared_memory():
    x = jnp.zeros((4096, 1024), "bfloat16")
    w = jnp.zeros((8, 1024, 2048), "bfloat16")
    call = GROUPED_MATMUL_OP.call(GroupedMatmulInputs(x, w, jnp.zeros((8,), "int32")))
    tried = list(candidates(call, H100))
    assert BLOCK_SIZES.entry(call, H100).block_sizes in tried
    assert all(block_sizes.shared_bytes(2, 2) <= 227 * 1024 for block_sizes in tried)
