"""Sliding-window attention: what it equals, what it hides, and what it can replace."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_attention.attention_cores import SlidingWindowAttention
from rounding import assert_same_to_rounding

from axcore.config import find_config, update_config
from axcore.errors import ConfigError
from axcore.layers import Attention, DotProductAttention, TokenInfo, TransformerLayer
from axcore.layers.tokens import whole_rows
from axcore.modifiers import with_variant
from axcore.module import functional
from axcore.plugins import plugin_host

BATCH, TIME, HEADS, DIM = 2, 12, 2, 4


def tensors() -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, (BATCH, TIME, HEADS, DIM)) for key in keys]


def rows(segment_ids: jax.Array | None = None) -> TokenInfo:
    info = whole_rows(jnp.zeros((BATCH, TIME), jnp.int32))
    return info._replace(segment_ids=segment_ids)


def run(cfg, q, k, v, info):
    result, _ = functional(cfg.build(num_heads=HEADS), {}, q, k, v, info)
    return result


def by_hand(q, k, v, window: int) -> np.ndarray:
    """Attends in numpy, one query at a time."""
    out = np.zeros_like(v)
    for row, time, head in np.ndindex(BATCH, TIME, HEADS):
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
        SlidingWindowAttention.Config(window=window).build(num_heads=HEADS)


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
