"""What the programs of an engine compute besides the model: pure functions, and their values.

Letters of shapes: B rows of a call, P pages of a row, T tokens, V vocabulary, S slots, W words.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from axcore.inference.drawing import (
    DrawKind,
    LogProbs,
    SamplingRows,
    TokenHistory,
    draw,
    log_probabilities,
    row_keys,
)

MAX_LOGPROBS = 20
"""Number of likeliest tokens whose log-probabilities a request may ask for."""


class CallRows(NamedTuple):
    """The rows of a call: columns of one array.

    Args:
        slots: Of the caches; of padding one out of range.
        starts: Tokens that came before.
        sizes: Tokens of the row, or that are drawn one after the other.
        first: Number of the answer's tokens before the first that is drawn.
        draws: 1 where the row draws, else 0.
        wants_logprobs: 1 where log-probabilities are wanted, else 0.
        adapters: Number of the row's adapter; -1 for none.
        pages: Of the row, `[B, P]`.
        tokens: New ones, `[B, T]`; none where rows continue from what they drew.
    """

    slots: Int[Array, " B"]
    starts: Int[Array, " B"]
    sizes: Int[Array, " B"]
    first: Int[Array, " B"]
    draws: Int[Array, " B"]
    wants_logprobs: Int[Array, " B"]
    adapters: Int[Array, " B"]
    pages: Int[Array, "B P"]
    tokens: Int[Array, "B T"]


NUM_COLUMNS = 7
"""Columns of a call's array before pages and tokens."""


class Drawn(NamedTuple):
    """What a call drew, `[count, B]`; log-probabilities are 0 where no row wants any."""

    tokens: Array
    logprobs: LogProbs


class Memory(NamedTuple):
    """What slots keep on the device besides caches. Methods return a changed copy.

    Args:
        last: The token drawn last, `[S]`.
        history: What penalties count.
    """

    last: Int[Array, " S"]
    history: TokenHistory

    @property
    def num_slots(self) -> int:
        """S."""
        return self.last.shape[0]

    def held(self, slots: Int[Array, " B"]) -> Int[Array, " B"]:
        """Returns slots that there are: the last one in the place of one out of range."""
        return jnp.minimum(slots, self.num_slots - 1)

    def drew(
        self, slots: Int[Array, " B"], tokens: Int[Array, " B"], history: TokenHistory
    ) -> "Memory":
        """Returns the memory with the last tokens of some slots; those out of range drop."""
        return Memory(self.last.at[slots].set(tokens, mode="drop"), history)


def draw_rows(
    memory: Memory,
    sampling: SamplingRows,
    allowed: UInt32[Array, "#B W"],
    logits: Float[Array, "B V"],
    call: Int[Array, "B columns"],
    *,
    kind: DrawKind,
) -> tuple[Drawn, Memory]:
    """Returns a token of each row of a call, `[1, B]`, and the memory with it."""
    rows = call_rows(call, call.shape[1] - NUM_COLUMNS)
    drawn, memory = drawn_tokens(memory, sampling, allowed, logits, rows, kind=kind)
    return jax.tree.map(lambda leaf: leaf[None], drawn), memory


def drawn_tokens(
    memory: Memory,
    sampling: SamplingRows,
    allowed: UInt32[Array, "#B W"],
    logits: Float[Array, "B V"],
    rows: CallRows,
    *,
    kind: DrawKind,
) -> tuple[Drawn, Memory]:
    """Returns a token of each row, `[B]`, and the memory with it."""
    held = memory.held(rows.slots)
    own = sampling.take(held)
    keys = row_keys(own.seed, rows.first)
    history = memory.history.take(held) if kind == "full" else None
    tokens = draw(logits, own, keys, allowed=allowed, history=history, kind=kind)
    logprobs = logprobs_of(logits, tokens, jnp.any(rows.wants_logprobs > 0))
    slots = slots_that_draw(rows, memory)
    counted = memory.history.drawn(slots, tokens) if kind == "full" else memory.history
    return Drawn(tokens, logprobs), memory.drew(slots, tokens, counted)


def slots_that_draw(rows: CallRows, memory: Memory) -> Int[Array, " B"]:
    """Returns the slot of each row; one out of range where the row does not draw."""
    return jnp.where(rows.draws > 0, rows.slots, memory.num_slots)


def logprobs_of(
    logits: Float[Array, "B V"], tokens: Int[Array, " B"], is_wanted: Bool[Array, ""]
) -> LogProbs:
    """Returns log-probabilities of drawn tokens; zeros where no row wants any."""
    number = min(MAX_LOGPROBS, logits.shape[1])

    def wanted() -> LogProbs:
        return log_probabilities(logits, tokens, number)

    def unwanted() -> LogProbs:
        shape = jax.eval_shape(wanted)
        return LogProbs(*(jnp.zeros(leaf.shape, leaf.dtype) for leaf in shape))

    logprobs: LogProbs = jax.lax.cond(is_wanted, wanted, unwanted)
    return logprobs


def scores_of(
    logits: Float[Array, "T V"], following: Int[Array, " T"], is_wanted: Bool[Array, ""]
) -> LogProbs:
    """Returns log-probabilities of tokens of a text; of the likeliest but one where none more is
    wanted, with zeros behind it.
    """
    number = min(MAX_LOGPROBS, logits.shape[1])

    def one() -> LogProbs:
        found = log_probabilities(logits, following, 1)
        fill = ((0, 0), (0, number - 1))
        return found._replace(
            likeliest=jnp.pad(found.likeliest, fill),
            of_likeliest=jnp.pad(found.of_likeliest, fill),
        )

    scores: LogProbs = jax.lax.cond(
        is_wanted, lambda: log_probabilities(logits, following, number), one
    )
    return scores


def call_rows(call: Int[Array, "B columns"], num_pages: int) -> CallRows:
    """Returns what the columns of a call's array mean."""
    slots, starts, sizes, first, draws, wants, adapters = call[:, :NUM_COLUMNS].T
    end = NUM_COLUMNS + num_pages
    return CallRows(
        slots, starts, sizes, first, draws, wants, adapters, call[:, NUM_COLUMNS:end], call[:, end:]
    )


def copy_page(caches: Any, pages: Int[Array, " 2"]) -> tuple[Any]:
    """Returns caches with a page copied: from the first to the second."""
    return (jax.tree.map(lambda held: held.at[pages[1]].set(held[pages[0]]), caches),)


def start_history(
    memory: Memory, slots: Int[Array, " 1"], tokens: Int[Array, "1 T"], lengths: Int[Array, "1 2"]
) -> tuple[Memory]:
    """Returns the memory with a slot whose penalties count the tokens of a text."""
    return (memory._replace(history=memory.history.started(slots, tokens, lengths=lengths)),)
