"""Positions, each against its formula written out in plain numpy."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from axl_attention.norms import QueryKeyNorm
from axl_attention.positions import PartialRotary, SinusoidalPosition
from axl_attention.rope_scaling import (
    LinearRoPE,
    Llama3RoPE,
    LongRoPE,
    NTKRoPE,
    YaRN,
    document_lengths,
    yarn_attention_factor,
)
from rounding import assert_same_to_rounding

from axcore.config import evolve
from axcore.errors import ConfigError
from axcore.layers import (
    Embedding,
    KVCacheConfig,
    LearnedPosition,
    NoPosition,
    RMSNorm,
    RoPE,
    continued_rows,
)
from axcore.modifiers import for_serving

HEAD_DIM, THETA = 64, 10_000.0
POSITIONS = np.array([[0, 1, 2, 3, 500, 1000], [7, 8, 9, 4095, 4096, 30_000]], np.int32)


def turned(x, frequencies, amplitude=1.0):
    """Rotates pairs `(i, i + half)` as complex numbers."""
    half = x.shape[-1] // 2
    pairs = x[..., :half].astype(np.float64) + 1j * x[..., half:]
    angles = POSITIONS[:, :, None, None] * np.asarray(frequencies)
    turned = amplitude * pairs * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def plain(head_dim=HEAD_DIM, theta=THETA):
    return [theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]


def yarn_by_turns_of_each_pair(factor, length, fast=32, slow=1):
    """As the authors' program: a ramp between two whole numbers of pairs."""

    def pair_of(turns):
        return HEAD_DIM * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(THETA))

    low, high = math.floor(pair_of(fast)), math.ceil(pair_of(slow))
    out = []
    for i, frequency in enumerate(plain()):
        ramp = min(max((i - low) / (high - low), 0.0), 1.0)
        out.append(frequency * (1 - ramp) + frequency / factor * ramp)
    return out


def llama3_by_wavelength(factor=8.0, low=1.0, high=4.0, length=8192):
    """As Meta's `apply_scaling`, branch by branch."""
    out = []
    for frequency in plain(theta=500_000.0):
        wavelength = 2 * math.pi / frequency
        if wavelength < length / high:
            out.append(frequency)
        elif wavelength > length / low:
            out.append(frequency / factor)
        else:
            smooth = (length / wavelength - low) / (high - low)
            out.append((1 - smooth) * frequency / factor + smooth * frequency)
    return out


def long_rope(short=(1.0, 2.0, 3.0, 4.0), long=(1.0, 4.0, 16.0, 64.0)):
    factors = {"short_factors": short, "long_factors": long}
    return LongRoPE.Config(theta=THETA, original_length=4, attention_factor=1.25, **factors)


@pytest.mark.parametrize(
    ("cfg", "frequencies", "amplitude"),
    [
        (LinearRoPE.Config(theta=THETA, factor=8.0), [f / 8 for f in plain()], 1.0),
        (
            NTKRoPE.Config(theta=THETA, factor=4.0),
            plain(theta=THETA * 4 ** (HEAD_DIM / (HEAD_DIM - 2))),
            1.0,
        ),
        (
            YaRN.Config(theta=THETA, factor=40.0, original_length=4096),
            yarn_by_turns_of_each_pair(40.0, 4096),
            0.1 * math.log(40.0) + 1.0,
        ),
        (
            YaRN.Config(theta=THETA, factor=16.0, original_length=2048, attention_factor=1.0),
            yarn_by_turns_of_each_pair(16.0, 2048),
            1.0,
        ),
        (Llama3RoPE.Config(theta=500_000.0), llama3_by_wavelength(), 1.0),
        (
            Llama3RoPE.Config(theta=500_000.0, factor=16.0, high_frequency_factor=1.0),
            llama3_by_wavelength(factor=16.0, high=1.0),
            1.0,
        ),
    ],
    ids=["linear", "ntk", "yarn", "yarn_without_factor", "llama3", "llama4"],
)
def test_scaled_rope_turns_pairs_by_its_formula(call, random, cfg, frequencies, amplitude):
    q, k = random(2, 6, 2, HEAD_DIM), random(2, 6, 1, HEAD_DIM)
    got_q, got_k = call(cfg.build(head_dim=HEAD_DIM), {}, q, k, POSITIONS)
    # Angles of float32 are off by up to 30000 * 2 ** -24 radians.
    np.testing.assert_allclose(got_q, turned(q, frequencies, amplitude), atol=2e-2)
    np.testing.assert_allclose(got_k, turned(k, frequencies, amplitude), atol=2e-2)
    np.testing.assert_allclose(got_q[0, :4], turned(q, frequencies, amplitude)[0, :4], atol=2e-5)


