"""The grouped matrix product by our Pallas kernels: interpreted, and compiled."""

from functools import partial

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_tpu.kernels.grouped_matmul.api import (
    tpu_grouped_matmul,
    tpu_grouped_matmul_backward,
    unsupported_reason,
)
from axl_tpu.kernels.grouped_matmul.block_sizes import (
    BLOCK_SIZES,
    GroupBlockSchedule,
    GroupedBlockSizes,
)
from kernel_blocks import in_blocks
from pallas_races import CAREFUL, check_no_race_was_printed

from axcore.ops import Call, GroupedMatmulInputs, KernelPolicy, choose
from axcore.ops.contract import relative_error
from axcore.ops.grouped_matmul.kernels import grouped_matmul_reference
from axcore.ops.grouped_matmul.op import GROUPED_MATMUL_OP
from axcore.plugins import Hardware
from axcore.testing import CompileSuite, GroupedMatmulTestCase, KernelSuite, grouped_matmul_case

KEYS = ("grouped_matmul/tpu_grouped_matmul",)
SMALL = GroupedBlockSizes(rows=16, summed=128, columns=128)


def halves(interpret):
    both = (tpu_grouped_matmul, tpu_grouped_matmul_backward)
    return tuple(partial(half, interpret=interpret) for half in both)


def in_small_blocks(interpret):
    return tuple(in_blocks(BLOCK_SIZES, SMALL, half) for half in halves(interpret))


class TestKernel(KernelSuite):
    plugin = "axl-tpu"
    keys = KEYS
    dtypes = ("float32",)
    case_names = ("uneven", "leftover_rows", "nothing")

    def implementation(self, kernel):
        return halves(jax.default_backend() != "tpu")

    def tolerance(self, dtype):
        return (2e-5, 1e-4) if dtype == "float32" else super().tolerance(dtype)


@pytest.mark.slow
class TestKernelOnEveryCase(TestKernel):
    dtypes = ("float32", "bfloat16")
    case_names = None

    def implementation(self, kernel):
        return in_small_blocks(jax.default_backend() != "tpu")

    def extra_cases(self, kernel):
        def case(name, group_sizes, num_rows, **widths):
            sample = GroupedMatmulTestCase(
                name=name, group_sizes=group_sizes, num_rows=num_rows, **widths
            )
            return grouped_matmul_case(sample)

        return (
            case("rest_of_every_size", (50, 0, 33, 7, 0), 101, width=200, out_width=330),
            case("more_rows_than_are_there", (50, 60), 70),
        )


@pytest.mark.slow
def test_steps_do_not_race_and_padding_is_not_seen(capsys):
    sample = GroupedMatmulTestCase(
        name="careful", group_sizes=(9, 0, 20), num_rows=35, width=150, out_width=140
    )
    x, w, sizes = sample.make()

    def gradients(kernel):
        def loss(x, w):
            return jnp.sum(jnp.sin(kernel(GroupedMatmulInputs(x, w, sizes), None)))

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(x, w)

    forward, backward = in_small_blocks(CAREFUL)
    careful = partial(GROUPED_MATMUL_OP.custom_vjp, forward=forward, backward=backward)
    got, wanted = gradients(careful), gradients(grouped_matmul_reference)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert relative_error(one, other) < 1e-4
    check_no_race_was_printed(capsys)


@pytest.mark.parametrize(
    "sizes", [(5, 0, 11), (16, 16), (0, 0), (40,), (0, 3, 30, 0), (50, 9)], ids=str
)
@pytest.mark.quick_one_in(3)
def test_every_row_of_a_group_is_visited_once_by_it(sizes):
    num_rows, block = 40, 16
    ends = np.minimum(np.cumsum(sizes), num_rows)
    schedule = GroupBlockSchedule.of_blocks(jnp.asarray(sizes, jnp.int32), num_rows, block)
    groups = GroupBlockSchedule.of_groups(jnp.asarray(sizes, jnp.int32), num_rows, block)
    group_of_row = np.searchsorted(ends, np.arange(num_rows), side="right")
    wanted = {(group, row // block) for row, group in enumerate(group_of_row)}
    assert pairs(schedule) == sorted(wanted, key=lambda pair: (pair[1], pair[0]))
    assert {group for group, _ in pairs(groups)} == set(range(len(sizes)))
    assert {pair for pair in wanted if pair[0] < len(sizes)} <= set(pairs(groups))


def pairs(schedule):
    live = np.asarray(schedule.is_active_P) == 1
    group, block = np.asarray(schedule.group_P)[live], np.asarray(schedule.block_P)[live]
    return list(zip(group.tolist(), block.tolist(), strict=True))


def call_of(dtype="bfloat16", x=(256, 64), w=(8, 64, 64)):
    return Call(op="grouped_matmul", shapes=(("x", x), ("w", w)), dtypes=(("x", dtype),))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (call_of(dtype="float16"), "not float16"),
        (call_of(x=(0, 64)), "no empty array"),
        (call_of(x=(2**24, 64)), "up to 65536 blocks of rows and groups, not 131080"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(call, reason):
    assert reason in unsupported_reason(call)


@pytest.mark.parametrize(
    ("target", "validated", "fastest"),
    [
        ("tpu-v5p-8", "megablox", "tpu_grouped_matmul"),
        ("tpu-v4-8", "megablox", "megablox"),
        ("tpu-7x-8", "tpu_grouped_matmul", "tpu_grouped_matmul"),
    ],
)
def test_ours_is_the_faster_where_it_fits_the_chip_and_the_library_is_validated(
    target, validated, fastest
):
    policy = KernelPolicy(hardware=Hardware.parse(target))
    case = grouped_matmul_case(GroupedMatmulTestCase(name="any", group_sizes=(8, 8), num_rows=16))
    call = case.abstract_call("bfloat16")
    assert choose(call, policy).kernel.name == validated
    assert choose(call, attrs.evolve(policy, kernel_choice="fastest")).kernel.name == fastest


class TestCompile(CompileSuite):
    plugin = "axl-tpu"
    keys = KEYS
    targets = ("tpu-v5e-8", "tpu-v5p-8", "tpu-v6e-8")
    calls = {"tpu_grouped_matmul": ('custom_call_target="tpu_custom_call"', 3)}

    def cases(self, kernel):
        def case(name, group_sizes, **fields):
            return grouped_matmul_case(
                GroupedMatmulTestCase(name=name, group_sizes=group_sizes, **fields)
            )

        return (
            case("experts", (2048,) * 8, num_rows=16384, width=4096, out_width=14336),
            case("small_experts", (100,) * 64, num_rows=6400, width=2048, out_width=1408),
            case("odd", (100, 0, 80), num_rows=200, width=80, out_width=200),
        )
