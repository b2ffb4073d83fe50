"""The portable grouped matrix product means what its reference means, at constant work."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from axcore.errors import KernelError
from axcore.ops import grouped_matmul
from axcore.ops.contract import TOLERANCES, relative_error
from axcore.ops.grouped_matmul.contract import GROUPED_MATMUL_TEST_CASES
from axcore.ops.grouped_matmul.kernels import (
    block_size,
    grouped_matmul_portable,
    grouped_matmul_portable_backward,
    grouped_matmul_reference,
)
from axcore.ops.grouped_matmul.op import GROUPED_MATMUL_OP, GroupedMatmulInputs

SAMPLES = {sample.name: sample for sample in GROUPED_MATMUL_TEST_CASES}


PORTABLE = partial(
    GROUPED_MATMUL_OP.custom_vjp,
    forward=grouped_matmul_portable,
    backward=grouped_matmul_portable_backward,
)


@partial(jax.jit, static_argnums=0)
def run(function, x, w, group_sizes):
    def loss(x, w):
        y = function(GroupedMatmulInputs(x, w, group_sizes), None)
        return jnp.sum(jnp.sin(y.astype(jnp.float32))), y

    (_, y), gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(x, w)
    return y, *gradients


def assert_equal(got, want, dtype="float32"):
    assert relative_error(got[0], want[0]) <= TOLERANCES[dtype].forward
    for x, y in zip(got[1:], want[1:], strict=True):
        assert x.dtype == y.dtype
        assert relative_error(x, y) <= TOLERANCES[dtype].backward


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.quick_one_in(8)
def test_portable_equals_the_reference(name, dtype):
    arguments = SAMPLES[name].make(dtype)
    want = run(grouped_matmul_reference, *arguments)
    assert_equal(run(PORTABLE, *arguments), want, dtype)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(sizes=st.lists(st.integers(0, 40), min_size=6, max_size=6))
def test_any_split_of_rows_equals_the_reference(sizes):
    x, w, _ = SAMPLES["uneven"].make()
    w = jnp.concatenate([w, w[:1]])
    group_sizes = jnp.asarray(sizes, jnp.int32)
    want = run(grouped_matmul_reference, x, w, group_sizes)
    assert_equal(run(PORTABLE, x, w, group_sizes), want)


@pytest.mark.slow
def test_equal_matrices_make_it_one_plain_product():
    x, w, group_sizes = SAMPLES["uneven"].make()
    same = jnp.broadcast_to(w[:1], w.shape)
    assert relative_error(grouped_matmul(x, same, group_sizes), x @ w[0]) <= 1e-6


def test_rows_of_no_group_give_zeros_and_take_no_gradient():
    y, dx, _ = run(PORTABLE, *SAMPLES["leftover_rows"].make())
    assert y[:16].any()
    assert not y[16:].any()
    assert not dx[16:].any()


def test_work_does_not_grow_with_the_number_of_groups():
    def rows_computed(num_groups):
        size = block_size(4096, num_groups)
        return size * (-(-4096 // size) + num_groups)

    assert all(rows_computed(num_groups) <= 3 * 4096 for num_groups in (1, 8, 64, 512))


def test_vmap_and_remat_equal_a_loop():
    x, w, group_sizes = SAMPLES["uneven"].make()
    xs = jnp.stack([x, 2.0 * x])
    sizes = jnp.stack([group_sizes, group_sizes[::-1]])

    def loss(x, group_sizes):
        return jnp.sum(jnp.sin(jax.checkpoint(grouped_matmul)(x, w, group_sizes)))

    mapped = jax.jit(jax.vmap(jax.grad(loss)))(xs, sizes)
    for i in range(2):
        alone = jax.jit(jax.grad(loss))(xs[i], sizes[i])
        assert relative_error(mapped[i], alone) <= 1e-5


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((np.ones((2, 4, 4)), np.ones((3, 4, 5)), np.ones(3, int)), "expected RD, EDF and E"),
        ((np.ones((4, 6)), np.ones((3, 4, 5)), np.ones(3, int)), "differ in D or E"),
        ((np.ones((4, 4)), np.ones((3, 4, 5)), np.ones(2, int)), "differ in D or E"),
        ((np.ones((4, 4)), np.ones((3, 4, 5), jnp.bfloat16), np.ones(3, int)), "one floating"),
        ((np.ones((4, 4)), np.ones((3, 4, 5)), np.ones(3)), "group_sizes are float32"),
    ],
)
def test_misfits_are_named(arrays, message):
    x, w, group_sizes = (
        jnp.asarray(a, None if a.dtype != np.float64 else "float32") for a in arrays
    )
    with pytest.raises(KernelError, match=message):
        grouped_matmul(x, w, group_sizes)