def test_documents_are_as_long_as_their_positions_count_up():
    rows = np.array([[0, 1, 2, 0, 1, 0, 0, 0], [3, 4, 5, 6, 0, 1, 2, 3]], np.int32)
    lengths = [[3, 3, 3, 2, 2, 1, 1, 1], [7, 7, 7, 7, 4, 4, 4, 4]]
    assert document_lengths(jnp.asarray(rows)).tolist() == lengths


def test_long_documents_turn_by_other_factors_than_short_ones_beside_them(call, random):
    q, k = random(1, 9, 2, 8), random(1, 9, 1, 8)
    positions = np.array([[0, 1, 2, 3, 0, 1, 2, 3, 4]], np.int32)
    got = call(long_rope().build(head_dim=8), {}, q, k, positions)
    plain_frequencies = np.array(plain(head_dim=8))
    for x, both in zip((q, k), got, strict=True):
        for at, factors in ((slice(4), (1, 2, 3, 4)), (slice(4, 9), (1, 4, 16, 64))):
            pairs = x[:, at, :, :4] + 1j * x[:, at, :, 4:]
            angles = positions[:, at, None, None] * (plain_frequencies / factors)
            pairs = 1.25 * pairs * np.exp(1j * angles)
            expected = np.concatenate([pairs.real, pairs.imag], axis=-1)
            np.testing.assert_allclose(both[:, at], expected, atol=1e-5)


@pytest.mark.parametrize(("longest", "last"), [(4, 3), (5, 4)])
def test_served_rows_turn_as_the_longest_documents(call, random, longest, last):
    """However few of their tokens a call has."""
    q, k = random(1, last + 1, 2, 8), random(1, last + 1, 1, 8)
    positions = np.arange(last + 1, dtype=np.int32)[None]
    whole, _ = call(long_rope().build(head_dim=8), {}, q, k, positions)
    cfg = for_serving(long_rope(), KVCacheConfig(num_rows=1, capacity=64, max_length=longest))
    for at in range(last + 1):
        one = slice(at, at + 1)
        got, _ = call(cfg.build(head_dim=8), {}, q[:, one], k[:, one], positions[:, one])
        np.testing.assert_allclose(got, whole[:, one], atol=1e-6)


def test_yarn_keeps_fast_pairs_and_slows_slow_ones():
    frequencies = YaRN.Config(theta=THETA, factor=40.0).build(head_dim=HEAD_DIM).frequencies
    np.testing.assert_allclose(frequencies[0], plain()[0])
    np.testing.assert_allclose(frequencies[-1], plain()[-1] / 40.0)


def test_yarn_factor_is_that_of_deepseek():
    """`mscale` 0.707 at factor 40, as in the config of DeepSeek-V2-Lite."""
    assert yarn_attention_factor(40.0, weight=0.707) == pytest.approx(1.2608, abs=1e-4)
    assert yarn_attention_factor(40.0) == pytest.approx(1.3689, abs=1e-4)


