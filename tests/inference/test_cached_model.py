"""The law of caches: any split of a text into calls gives the logits of the plain forward pass."""

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity_pairs import MODELS, model_logits

from axcore.config import replace_config
from axcore.errors import ConfigError, ModuleError
from axcore.inference.cached_model import CachedModel
from axcore.layers import CapacityLimited, Dropless, PageRoom, ServingRoom, continued_rows
from axcore.modifiers import SlidingCaches, for_serving
from axcore.module import ParamSpec, functional
from axcore.plugins import Hardware

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


CPU = Hardware.parse("cpu-1")

PAGES = PageRoom(num_pages=9, page_size=4)

ROOM = ServingRoom(num_rows=len(LENGTHS), capacity=16, max_length=max(LENGTHS), call_tokens=AT_ONCE)
MORE_ROWS = attrs.evolve(ROOM, num_rows=5)
PAGED = attrs.evolve(MORE_ROWS, pages=PAGES)

SLOTS = np.array([3, 1, 5], np.int32)
"""Of the two rows, and of a row of padding."""

TABLE = np.array([[7, 0, 4, 2], [5, 8, 1, 9], [9, -1, 9, 9]], np.int32)
"""Pages of the same, in no order; there is no page 9."""


class Rows:
    """Calls with the rows in an order of their own: those that a row of the caches has."""

    def __init__(self, room):
        self.room = room
        self.is_whole = room.num_rows == len(LENGTHS)

    def select(self, new, call):
        """Which rows a call has; 2 is one of padding."""
        if self.is_whole:
            return np.arange(len(LENGTHS))
        given = np.flatnonzero(new)
        return np.append(given, 2) if call % 2 else given[::-1]

    def places(self, rows):
        if self.is_whole:
            return {}
        table = {} if self.room.pages is None else {"page_table": TABLE[rows]}
        return {"slots": SLOTS[rows], **table}


def assert_splits_change_nothing(cfg, room=ROOM, plain_cfg=None, tolerance=1e-5):
    model = cfg.build()
    state = model.init(1)
    tokens = np.asarray(
        jax.random.randint(jax.random.key(0), (len(LENGTHS), max(LENGTHS)), 3, cfg.vocab_size)
    )
    plain = model_logits((plain_cfg or cfg).build(), state, tokens)
    tokens = np.append(tokens, tokens[:1], axis=0)
    cached, rows_of = CachedModel(model, state, room), Rows(room)
    for split in SPLITS:
        caches = jax.tree.map(lambda leaf: leaf + jnp.nan, cached.empty_caches())
        done = np.zeros(3, np.int32)
        for call, some in enumerate(np.asarray(split, np.int32)):
            new = np.append(some, 0)
            rows = rows_of.select(new, call)
            piece = np.zeros((len(rows), AT_ONCE), np.int32)
            for place, row in enumerate(rows):
                piece[place, : new[row]] = tokens[row, done[row] : done[row] + new[row]]
            logits, caches = cached.extend(
                cached.weights, caches, piece, done[rows], new[rows], **rows_of.places(rows)
            )
            done = done + new
            for place, row in enumerate(rows):
                if new[row]:
                    np.testing.assert_allclose(
                        logits[place], plain[row, done[row] - 1], rtol=tolerance, atol=tolerance
                    )
        assert tuple(done) == (*LENGTHS, 0)


@pytest.mark.parametrize("room", [ROOM, MORE_ROWS, PAGED], ids=["rows", "slots", "pages"])
def test_any_split_of_a_text_gives_the_logits_of_the_whole(room):
    assert_splits_change_nothing(MODELS["mistral"](), room)


WINDOWED = ("gemma2", "gemma3", "gpt_oss", "olmo3")
"""Families some of whose layers have a window, besides `mistral`."""


def sliding(family):
    """A model's config, with rings of 8 tokens at least; texts go round them twice."""
    return SlidingCaches(page_size=2).apply(MODELS[family](), CPU)


@pytest.mark.parametrize("room", [ROOM, PAGED], ids=["rows", "slots"])
def test_a_ring_of_the_window_gives_the_logits_of_the_whole(room):
    assert_splits_change_nothing(sliding("mistral"), room)


def kept_bytes(cfg, room):
    """Bytes of the caches of a model."""
    specs = jax.tree.leaves(
        for_serving(cfg, room).build().param_specs(), is_leaf=lambda x: isinstance(x, ParamSpec)
    )
    kept = [spec.abstract for spec in specs if spec.is_buffer]
    return sum(array.size * array.dtype.itemsize for array in kept)


def test_rings_do_not_grow_with_the_texts():
    short, long = (attrs.evolve(ROOM, capacity=capacity) for capacity in (16, 4096))
    plain, ring = MODELS["mistral"](), sliding("mistral")
    assert kept_bytes(ring, long) == kept_bytes(ring, short) == kept_bytes(plain, short) // 2
    assert kept_bytes(plain, long) == 256 * kept_bytes(plain, short)


def test_a_call_of_more_tokens_than_a_ring_has_room_for_is_refused():
    cached = CachedModel(sliding("mistral").build(), MODELS["mistral"]().build().init(0), ROOM)
    none = np.zeros(2, np.int32)
    with pytest.raises(ModuleError, match="8 tokens of a row; there is room for 4"):
        cached.extend(cached.weights, cached.empty_caches(), np.ones((2, 8), np.int32), none, none)


def test_a_model_without_a_window_gets_no_rings():
    with pytest.raises(ConfigError, match="no "):
        sliding("llama")


@pytest.mark.slow
@pytest.mark.parametrize("family", WINDOWED)
def test_a_ring_of_the_window_gives_the_logits_of_the_whole_in_every_family(family):
    assert_splits_change_nothing(sliding(family), PAGED)


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
