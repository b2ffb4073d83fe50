"""Layers around an attention core, each against dense attention written out in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_attention.attention_cores import (
    ALiBi,
    AttentionSinks,
    ChunkedAttention,
    SlidingWindowAttention,
    alibi_slopes,
)
from rounding import assert_same_to_rounding

from axcore.config import find_config, update_config
from axcore.errors import ConfigError
from axcore.layers import Attention, DotProductAttention, TokenInfo, TransformerLayer
from axcore.layers.tokens import whole_rows
from axcore.modifiers import with_variant
from axcore.module import functional
from axcore.plugins import plugin_host

HEADS, WIDTH = 4, 6
FULL = DotProductAttention.Config()


@pytest.fixture
def qkv(random):
    return random(2, 8, HEADS, WIDTH), random(2, 8, 2, WIDTH), random(2, 8, 2, 3)


def dense(qkv, info, *, bias=0.0, sinks=None, seen=None, cap=None):
    """Attention of full score matrices in float64; `bias` and `seen` as `[batch, n, t, s]`."""
    q, k, v = (np.asarray(x, np.float64) for x in qkv)
    k, v = np.repeat(k, HEADS // 2, axis=2), np.repeat(v, HEADS // 2, axis=2)
    logits = np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(WIDTH)
    if cap:
        logits = cap * np.tanh(logits / cap)
    weights = np.exp(logits + bias)
    allowed = np.tril(np.ones((8, 8), bool))[None, None]
    if info.segment_ids is not None:
        ids = info.segment_ids
        allowed = allowed & (ids[:, None, :, None] == ids[:, None, None, :])
        allowed = allowed & (ids != 0)[:, None, :, None]
    weights = weights * allowed * (1.0 if seen is None else seen)
    total = weights.sum(-1) + (0.0 if sinks is None else np.exp(sinks)[None, :, None])
    weights = weights / np.where(total == 0.0, 1.0, total)[..., None]
    return np.einsum("bnts,bsnv->btnv", weights, v)


def distances(info):
    return info.positions[:, None, :, None] - info.positions[:, None, None, :]


@pytest.mark.parametrize("rows", ["whole", "packed"])
def test_alibi_lowers_logits_by_the_distance(call, qkv, request, rows):
    """With one value per key, which softmax cannot distinguish from one per pair."""
    info = request.getfixturevalue(rows)
    slopes = np.array([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])[None, :, None, None]
    got = call(ALiBi.Config().build(num_heads=HEADS), {}, *qkv, info)
    np.testing.assert_allclose(got, dense(qkv, info, bias=-slopes * distances(info)), atol=1e-5)


def test_alibi_slopes_are_those_of_the_paper():
    """Section 3: 1/2 to 1/256 for 8 heads; and the authors' rule for 12."""
    np.testing.assert_allclose(alibi_slopes(8)[0, :, 0, 0], [2.0**-i for i in range(1, 9)])
    between = [2.0 ** -(i + 0.5) for i in range(4)]
    np.testing.assert_allclose(
        alibi_slopes(12)[0, :, 0, 0], [2.0**-i for i in range(1, 9)] + between, rtol=1e-6
    )


@pytest.mark.parametrize("rows", ["whole", "packed"])
@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_chunks_of_each_document_see_themselves_only(call, qkv, request, rows, chunk):
    info = request.getfixturevalue(rows)
    number = info.positions // chunk
    seen = number[:, None, :, None] == number[:, None, None, :]
    got = call(ChunkedAttention.Config(chunk=chunk).build(num_heads=HEADS), {}, *qkv, info)
    np.testing.assert_allclose(got, dense(qkv, info, seen=seen), atol=1e-5)


def test_chunk_as_long_as_the_row_is_full_attention(call, qkv, packed):
    chunked = ChunkedAttention.Config(chunk=8).build(num_heads=HEADS)
    full = FULL.build(num_heads=HEADS)
    assert_same_to_rounding(call(chunked, {}, *qkv, packed), call(full, {}, *qkv, packed))