@pytest.mark.parametrize("cfg", [LinearRoPE, NTKRoPE, YaRN, Llama3RoPE])
def test_factor_one_is_rope(cfg):
    built = cfg.Config(theta=THETA, factor=1.0).build(head_dim=HEAD_DIM)
    np.testing.assert_allclose(built.frequencies, plain(), rtol=1e-12)
    assert getattr(built, "amplitude", 1.0) == 1.0


def test_neighbouring_pairs_are_halves_of_permuted_projections(call, random):
    """DeepSeek and Meta pair neighbours: the same, once columns are put in another order."""
    x = random(2, 6, 1, HEAD_DIM)
    order = np.concatenate([np.arange(0, HEAD_DIM, 2), np.arange(1, HEAD_DIM, 2)])
    rope = RoPE.Config(head_dim=HEAD_DIM).build()
    got, _ = call(rope, {}, x[..., order], x[..., order], POSITIONS)
    angles = POSITIONS[:, :, None, None] * np.asarray(plain())
    even, odd = x[..., 0::2], x[..., 1::2]
    expected = np.empty_like(x)
    expected[..., 0::2] = even * np.cos(angles) - odd * np.sin(angles)
    expected[..., 1::2] = even * np.sin(angles) + odd * np.cos(angles)
    np.testing.assert_allclose(got, expected[..., order], atol=2e-2)


