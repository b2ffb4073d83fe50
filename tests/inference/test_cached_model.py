"""Every family continues texts from its caches, whether rows or pages hold them."""

import jax.numpy as jnp
import pytest
from cache_law import MORE_ROWS, PAGED, ROOM, assert_splits_change_nothing
from parity_pairs import MODELS

from axcore.config import replace_config
from axcore.errors import ModuleError
from axcore.layers import CapacityLimited, Dropless, continued_rows
from axcore.module import functional

KINDS = ("gpt2", "mamba2", "qwen3_next", "phi3-longrope", "deepseek_v2", "llama4_text", "gpt_oss")
"""Families whose layers keep something each in a way of its own, or see it by another core."""


@pytest.mark.parametrize("room", [ROOM, MORE_ROWS, PAGED], ids=["rows", "slots", "pages"])
def test_any_split_of_a_text_gives_the_logits_of_the_whole(room):
    assert_splits_change_nothing(MODELS["mistral"](), room)


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("room", [ROOM, PAGED], ids=["rows", "pages"])
def test_any_split_gives_the_logits_of_the_whole_by_every_kind_of_layer(family, room):
    assert_splits_change_nothing(MODELS[family](), room)


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name in MODELS if name not in ("mistral", *KINDS)])
def test_any_split_gives_the_logits_of_the_whole_in_every_family(family):
    assert_splits_change_nothing(MODELS[family](), PAGED)


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
