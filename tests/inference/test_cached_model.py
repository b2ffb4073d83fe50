"""Every family continues texts from its caches, whether rows or pages hold them."""

import re

import attrs
import jax
import jax.numpy as jnp
import pytest
from cache_law import MORE_ROWS, PAGED, ROOM, assert_splits_change_nothing
from parity_pairs import MODELS

from axcore.config import replace_config
from axcore.errors import ModuleError
from axcore.inference.cached_model import ROW_PARTS, CachedModel
from axcore.layers import CapacityLimited, Dropless, continued_rows
from axcore.models import transformer
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


@pytest.mark.parametrize(("num_tokens", "number"), [(1, 8), (2, 1)])
def test_products_of_one_row_are_computed_in_parts(num_tokens, number):
    # Of two tokens only the head's, whose logits after the last one are wanted.
    model = transformer(vocab_size=512, dim=256, num_layers=1, num_heads=2, hidden_dim=512).build()
    served = CachedModel(model, model.init(0), attrs.evolve(ROOM, num_rows=1))
    one = jnp.ones(1, jnp.int32)
    args = served.weights, served.empty_caches(), jnp.zeros((1, num_tokens), jnp.int32), one, one
    products = re.findall(
        r"f32\[(\d+),1,\d+\] = dot_general", str(jax.make_jaxpr(served.step)(*args))
    )
    assert products.count(str(ROW_PARTS)) == number
