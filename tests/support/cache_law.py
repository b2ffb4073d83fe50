"""The law of caches: any split of a text into calls gives the logits of the plain forward pass."""

from collections.abc import Iterator
from typing import NamedTuple

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from parity_pairs import model_logits

from axcore.inference.cached_model import CachedModel
from axcore.layers import KVCacheConfig, PagedKVCacheConfig

NUM_TEXTS, LONGEST = 3, 24
"""Windows of the toy models are shorter than half of a text."""

AT_ONCE = 6
"""Tokens of a row in a call that reads; in the others each row has one. There are no more shapes,
so that each model is compiled twice."""

TOLERANCE = 1e-5

NUM_NEARBY, MOST_DRAWS = 32, 64
"""States with other roundings that a text is tried with, and how often texts are sampled."""

NUM_PLACES = NUM_TEXTS + 1
"""Rows of a call where the caches have more rows than are in it: one at least is padding."""

CACHE_CONFIG = KVCacheConfig(
    num_rows=NUM_TEXTS, capacity=LONGEST + 8, max_length=LONGEST, call_tokens=AT_ONCE
)
MORE_ROWS = attrs.evolve(CACHE_CONFIG, num_rows=5)
PAGED = attrs.evolve(MORE_ROWS, pages=PagedKVCacheConfig(num_pages=21, page_size=4))


@attrs.frozen(eq=False)
class Split:
    """How some texts are split into calls.

    Args:
        lengths: Tokens of each text.
        calls: For each call, the new tokens of each text, `[calls, texts]`; 0 lets one pause.
        shuffles: Random numbers that say how the rows of each call are ordered.
    """

    lengths: np.ndarray
    calls: np.ndarray
    shuffles: np.ndarray


def token_by_token() -> Split:
    """Returns the split of texts of full length into single tokens."""
    lengths = np.full(NUM_TEXTS, LONGEST, np.int32)
    calls = np.ones((LONGEST, NUM_TEXTS), np.int32)
    return Split(lengths, calls, np.zeros(calls.shape))


def drawn_split(rng: np.random.Generator) -> Split:
    """Returns texts of any lengths, read in pieces of any size, while any of them may pause."""
    lengths = rng.integers(1, LONGEST + 1, NUM_TEXTS, dtype=np.int32)
    lengths[rng.integers(NUM_TEXTS)] = LONGEST
    left, calls = lengths.copy(), []
    pause, full = rng.choice([0.0, 0.2, 0.6]), rng.choice([0.0, 0.5, 1.0])
    while left.any():
        sizes = rng.integers(1, AT_ONCE + 1, NUM_TEXTS, dtype=np.int32)
        sizes[rng.random(NUM_TEXTS) < full] = AT_ONCE
        if rng.random() < 0.3:
            sizes[:] = 1
        sizes[rng.random(NUM_TEXTS) < pause] = 0
        new = np.minimum(left, sizes)
        if new.any():
            calls.append(new)
            left = left - new
    return Split(lengths, np.stack(calls), rng.random((len(calls), NUM_TEXTS)))