def test_sinks_take_probability_and_give_nothing(call, qkv, packed, random):
    sinks = random(HEADS)
    core = AttentionSinks.Config().build(num_heads=HEADS)
    got = call(core, {"sinks": sinks}, *qkv, packed)
    np.testing.assert_allclose(got, dense(qkv, packed, sinks=sinks), atol=1e-5)


def test_no_sink_is_full_attention(call, qkv, packed):
    core = AttentionSinks.Config().build(num_heads=HEADS)
    nothing = {"sinks": np.full(HEADS, -np.inf, np.float32)}
    full = FULL.build(num_heads=HEADS)
    np.testing.assert_allclose(
        call(core, nothing, *qkv, packed), call(full, {}, *qkv, packed), rtol=1e-6
    )


def test_sinks_learn(qkv, packed, random):
    """Their gradient is the slope of the loss."""
    core, weights = AttentionSinks.Config().build(num_heads=HEADS), random(2, 8, HEADS, 3)
    sinks, direction = random(HEADS), random(HEADS)

    def loss(sinks, *args):
        return (functional(core, {"sinks": sinks}, *args)[0] * weights).sum()

    run = jax.jit(jax.value_and_grad(loss))
    above, below = (run(sinks + step * direction, *qkv, packed)[0] for step in (1e-2, -1e-2))
    slope, told = (above - below) / 2e-2, run(sinks, *qkv, packed)[1] @ direction
    assert float(told) == pytest.approx(float(slope), rel=1e-2)


def test_layers_around_a_core_add_up(call, qkv, packed, random):
    """Chunks, a sink, a cap and a window in one call of the op."""
    cfg = AttentionSinks.Config(core=DotProductAttention.Config(soft_cap=2.0, window=(1, None)))
    core = ChunkedAttention.Config(chunk=3, core=cfg).build(num_heads=HEADS)
    sinks, number = random(HEADS), packed.positions // 3
    seen = (number[:, None, :, None] == number[:, None, None, :]) & (distances(packed) <= 1)
    got = call(core, {"core": {"sinks": sinks}}, *qkv, packed)
    np.testing.assert_allclose(got, dense(qkv, packed, sinks=sinks, seen=seen, cap=2.0), atol=1e-5)


def test_soft_cap_bounds_logits_and_a_large_one_does_nothing(call, qkv, packed):
    layer = Attention.Config(num_heads=HEADS)
    capped = with_variant(layer, "soft_cap", soft_cap=0.5).core
    assert with_variant(layer, "soft_cap").core.soft_cap == 50.0
    got = call(capped.build(num_heads=HEADS), {}, *qkv, packed)
    np.testing.assert_allclose(got, dense(qkv, packed, cap=0.5), atol=1e-5)
    loose = update_config(layer, {"core.soft_cap": 1e6}).core.build(num_heads=HEADS)
    full = FULL.build(num_heads=HEADS)
    np.testing.assert_allclose(
        call(loose, {}, *qkv, packed), call(full, {}, *qkv, packed), atol=1e-6
    )


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (ChunkedAttention.Config(chunk=0), "chunk is 0; a chunk has at least one token"),
        (ChunkedAttention.Config(core=ChunkedAttention.Config()), "wraps another Chunked"),
        (AttentionSinks.Config(core=AttentionSinks.Config()), "wraps another AttentionSinks"),
        (ALiBi.Config(core=ChunkedAttention.Config(core=ALiBi.Config())), "another ALiBi, at core"),
        (ALiBi.Config(core=AttentionSinks.Config()), "ALiBi and sinks are applied to one"),
        (ALiBi.Config(core=DotProductAttention.Config(is_causal=False)), "that is not causal"),
    ],
)
def test_layers_that_do_not_go_together_are_refused(cfg, message):
    with pytest.raises(ConfigError, match=message):
        cfg.build(num_heads=HEADS)


def test_sinks_around_alibi_are_refused(qkv, whole):
    core = AttentionSinks.Config(core=ALiBi.Config()).build(num_heads=HEADS)
    with pytest.raises(ConfigError, match="ALiBi and sinks are applied to one"):
        functional(core, {"sinks": np.zeros(HEADS, np.float32)}, *qkv, whole)


