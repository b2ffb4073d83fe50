"""The law of caches: any split of a text into calls gives the logits of the plain forward pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity_pairs import MODELS, model_logits

from axcore.config import replace_config
from axcore.errors import ModuleError
from axcore.inference.cached_model import CachedModel
from axcore.layers import CapacityLimited, Dropless, ServingRoom, continued_rows
from axcore.module import functional

LENGTHS = (13, 9)
"""Tokens of each row; windows of the toy models are shorter."""

SPLITS = (
    ((4, 1), (0, 4), (1, 1), (4, 0), (4, 3)),
    ((1, 4), (3, 1), (4, 1), (1, 2), (4, 1)),
)
"""New tokens of each row, call after call."""

AT_ONCE = 4

KINDS = ("gpt2", "mamba2", "qwen3_next", "phi3-longrope", "deepseek_v2", "llama4_text", "gpt_oss")
"""Families whose layers keep something each in a way of its own, or see it by another core."""


ROOM = ServingRoom(num_rows=len(LENGTHS), capacity=16, max_length=max(LENGTHS))


def assert_splits_change_nothing(cfg, plain_cfg=None):
    model = cfg.build()
    state = model.init(1)
    tokens = np.asarray(
        jax.random.randint(jax.random.key(0), (len(LENGTHS), max(LENGTHS)), 3, cfg.vocab_size)
    )
    plain = model_logits((plain_cfg or cfg).build(), state, tokens)
    cached = CachedModel(model, state, ROOM)
    for split in SPLITS:
        caches = jax.tree.map(lambda leaf: leaf + jnp.nan, cached.empty_caches())
        done = np.zeros(len(LENGTHS), np.int32)
        for new in np.asarray(split, np.int32):
            piece = np.zeros((len(LENGTHS), AT_ONCE), np.int32)
            for row, (start, count) in enumerate(zip(done, new, strict=True)):
                piece[row, :count] = tokens[row, start : start + count]
            logits, caches = cached.extend(cached.weights, caches, piece, done, new)
            done = done + new
            for row in np.flatnonzero(new):
                np.testing.assert_allclose(
                    logits[row], plain[row, done[row] - 1], rtol=1e-5, atol=1e-5
                )
        assert tuple(done) == LENGTHS


def test_any_split_of_a_text_gives_the_logits_of_the_whole():
    assert_splits_change_nothing(MODELS["mistral"]())


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize("family", KINDS)
def test_any_split_gives_the_logits_of_the_whole_by_every_kind_of_layer(family):
    assert_splits_change_nothing(MODELS[family]())


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name in MODELS if name not in ("mistral", *KINDS)])
def test_any_split_gives_the_logits_of_the_whole_in_every_family(family):
    assert_splits_change_nothing(MODELS[family]())


@pytest.mark.slow
def test_experts_with_room_for_few_drop_no_token_where_the_model_serves():
    cfg = MODELS["mixtral"]()
    few = replace_config(cfg, Dropless, CapacityLimited.Config(factor=0.5))
    assert_splits_change_nothing(few, plain_cfg=cfg)


def test_a_model_that_keeps_nothing_does_not_go_on_from_earlier_tokens():
    model = MODELS["mistral"]().build()
    info = continued_rows(
        jnp.ones((1, 2), jnp.int32), jnp.ones(1, jnp.int32), jnp.ones(1, jnp.int32)
    )
    with pytest.raises(ModuleError, match="keeps no keys and values"):
        functional(model, model.init(0), jnp.ones((1, 2), jnp.int32), info, method="logits")
