"""Positions of texts with pictures: rows and columns of these, and where the text continues."""

import jax.numpy as jnp
import numpy as np
import pytest

from axcore.config import update_config
from axcore.errors import ConfigError
from axcore.layers import (
    FIRST_SOFT_TOKEN,
    GRID_COLUMNS,
    AxialRoPE,
    GridPositions,
    MultimodalRoPE,
    RoPE,
    SoftTokenEmbedding,
    whole_rows,
)
from axcore.layers.tokens import TokenInfo
from axcore.module import functional

GRID = (2, 3)
CFG = GridPositions.Config(
    vocab_size=9, dim=4, grid=GRID, embedding=SoftTokenEmbedding.Config(num_tokens=6)
)
PICTURE = [FIRST_SOFT_TOKEN + number for number in range(6)]
SECOND = [FIRST_SOFT_TOKEN + number for number in range(6, 12)]
QUERIES = jnp.asarray(np.random.default_rng(0).normal(size=(1, 9, 2, 16)), jnp.float32)
KEYS = QUERIES[:, :, :1]


def positions(rows, info=None):
    tokens = jnp.asarray(rows, jnp.int32)
    model = CFG.build()
    info = whole_rows(tokens) if info is None else info
    found = []

    class Reading(GridPositions):
        def forward(self, tokens, info):
            found.append(self._positions(tokens, info))
            return super().forward(tokens, info)

    functional(
        Reading.Config(
            **{n: getattr(CFG, n) for n in ("vocab_size", "dim", "grid", "embedding")}
        ).build(),
        model.init(0),
        tokens,
        info,
    )
    return np.asarray(found[0])


def counted(row):
    """Return the positions of a row, one token after the other."""
    at, found = 0, []
    for token in row:
        place = (token - FIRST_SOFT_TOKEN) % 6
        if token < FIRST_SOFT_TOKEN:
            found.append((at, at, at))
            at += 1
            continue
        found.append((at, at + place // 3, at + place % 3))
        at += 3 if place == 5 else 0
    return found


def test_positions_are_those_that_are_counted_token_by_token():
    row = [1, 2, *PICTURE, 3, *SECOND, 4, 5]
    np.testing.assert_array_equal(positions([row]), [counted(row)])


def test_documents_of_a_packed_row_begin_at_zero():
    first, second = [1, *PICTURE, 2], [*SECOND, 3, 4]
    places = [*range(8), *range(8)]
    info = TokenInfo(jnp.asarray([places], jnp.int32), jnp.asarray([[1] * 8 + [2] * 8], jnp.int32))
    found = positions([[*first, *second]], info)
    np.testing.assert_array_equal(found, [counted(first) + counted(second)])


def test_text_is_rotated_as_without_pictures():
    info = jnp.arange(9, dtype=jnp.int32)[None]
    plain, _ = functional(RoPE.Config(head_dim=16).build(), {}, QUERIES, KEYS, info)
    for kind in (False, True):
        cfg = MultimodalRoPE.Config(head_dim=16, sections=(2, 3, 3), is_interleaved=kind)
        own, _ = functional(cfg.build(), {}, QUERIES, KEYS, info)
        np.testing.assert_allclose(own[0], plain[0], rtol=1e-6)


def test_interleaved_axes_take_turns():
    cfg = MultimodalRoPE.Config(head_dim=16, sections=(4, 2, 2), is_interleaved=True)
    assert cfg.build().axes.tolist() == [0, 1, 2, 0, 1, 2, 0, 0]


def test_rows_turn_one_half_of_the_pairs_and_columns_the_other():
    cfg = AxialRoPE.Config(head_dim=16).build()
    at = lambda row, column: jnp.full((1, 9), row * GRID_COLUMNS + column, jnp.int32)  # noqa: E731
    (down, _), _ = functional(cfg, {}, QUERIES, KEYS, at(5, 0))
    (across, _), _ = functional(cfg, {}, QUERIES, KEYS, at(0, 5))
    row_pairs, column_pairs = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
    np.testing.assert_array_equal(down[..., column_pairs], QUERIES[..., column_pairs])
    np.testing.assert_array_equal(across[..., row_pairs], QUERIES[..., row_pairs])
    assert jnp.abs(down - QUERIES).max() > 0.1


@pytest.mark.parametrize(
    ("cfg", "words"),
    [
        (update_config(CFG, {"grid": (2, 2)}), "grid is 2 x 2, and an input has 6 soft tokens"),
        (MultimodalRoPE.Config(head_dim=16, sections=(1, 2, 3)), "three with 8 pairs in all"),
        (AxialRoPE.Config(head_dim=6), "a multiple of 4"),
    ],
)
def test_what_does_not_fit_is_refused(cfg, words):
    with pytest.raises(ConfigError, match=words):
        cfg.build()
