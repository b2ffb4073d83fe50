"""`verify`: which guessed tokens the model draws itself, from one call with all of them.

Letters of shapes: B rows, K guesses, V vocabulary, W words of 32 tokens.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, UInt32

from axcore.inference.drawing import DrawKind, SamplingRows, TokenHistory, draw, row_keys


class Verified(NamedTuple):
    """What a call with guesses drew.

    Args:
        tokens: Drawn tokens; the first `counts` of each row belong to its answer.
        counts: One more than the guesses that were right.
    """

    tokens: Int[Array, "B K+1"]
    counts: Int[Array, " B"]


def verify(
    logits: Float[Array, "B K+1 V"],
    guesses: Int[Array, "B K"],
    rows: SamplingRows,
    *,
    first: Int[Array, " B"],
    num_guesses: Int[Array, " B"],
    allowed: UInt32[ArrayLike, "#B W"] | None = None,
    history: TokenHistory | None = None,
    kind: DrawKind = "full",
) -> Verified:
    """Returns the tokens that plain decoding draws, one after the other.

    Each place is drawn as without guesses, with the same key; a guess is right where it is what was
    drawn. So an answer is the same with guesses and without, whatever they are, and its
    distribution is the model's. A drafting model that draws its guesses with the same keys, and so
    with the same noise, guesses right with a probability of at least `(1 - d) / (1 + d)`, where `d`
    is the total variation between both distributions.

    Source: Daliri, Musco and Suresh 2024, arXiv:2408.07978, section 3. Differs: from Leviathan et
    al. 2023, arXiv:2211.17192, and Chen et al. 2023, arXiv:2302.01318, whose rejection keeps the
    distribution, but not the tokens; a guess that does not depend on the model is right as often
    there, that of a drafting model up to `2d / (1 + d)` of the time more.

    Args:
        logits: After the last known token and after each guess.
        guesses: They may be any tokens where there are none.
        rows: How each row draws.
        first: Number of tokens of each row's answer before.
        num_guesses: How many of the guesses are some, of each row.
        allowed: As of `draw`; the same at each place, so a row with a grammar has no guesses.
        history: As of `draw`, of the text before.
        kind: As of `draw`.
    """
    num_places = logits.shape[1]
    in_row = jnp.arange(logits.shape[0])

    def at_place(carry: TokenHistory | None, place: Array) -> Any:
        keys = row_keys(rows.seed, first + place)
        here = logits[:, place]
        drawn = draw(here, rows, keys, allowed=allowed, history=carry, kind=kind)
        if carry is not None:
            carry = carry.drawn(in_row, guesses[:, jnp.minimum(place, num_places - 2)])
        return carry, drawn

    _, drawn = jax.lax.scan(at_place, history, jnp.arange(num_places, dtype=jnp.int32))
    tokens = drawn.T
    steps = jnp.arange(num_places - 1)[None, :]
    is_right = (tokens[:, :-1] == guesses) & (steps < num_guesses[:, None])
    counts = 1 + jnp.sum(jnp.cumprod(is_right.astype(jnp.int32), axis=1), axis=1, dtype=jnp.int32)
    return Verified(tokens, counts)
