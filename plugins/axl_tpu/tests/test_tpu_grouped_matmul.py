"""The grouped matrix product by our Pallas kernels: interpreted, and compiled."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_tpu.kernels.grouped_matmul import accepts, tpu_grouped_matmul
from axl_tpu.kernels.grouped_tiles import TILES, GroupedTiles
from axl_tpu.kernels.grouped_visits import Visits
from pallas_races import CAREFUL, check_no_race_was_printed

from axcore.ops import Call, KernelPolicy, choose
from axcore.ops.grouped_matmul_reference import grouped_matmul_reference
from axcore.ops.tolerance import relative_error
from axcore.plugins import Hardware
from axcore.testing import CompileSuite, GroupedMatmulSample, KernelSuite, grouped_matmul_case

KEYS = ("grouped_matmul/tpu_grouped_matmul",)
SMALL = GroupedTiles(rows=16, summed=128, columns=128)


def in_small_tiles(interpret):
    def kernel(*args):
        with TILES.forced(SMALL):
            return tpu_grouped_matmul(*args, interpret=interpret)

    return kernel


class TestKernel(KernelSuite):
    plugin = "axl-tpu"
    keys = KEYS
    dtypes = ("float32",)
    case_names = ("uneven", "leftover_rows", "nothing")

    def implementation(self, kernel):
        return partial(tpu_grouped_matmul, interpret=jax.default_backend() != "tpu")

    def tolerance(self, dtype):
        return (2e-5, 1e-4) if dtype == "float32" else super().tolerance(dtype)


@pytest.mark.slow
class TestKernelOnEveryCase(TestKernel):
    dtypes = ("float32", "bfloat16")
    case_names = None

    def implementation(self, kernel):
        return in_small_tiles(jax.default_backend() != "tpu")

    def extra_cases(self, kernel):
        def case(name, group_sizes, num_rows, **widths):
            sample = GroupedMatmulSample(
                name=name, group_sizes=group_sizes, num_rows=num_rows, **widths
            )
            return grouped_matmul_case(sample)

        return (
            case("rest_of_every_size", (50, 0, 33, 7, 0), 101, width=200, out_width=330),
            case("more_rows_than_are_there", (50, 60), 70),
        )


@pytest.mark.slow
def test_steps_do_not_race_and_padding_is_not_seen(capsys):
    sample = GroupedMatmulSample(
        name="careful", group_sizes=(9, 0, 20), num_rows=35, width=150, out_width=140
    )
    x, w, sizes = sample.make()

    def gradients(kernel):
        loss = lambda x, w: jnp.sum(jnp.sin(kernel(x, w, sizes)))  # noqa: E731
        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(x, w)

    got, wanted = gradients(in_small_tiles(CAREFUL)), gradients(grouped_matmul_reference)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert relative_error(one, other) < 1e-4
    check_no_race_was_printed(capsys)


@pytest.mark.parametrize(
    "sizes", [(5, 0, 11), (16, 16), (0, 0), (40,), (0, 3, 30, 0), (50, 9)], ids=str
)
def test_every_row_of_a_group_is_visited_once_by_it(sizes):
    num_rows, block = 40, 16
    ends = np.minimum(np.cumsum(sizes), num_rows)
    visits = Visits.of_blocks(jnp.asarray(sizes, jnp.int32), num_rows, block)
    groups = Visits.of_groups(jnp.asarray(sizes, jnp.int32), num_rows, block)
    group_of_row = np.searchsorted(ends, np.arange(num_rows), side="right")
    wanted = {(group, row // block) for row, group in enumerate(group_of_row)}
    assert pairs(visits) == sorted(wanted, key=lambda pair: (pair[1], pair[0]))
    assert {group for group, _ in pairs(groups)} == set(range(len(sizes)))
    assert {pair for pair in wanted if pair[0] < len(sizes)} <= set(pairs(groups))


def pairs(visits):
    live = np.asarray(visits.is_live_P) == 1
    group, block = np.asarray(visits.group_P)[live], np.asarray(visits.block_P)[live]
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
    assert reason in accepts(call)


@pytest.mark.parametrize(
    ("target", "name"), [("tpu-v5p-8", "tpu_grouped_matmul"), ("tpu-v4-8", "megablox")]
)
def test_the_better_of_two_is_chosen_where_it_fits_the_chip(target, name):
    policy = KernelPolicy(hardware=Hardware.parse(target))
    case = grouped_matmul_case(GroupedMatmulSample(name="any", group_sizes=(8, 8), num_rows=16))
    assert choose(case.abstract_call("bfloat16"), policy).kernel.name == name


class TestCompile(CompileSuite):
    plugin = "axl-tpu"
    keys = KEYS
    targets = ("tpu-v5e-8", "tpu-v5p-8", "tpu-v6e-8")
    calls = {"tpu_grouped_matmul": ('custom_call_target="tpu_custom_call"', 3)}

    def cases(self, kernel):
        def case(name, group_sizes, **fields):
            return grouped_matmul_case(
                GroupedMatmulSample(name=name, group_sizes=group_sizes, **fields)
            )

        return (
            case("experts", (2048,) * 8, num_rows=16384, width=4096, out_width=14336),
            case("small_experts", (100,) * 64, num_rows=6400, width=2048, out_width=1408),
            case("odd", (100, 0, 80), num_rows=200, width=80, out_width=200),
        )
