"""The law of caches: any split of a text into calls gives the logits of the plain forward pass."""

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from parity_pairs import model_logits

from axcore.inference.cached_model import CachedModel
from axcore.layers import PageRoom, ServingRoom

LENGTHS = (13, 9)
"""Tokens of each row; windows of the toy models are shorter."""

SPLITS = (
    ((4, 1), (0, 4), (1, 1), (4, 0), (4, 3)),
    ((1, 4), (3, 1), (4, 1), (1, 2), (4, 1)),
)
"""New tokens of each row, call after call."""

AT_ONCE = 4

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


def used_before(leaf):
    """Returns a cache as somebody may have left it."""
    return jnp.full_like(leaf, jnp.nan if jnp.issubdtype(leaf.dtype, jnp.floating) else 99)


def assert_splits_change_nothing(cfg, room=ROOM, *, plain_cfg=None, bound=None, place=None):
    """Compares with the plain forward pass.

    With a bound, for caches that round, errors are at most that part of the largest logit; then
    all splits give the same to the usual tolerance. `place` puts a model's state where it serves.
    """
    model = cfg.build()
    state = model.init(1)
    tokens = np.asarray(
        jax.random.randint(jax.random.key(0), (len(LENGTHS), max(LENGTHS)), 3, cfg.vocab_size)
    )
    plain = model_logits((plain_cfg or cfg).build(), state, tokens)
    if bound is not None:
        rounded = at_once(cfg, state, tokens)
        assert 0 < np.abs(rounded - plain).max() <= bound * np.abs(plain).max()
        plain = rounded
    tokens = np.append(tokens, tokens[:1], axis=0)
    state = state if place is None else place(model, state)
    cached, rows_of = CachedModel(model, state, room), Rows(room)
    for split in SPLITS:
        caches = jax.tree.map(used_before, cached.empty_caches())
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
                        logits[place], plain[row, done[row] - 1], rtol=1e-5, atol=1e-5
                    )
        assert tuple(done) == (*LENGTHS, 0)


def at_once(cfg, state, tokens):
    """Returns the logits of texts each of whose beginnings is read in one call."""
    room = attrs.evolve(ROOM, call_tokens=tokens.shape[1])
    cached, zero = CachedModel(cfg.build(), state, room), np.zeros(len(tokens), np.int32)
    logits = [
        cached.extend(cached.weights, cached.empty_caches(), tokens, zero, zero + size)[0]
        for size in range(1, tokens.shape[1] + 1)
    ]
    return np.stack(logits, axis=1)
