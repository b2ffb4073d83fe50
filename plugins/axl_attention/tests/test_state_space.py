"""State spaces: the recurrence that they are, and documents that do not see each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_attention.layers import MixerLayer
from axl_attention.mamba2 import LogOfUniform, Mamba2, StepBias
from axl_attention.recurrence import CausalConv, Inputs, state_space

from axcore.errors import ConfigError
from axcore.layers import TokenInfo
from axcore.module import functional

TIME, GROUPS, HEADS, WIDTH, STATE = 11, 2, 3, 4, 5
SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 0], [4] * TIME], np.int32)


def inputs(random):
    return Inputs(
        random(2, TIME, GROUPS, HEADS, WIDTH),
        np.abs(random(2, TIME, GROUPS, HEADS)),
        random(2, TIME, GROUPS, STATE),
        random(2, TIME, GROUPS, STATE),
        SEGMENTS,
    )


def recurrence(one, a):
    """The definition, token by token, in float64."""
    x, dt, b, c, segments = (np.asarray(array, np.float64) for array in one)
    y = np.zeros(x.shape)
    for row in range(len(x)):
        state = np.zeros((GROUPS, HEADS, WIDTH, STATE))
        for t in range(TIME):
            begins = t == 0 or segments[row, t] != segments[row, t - 1]
            kept = np.exp(dt[row, t] * a)[..., None, None] * (0.0 if begins else state)
            entering = (dt[row, t][..., None] * x[row, t])[..., None]
            state = kept + entering * b[row, t][:, None, None, :]
            y[row, t] = np.einsum("grpn,gn->grp", state, c[row, t])
    return y


@pytest.mark.parametrize("chunk", [1, 4, 256])
def test_chunks_of_any_size_are_the_recurrence(random, chunk):
    one, a = inputs(random), -np.abs(random(GROUPS, HEADS))
    got, _ = jax.jit(state_space, static_argnames="chunk")(one, a, chunk=chunk)
    np.testing.assert_allclose(got, recurrence(one, a), rtol=1e-4, atol=1e-4)


def test_convolution_sees_no_other_document(random):
    weight, x = random(3, 4), random(2, TIME, 3)
    conv = CausalConv.Config(dim=3, axis=None, has_bias=False).build()
    info = TokenInfo(np.zeros((2, TIME), np.int32), jnp.asarray(SEGMENTS))
    got, _ = functional(conv, {"weight": jnp.asarray(weight)}, jnp.asarray(x), info)
    expected = np.zeros(x.shape)
    for row, t, back in np.ndindex(2, TIME, 4):
        if t >= back and SEGMENTS[row, t - back] == SEGMENTS[row, t]:
            expected[row, t] += weight[:, 3 - back] * x[row, t - back]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_documents_of_a_row_are_mixed_as_if_each_were_a_row(random, state_of, call):
    cfg = Mamba2.Config(dim=8, num_heads=4, head_dim=4, num_groups=2, state_dim=3, chunk=4)
    layer = cfg.build()
    state, x = state_of(layer), random(1, TIME, 8)
    positions = np.zeros((1, TIME), np.int32)
    packed = call(layer, state, x, TokenInfo(positions, SEGMENTS[:1]))
    for begin, end in ((3, 9), (9, 10)):
        alone = call(layer, state, x[:, begin:end], TokenInfo(positions[:, begin:end]))
        np.testing.assert_allclose(packed[:, begin:end], alone, rtol=1e-4, atol=1e-5)


def test_heads_that_no_groups_divide_are_refused():
    with pytest.raises(ConfigError, match="num_heads is 4, not a multiple of num_groups, 3"):
        Mamba2.Config(num_heads=4, num_groups=3).build(dim=8)


def test_first_steps_and_decays_are_in_their_ranges():
    key = jax.random.key(0)
    biases = np.asarray(StepBias().sample(key, (64,), (1, 1)), np.float64)
    steps = np.log1p(np.exp(biases))
    assert 0.99e-3 < steps.min() < 3e-3 < 0.03 < steps.max() < 0.101
    decays = np.exp(np.asarray(LogOfUniform().sample(key, (64,), (1, 1))))
    assert 1.0 <= decays.min() < 4.0 < 12.0 < decays.max() <= 16.0


def test_layer_of_one_branch_adds_what_the_mixer_makes_of_normed_tokens(
    random, whole, state_of, call
):
    mixer = Mamba2.Config(num_heads=2, head_dim=4, state_dim=3)
    module, x = MixerLayer.Config(mixer=mixer).build(dim=4), random(2, 8, 4)
    state = state_of(module)
    normed = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    normed = normed * state["residual"]["norm"]["weight"]
    mixed = call(mixer.build(dim=4), state["mixer"], normed, whole)
    np.testing.assert_allclose(call(module, state, x, whole), x + mixed, atol=1e-4)