@attrs.frozen(eq=False)
class Seats:
    """Where the caches hold some texts.

    Args:
        cache_config: Of the caches.
        slots: Row of each text.
        table: Pages of each text, `[texts, pages]`.
    """

    cache_config: KVCacheConfig
    slots: np.ndarray
    table: np.ndarray

    @classmethod
    def drawn(cls, cache_config: KVCacheConfig, rng: np.random.Generator) -> "Seats":
        """Returns any."""
        slots = rng.permutation(cache_config.num_rows)[:NUM_TEXTS].astype(np.int32)
        pages = cache_config.pages or PAGED.pages
        of_a_text = -(-LONGEST // pages.page_size)
        table = rng.permutation(pages.num_pages)[: NUM_TEXTS * of_a_text]
        return cls(cache_config, slots, table.reshape(NUM_TEXTS, of_a_text).astype(np.int32))

    def rows(self, new: np.ndarray, shuffle: np.ndarray) -> np.ndarray:
        """Returns the text of each row of a call, `NUM_TEXTS` for padding.

        Where a call has not all rows of the caches, a text that pauses is in it or not.
        """
        if self.cache_config.num_rows == NUM_TEXTS:
            return np.arange(NUM_TEXTS)
        present = [text for text in np.argsort(shuffle) if new[text] or shuffle[text] < 0.5]
        padding = [NUM_TEXTS] * (NUM_PLACES - len(present))
        return np.asarray(present + padding if shuffle[0] < 0.5 else padding + present)

    def of(self, rows: np.ndarray, ends: np.ndarray) -> dict[str, np.ndarray]:
        """Returns what a call says about its rows; pages that none of them has reached are any."""
        if self.cache_config.num_rows == NUM_TEXTS:
            return {}
        slots = np.append(self.slots, self.cache_config.num_rows).astype(np.int32)[rows]
        if self.cache_config.pages is None:
            return {"slots": slots}
        pages = np.arange(self.table.shape[1]) * self.cache_config.pages.page_size
        table = np.concatenate([self.table, self.table[:1]])[rows]
        others = (table[::-1, ::-1] + 1) % (self.cache_config.pages.num_pages + 2) - 1
        return {"slots": slots, "page_table": np.where(pages < ends[:, None], table, others)}


def used_before(leaf):
    """Returns a cache as somebody may have left it."""
    return jnp.full_like(leaf, jnp.nan if jnp.issubdtype(leaf.dtype, jnp.floating) else 99)


def assert_splits_change_nothing(
    cfg,
    cache_config=CACHE_CONFIG,
    *,
    plain_cfg=None,
    place=None,
    tolerance=TOLERANCE,
    num_splits=8,
    seed=0,
):
    """Compares random splits with the plain forward pass, each call at every text's last token.

    Texts are steady. Every second split finds caches as the one before left them, in other places.

    Args:
        cfg: Of a model.
        cache_config: What the model serves in.
        plain_cfg: Of the model whose plain forward pass it is compared with; None takes `cfg`.
        place: Puts a model's state where it serves.
        tolerance: Of logits, absolute and relative.
        num_splits: How many are tried, the one into single tokens counted.
        seed: Of the texts and their splits.
    """
    model, rng = cfg.build(), np.random.default_rng(seed)
    state = model.init(1)
    tokens, plain = steady_texts((plain_cfg or cfg).build(), state, rng, tolerance)
    cached = CachedModel(model, state if place is None else place(model, state), cache_config)
    caches = cached.empty_caches()
    for number in range(num_splits):
        split = drawn_split(rng) if number else token_by_token()
        if number % 2 == 0:
            caches = jax.tree.map(used_before, caches)
        seats = Seats.drawn(cache_config, rng)
        for call in calls_of(split, seats, tokens):
            logits, caches = call.run(cached, caches, seats)
            np.testing.assert_allclose(
                logits[call.new > 0],
                plain[call.texts % NUM_TEXTS, call.done + call.new - 1][call.new > 0],
                rtol=tolerance,
                atol=tolerance,
                err_msg=str(call),
            )


def steady_texts(model, state, rng, tolerance):
    """Returns the tokens of texts that no rounding decides, and the logits of the full texts.

    Where sums have another order, a number between two roundings to 8 bits may get either of them,
    and a token either of two experts that score alike. Texts are left out whose logits change by
    more than the tolerance where the weights have other roundings to float32.

    Args:
        model: The model.
        state: Its state.
        rng: Samples texts and roundings.
        tolerance: Of logits, absolute.
    """
    neighbours, found = nearby(state, rng), []
    for _ in range(MOST_DRAWS):
        tokens = texts(model.config, rng)
        logits = model_logits(model, state, tokens)
        changes = [np.abs(model_logits(model, one, tokens) - logits) for one in neighbours]
        is_steady = np.max(changes, axis=(0, 2, 3)) <= tolerance
        found += zip(tokens[is_steady], logits[is_steady], strict=True)
        if len(found) >= NUM_TEXTS:
            return map(np.stack, zip(*found[:NUM_TEXTS], strict=True))
    raise AssertionError(
        f"of {MOST_DRAWS * NUM_TEXTS} texts only {len(found)} have logits that other roundings of "
        f"the weights change by no more than {tolerance}"
    )


def nearby(state, rng):
    """Returns states of other roundings: of each weight the float32 before it or after it."""
    sides = np.asarray([-np.inf, np.inf], np.float32)
    return [
        jax.tree.map(lambda x: np.nextafter(np.asarray(x), rng.choice(sides, x.shape)), state)
        for _ in range(NUM_NEARBY)
    ]


def texts(cfg, seed):
    """Returns the tokens of some texts, `[NUM_TEXTS, LONGEST]`."""
    rng = np.random.default_rng(seed)
    return rng.integers(3, cfg.vocab_size, (NUM_TEXTS, LONGEST)).astype(np.int32)


class Call(NamedTuple):
    """Rows of a call, `[rows]`: the text of each, how many tokens came before, and the new ones."""

    texts: np.ndarray
    done: np.ndarray
    new: np.ndarray
    shown: np.ndarray

    def run(self, cached, caches, seats):
        """Returns logits `[rows, vocab]`, and the caches that the call leaves."""
        where = seats.of(self.texts, self.done + self.new)
        args = cached.weights, caches, self.shown, self.done, self.new
        logits, caches = cached.extend(*args, **where)
        return np.asarray(logits), caches


def calls_of(split, seats, tokens) -> Iterator[Call]:
    done = np.zeros(NUM_TEXTS + 1, np.int32)
    for some, shuffle in zip(split.calls, split.shuffles, strict=True):
        new = np.append(some, 0).astype(np.int32)
        rows = seats.rows(some, shuffle)
        shown = np.zeros((len(rows), 1 if some.max() == 1 else AT_ONCE), np.int32)
        for row, text in enumerate(rows):
            if new[text]:
                shown[row, : new[text]] = tokens[text, done[text] : done[text] + new[text]]
        yield Call(rows, done[rows], new[rows], shown)
        done = done + new
    assert tuple(done) == (*split.lengths, 0)