@pytest.mark.parametrize(
    ("cfg", "head_dim", "message"),
    [
        (LinearRoPE.Config(theta=1e4, factor=0.5), 8, "factor is 0.5; rows become longer"),
        (NTKRoPE.Config(theta=1e4), 2, "head_dim is 2; one pair"),
        (YaRN.Config(theta=1e4, beta_fast=1.0, beta_slow=2.0), 8, "fast pairs turn no less often"),
        (Llama3RoPE.Config(theta=1e4, high_frequency_factor=0.9), 8, "short waves fit"),
        (YaRN.Config(theta=1e4), 7, "head_dim is 7; rotary positions need it even"),
        (PartialRotary.Config(fraction=0.1), 16, "gives 1 of 16 dimensions"),
        (PartialRotary.Config(fraction=1.5), 16, "gives 24 of 16 dimensions"),
        (PartialRotary.Config(inner=PartialRotary.Config()), 16, "wraps another"),
        (long_rope(short=(1.0, 2.0)), 8, "short_factors has 2 numbers"),
        (long_rope(long=(1.0, 2.0, 0.0, 1.0)), 8, "the least of them 0.0; expected one above 0"),
        (QueryKeyNorm.Config(inner=QueryKeyNorm.Config()), 16, "wraps another"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(cfg, head_dim, message):
    with pytest.raises(ConfigError, match=message):
        cfg.build(head_dim=head_dim)


def test_partial_rotary_turns_the_first_dimensions_only(call, random):
    q, k = random(2, 6, 2, HEAD_DIM), random(2, 6, 1, HEAD_DIM)
    cfg = PartialRotary.Config(fraction=0.25)
    got_q, got_k = call(cfg.build(head_dim=HEAD_DIM), {}, q, k, POSITIONS)
    for got, x in ((got_q, q), (got_k, k)):
        np.testing.assert_array_equal(got[..., 16:], x[..., 16:])
        np.testing.assert_allclose(got[..., :16], turned(x[..., :16], plain(16)), atol=2e-2)


def test_whole_fraction_is_rope(call, random):
    q, k = random(2, 6, 2, 8), random(2, 6, 1, 8)
    partial = PartialRotary.Config(fraction=1.0).build(head_dim=8)
    rope = RoPE.Config().build(head_dim=8)
    for got, expected in zip(
        call(partial, {}, q, k, POSITIONS), call(rope, {}, q, k, POSITIONS), strict=True
    ):
        assert_same_to_rounding(got, expected)


def test_query_key_norm_makes_lengths_equal_and_weighs_each_dimension(call, random):
    q, k = random(2, 6, 2, 8), 100.0 * random(2, 6, 1, 8)
    cfg = QueryKeyNorm.Config(inner=NoPosition.Config(), norm=RMSNorm.Config(epsilon=1e-12))
    weights = {"query_norm": {"weight": random(8)}, "key_norm": {"weight": random(8)}}
    got = call(cfg.build(head_dim=8), weights, q, k, POSITIONS)
    for part, x, name in zip(got, (q, k), weights, strict=True):
        length = np.sqrt((x**2).mean(-1, keepdims=True))
        np.testing.assert_allclose(part, x / length * weights[name]["weight"], rtol=1e-5)


TOKENS = np.array([[3, 1, 3, 0, 2, 4, 1, 1], [0, 3, 4, 2, 2, 1, 0, 0]], np.int32)


def test_learned_positions_are_added_to_tokens(call, state_of, packed):
    cfg = LearnedPosition.Config(max_length=8, embedding=Embedding.Config(scale=2.0))
    embedding = cfg.build(vocab_size=5, dim=4)
    state = state_of(embedding)
    tables = np.asarray(state["embedding"]["weight"]), np.asarray(state["positions"])
    expected = 2.0 * tables[0][TOKENS] + tables[1][packed.positions]
    np.testing.assert_allclose(call(embedding, state, TOKENS, packed), expected, rtol=1e-6)


def test_rows_longer_than_the_learned_positions_are_refused(call, state_of, packed):
    embedding = LearnedPosition.Config(max_length=7).build(vocab_size=5, dim=4)
    with pytest.raises(ConfigError, match="rows have 8 tokens, but only 7 positions"):
        call(embedding, state_of(embedding), TOKENS, packed)


def test_texts_longer_than_the_learned_positions_are_not_served():
    """There are no vectors behind the table, and what is read there is not a number."""
    cfg = LearnedPosition.Config(max_length=7, vocab_size=5, dim=4)
    cache_config = KVCacheConfig(num_rows=1, capacity=64, max_length=7)
    assert for_serving(cfg, cache_config) == cfg
    with pytest.raises(ConfigError, match="texts may have 8 tokens, but only 7 positions"):
        for_serving(cfg, evolve(cache_config, max_length=8))


def test_padding_behind_the_tokens_of_a_cache_needs_no_learned_position(call, state_of):
    embedding = LearnedPosition.Config(max_length=6).build(vocab_size=5, dim=4)
    state = state_of(embedding)
    info = continued_rows(jnp.asarray(TOKENS), jnp.array([3, 5]), jnp.array([3, 1]))
    found = np.asarray(call(embedding, state, TOKENS, info))
    tokens, places = np.asarray(state["embedding"]["weight"]), np.asarray(state["positions"])
    np.testing.assert_allclose(found[0, :3], tokens[TOKENS[0, :3]] + places[3:], rtol=1e-6)
    np.testing.assert_allclose(found[1, 0], tokens[TOKENS[1, 0]] + places[5], rtol=1e-6)
    assert np.isfinite(found).all()


def test_sinusoids_are_added_to_tokens(call, state_of, packed):
    embedding = SinusoidalPosition.Config().build(vocab_size=5, dim=6)
    state = state_of(embedding)
    waves = np.zeros((2, 8, 6))
    for row, time, i in np.ndindex(2, 8, 3):
        angle = packed.positions[row, time] / THETA ** (2 * i / 6)
        waves[row, time, 2 * i : 2 * i + 2] = math.sin(angle), math.cos(angle)
    expected = np.asarray(state["embedding"]["weight"])[TOKENS] + waves
    np.testing.assert_allclose(call(embedding, state, TOKENS, packed), expected, atol=1e-6)


@pytest.mark.parametrize("kind", [LearnedPosition, SinusoidalPosition])
def test_positions_are_added_once(kind):
    with pytest.raises(ConfigError, match=f"{kind.__name__} wraps another"):
        kind.Config(embedding=kind.Config()).build(vocab_size=5, dim=4)