def test_a_second_cap_is_refused():
    with pytest.raises(ConfigError, match=r"soft_cap is 50\.0 already"):
        with_variant(with_variant(Attention.Config(num_heads=HEADS), "soft_cap"), "soft_cap")


BATCH, TIME, WINDOW_HEADS, DIM = 2, 12, 2, 4


def tensors() -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, (BATCH, TIME, WINDOW_HEADS, DIM)) for key in keys]


def rows(segment_ids: jax.Array | None = None) -> TokenInfo:
    info = whole_rows(jnp.zeros((BATCH, TIME), jnp.int32))
    return info._replace(segment_ids=segment_ids)


def run(cfg, q, k, v, info):
    result, _ = functional(cfg.build(num_heads=WINDOW_HEADS), {}, q, k, v, info)
    return result


def by_hand(q, k, v, window: int) -> np.ndarray:
    """Attend in numpy, one query at a time."""
    out = np.zeros_like(v)
    for row, time, head in np.ndindex(BATCH, TIME, WINDOW_HEADS):
        seen = slice(max(0, time - window + 1), time + 1)
        logits = k[row, seen, head] @ q[row, time, head] / np.sqrt(DIM)
        weights = np.exp(logits - logits.max())
        out[row, time, head] = weights / weights.sum() @ v[row, seen, head]
    return out


@pytest.mark.parametrize("window", [1, 3, TIME, 10 * TIME])
def test_each_token_averages_over_its_window(window):
    q, k, v = tensors()
    got = run(SlidingWindowAttention.Config(window=window), q, k, v, rows())
    expected = by_hand(*(np.asarray(x) for x in (q, k, v)), window)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_window_as_long_as_the_row_equals_full_attention():
    q, k, v = tensors()
    full = run(DotProductAttention.Config(), q, k, v, rows())
    windowed = run(SlidingWindowAttention.Config(window=TIME), q, k, v, rows())
    assert_same_to_rounding(windowed, full)


@pytest.mark.slow
def test_what_leaves_the_window_changes_nothing_and_gets_no_gradient():
    q, k, v = tensors()
    cfg = SlidingWindowAttention.Config(window=3)

    def last_token(v):
        return run(cfg, q, k, v, rows())[:, -1].sum()

    gradient = jax.grad(last_token)(v)
    assert not np.any(gradient[:, : TIME - 3])
    assert np.all(np.any(gradient[:, TIME - 3 :], axis=(2, 3)))


def test_window_does_not_reach_into_another_document():
    q, k, v = tensors()
    half = TIME // 2
    segment_ids = jnp.broadcast_to(1 + jnp.arange(TIME) // half, (BATCH, TIME))
    cfg = SlidingWindowAttention.Config(window=4)
    packed = run(cfg, q, k, v, rows(segment_ids))
    alone = by_hand(*(np.asarray(jnp.roll(x, -half, axis=1)) for x in (q, k, v)), 4)
    np.testing.assert_allclose(packed[:, half:], alone[:, :half], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("window", [0, -3])
def test_window_that_hides_the_token_itself_is_refused(window):
    with pytest.raises(ConfigError, match=f"window is {window}; a token sees at least itself"):
        SlidingWindowAttention.Config(window=window).build(num_heads=WINDOW_HEADS)


def test_variant_replaces_every_full_attention_and_keeps_its_scale_and_cap():
    full = DotProductAttention.Config(scale=0.5, soft_cap=30.0)
    layer = TransformerLayer.Config(dim=8, attention=Attention.Config(num_heads=2, core=full))
    changed = with_variant(layer, "sliding_window", window=5)
    assert changed.attention.core == SlidingWindowAttention.Config(
        window=5, scale=0.5, soft_cap=30.0
    )
    assert not find_config(changed, DotProductAttention)
    assert update_config(changed, {"attention.core": full}) == layer


def test_variant_is_brought_by_the_plugin():
    plugin = plugin_host().plugin("axl-attention")
    assert plugin.trouble == ""
    assert "sliding_window" in {record.key for record in plugin.records}
