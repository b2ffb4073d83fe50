"""A layer that skips tokens, as in mixture of depths, serves right or is refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cache_law import CACHE_CONFIG, MORE_ROWS, PAGED, assert_splits_change_nothing, texts
from parity_pairs import model_logits

from axcore.config import REQUIRED, config, replace_config, update_config
from axcore.errors import ModuleError
from axcore.inference.cached_model import CachedModel
from axcore.layers import (
    ContiguousCache,
    GappedCache,
    Linear,
    NoCache,
    TransformerLayer,
    continued_rows,
)
from axcore.models import transformer
from axcore.module import Module, Remat, functional


class SomeTokens(Module):
    """Passes those tokens through a layer that a router chooses; the others stay as they are."""

    @config
    class Config(Module.Config):
        dim: int = REQUIRED
        layer: Module.Config = TransformerLayer.Config()
        gathers: bool = False

    def setup(self, cfg):
        self.layer = cfg.layer.build(dim=cfg.dim)
        self.router = Linear.Config().build(in_dim=cfg.dim, out_dim=1, axes=("embed", None))

    def forward(self, x, info):
        is_real = jnp.ones(x.shape[:2], bool) if info.is_real is None else info.is_real
        is_chosen = (self.router(x)[..., 0] > 0) & is_real
        order = jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape[:2])
        if self.config.gathers:
            order = jnp.argsort(~is_chosen, axis=1, stable=True)
        chosen, positions, segments = (
            jnp.take_along_axis(one, order.reshape(*order.shape, *[1] * (one.ndim - 2)), axis=1)
            for one in (x, info.positions, is_chosen.astype(jnp.int32))
        )
        below = info._replace(positions=positions, segment_ids=segments, token_mask=None)
        y = jnp.where(segments[..., None] > 0, self.layer(chosen, below), chosen)
        return jnp.take_along_axis(y, jnp.argsort(order, axis=1)[..., None], axis=1)


def model(*, layout=None, **fields):
    """A transformer whose layers skip about half of the tokens."""
    plain = transformer(vocab_size=64, dim=32, num_layers=2, num_heads=2, hidden_dim=48)
    cache = NoCache.Config(layout=layout)
    plain = replace_config(plain, NoCache, cache)
    return replace_config(
        plain, TransformerLayer, lambda old: SomeTokens.Config(layer=old, **fields)
    )


def extend(cfg, cache_config=CACHE_CONFIG):
    built = cfg.build()
    served = CachedModel(built, built.init(1), cache_config)
    rows, more = (
        jnp.zeros(cache_config.num_rows, jnp.int32),
        jnp.full(cache_config.num_rows, 4, jnp.int32),
    )
    tokens = jnp.asarray(texts(cfg, 0)[: cache_config.num_rows, :4])
    return served.extend(served.weights, served.empty_caches(), tokens, rows, more)


@pytest.mark.parametrize("gathers", [False, True])
def test_a_layer_that_skips_tokens_is_refused_by_name(gathers):
    with pytest.raises(ModuleError, match="other tokens than its call has") as raised:
        extend(model(gathers=gathers))
    assert raised.value.where == "decoder.stack.layer[0].layer.attention.kv_cache"
    assert "kv_cache=NoCache.Config(layout=GappedCache.Config())" in raised.value.hint


@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize(
    "cache_config", [CACHE_CONFIG, MORE_ROWS, PAGED], ids=["rows", "slots", "pages"]
)
@pytest.mark.slow
def test_any_split_of_a_text_gives_the_logits_of_the_whole(cache_config, gathers):
    assert_splits_change_nothing(model(layout=GappedCache.Config(), gathers=gathers), cache_config)


def test_a_text_in_two_calls_has_the_logits_of_the_whole():
    cfg = model(layout=GappedCache.Config(), gathers=True)
    built = cfg.build()
    state, tokens = built.init(1), texts(cfg, 0)[:, :8]
    whole = model_logits(built, state, tokens)
    served = CachedModel(built, state, CACHE_CONFIG)
    caches, new = served.empty_caches(), jnp.full(len(tokens), 4)
    for first in (0, 4):
        some = tokens[:, first : first + 4]
        logits, caches = served.extend(served.weights, caches, some, 0 * new + first, new)
        np.testing.assert_allclose(logits, whole[:, first + 3], rtol=1e-5, atol=1e-5)


def test_keys_of_fewer_tokens_than_the_info_has_are_refused():
    cfg = ContiguousCache.Config(num_kv_heads=1, head_dim=2, value_dim=2, num_rows=1, capacity=8)
    cache, one = cfg.build(), jnp.ones(1, jnp.int32)
    info, keys = continued_rows(jnp.zeros((1, 4), jnp.int32), one, one), jnp.zeros((1, 2, 1, 2))
    with pytest.raises(
        ModuleError, match=r"keys of \[1, 2\] tokens, and its TokenInfo has \[1, 4\]"
    ):
        functional(cache, cache.init(0), keys, keys, info)


def test_all_tokens_are_known_to_be_all_behind_a_transformation():
    one = jnp.ones(1, jnp.int32)
    info = continued_rows(jnp.zeros((1, 4), jnp.int32), one, one)
    seen = []
    jax.jit(jax.checkpoint(lambda info: seen.append(info.has_all_tokens)))(info)
    some = info._replace(positions=info.positions + 0)
    jax.jit(lambda info: seen.append(info.has_all_tokens))(some)
    assert seen == [True, False]


def test_a_window_over_skipped_tokens_is_refused():
    cfg = update_config(model(layout=GappedCache.Config()), {"**.core.window": (3, 0)})
    with pytest.raises(ModuleError, match="whether the window counts those that were skipped"):
        extend(cfg)


def test_layers_that_are_trained_with_remat_serve():
    plain = transformer(vocab_size=64, dim=32, num_layers=1, num_heads=2, hidden_dim=48)
    cfg = update_config(plain, {"**.layer.remat": Remat()})
    assert jnp.isfinite(extend(cfg)[0]).all()
