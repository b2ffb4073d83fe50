"""Rows that travel to their experts: who has room gets there, who has none is counted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.layers.moe.token_permutation import TokenPermutation, expert_all_to_all
from axcore.ops import occupancy_of
from axcore.parallel import make_mesh

DEVICES, ROWS, DIM, EXPERTS = 4, 12, 3, 8
PER_DEVICE = EXPERTS // DEVICES


def _scaled(rows, sizes):
    """Multiplies each row by one more than its expert's number on this device."""
    bounds = jnp.cumsum(sizes)
    expert = jnp.searchsorted(bounds, jnp.arange(len(rows)), side="right")
    return rows * (expert + 1)[:, None].astype(rows.dtype)


@pytest.fixture(scope="module")
def sent():
    """Rows of each device, sorted by expert, with an uneven load."""
    draw = np.random.default_rng(0)
    odds = np.arange(1, EXPERTS + 1) ** 2.0
    experts = draw.choice(EXPERTS, (DEVICES, ROWS), p=odds / odds.sum())
    return draw.normal(size=(DEVICES, ROWS, DIM)).astype(np.float32), np.sort(experts, axis=1)


def _run(x, experts, room):
    return jax.device_get(_mapped(room)(x, experts))


def _mapped(room):
    mesh = make_mesh({"expert": DEVICES}, jax.devices()[:DEVICES])

    def on_one(x, experts):
        permutation = TokenPermutation.of(experts[0], EXPERTS)
        y, dropped = expert_all_to_all(_scaled, x[0], permutation, ("expert",), room)
        return y, dropped[None]

    spec = jax.P("expert")
    return jax.jit(jax.shard_map(on_one, mesh=mesh, in_specs=(spec, spec), out_specs=(spec, spec)))


def _kept(experts, block):
    """Whether each row is among the first of its device for the device of its expert."""
    to = experts // PER_DEVICE
    rank = np.array([[np.sum(row[:i] == row[i]) for i in range(ROWS)] for row in to])
    return rank < block


@pytest.mark.parametrize("room", [None, float(DEVICES), 9.0])
def test_where_all_have_room_none_is_lost(sent, room):
    x, experts = sent
    y, dropped = _run(x, experts, room)
    np.testing.assert_allclose(y, x * (experts % PER_DEVICE + 1)[..., None], rtol=1e-6)
    assert not dropped.any()


@pytest.mark.parametrize(("room", "block"), [(1.0, 3), (1.3, 4), (0.1, 1)])
@pytest.mark.quick_one_in(3)
def test_the_first_rows_of_a_block_get_there_and_zeros_are_in_the_place_of_the_others(
    sent, room, block
):
    x, experts = sent
    kept = _kept(experts, block)
    assert not kept.all()
    y, dropped = _run(x, experts, room)
    expected = x * (experts % PER_DEVICE + 1)[..., None] * kept[..., None]
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    np.testing.assert_allclose(dropped, 1 - kept.mean(axis=1), rtol=1e-6)


@pytest.mark.parametrize(("room", "share"), [(None, 0.25), (2.0, 0.5), (0.5, 1.0)])
def test_the_program_says_which_share_of_its_rows_an_even_load_fills(sent, room, share):
    text = _mapped(room).lower(*sent).as_text(debug_info=True)
    assert {occupancy_of(line) for line in text.splitlines() if "occupied_" in line} == {share}


def test_rows_that_stay_behind_have_no_gradient(sent):
    x, experts = sent
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(_total(x, experts))))(x)
    expected = (experts % PER_DEVICE + 1) * _kept(experts, 3)
    np.testing.assert_allclose(gradient, np.repeat(expected[..., None], DIM, -1), rtol=1e-6)


def _total(x, experts):
    mesh = make_mesh({"expert": DEVICES}, jax.devices()[:DEVICES])

    def on_one(x, experts):
        permutation = TokenPermutation.of(experts[0], EXPERTS)
        return expert_all_to_all(_scaled, x[0], permutation, ("expert",), 1.0)[0]

    spec = jax.P("expert")
    return jax.shard_map(on_one, mesh=mesh, in_specs=(spec, spec), out_specs=spec)(x, experts)
