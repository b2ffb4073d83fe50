"""`draw`: a token a row, each row by its own settings and its own key.

Letters of shapes: B rows, V vocabulary, W words of 32 tokens, n likeliest tokens.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, UInt32

from axcore.inference.drawing.filters import filter_tokens
from axcore.inference.drawing.history import TokenHistory
from axcore.inference.drawing.penalties import add_bias, penalize
from axcore.inference.drawing.sampling_rows import SamplingRows
from axcore.inference.drawing.token_masks import mask_logits
from axcore.inference.sampling import Sampling

DrawKind = Literal["greedy", "plain", "full"]
"""What a program can do: `greedy` takes the likeliest token, `plain` has a temperature too, and
`full` every setting. Each does all that those before it do."""


class LogProbs(NamedTuple):
    """Log-probabilities by the model alone: before penalties, biases, masks and temperature.

    Args:
        drawn: Of the drawn token.
        likeliest: The likeliest tokens, the likeliest first.
        of_likeliest: Theirs.
    """

    drawn: Float[Array, " B"]
    likeliest: Int[Array, "B n"]
    of_likeliest: Float[Array, "B n"]


def draw(
    logits: Float[Array, "B V"],
    rows: SamplingRows,
    keys: Array,
    *,
    allowed: UInt32[ArrayLike, "#B W"] | None = None,
    history: TokenHistory | None = None,
    kind: DrawKind = "full",
) -> Int[Array, " B"]:
    """Returns a token of each row, drawn by Gumbel noise (the largest of logits plus noise).

    A row's token depends on its own logits, settings and key alone.

    Args:
        logits: Of any float dtype; what follows is computed in float32.
        rows: How each row draws.
        keys: A random key a row; see `row_keys`.
        allowed: Packed bits of the tokens that may be drawn, one row for all or one for each; see
            `packed_mask`. None allows all.
        history: What penalties count, a row of it for each row here; None penalizes nothing.
        kind: What the program can do. A row whose settings it lacks is drawn without them, so
            choose it by `kind_for`.
    """
    changed = changed_logits(logits, rows, allowed=allowed, history=history, kind=kind)
    likeliest = _argmax(changed)
    if kind == "greedy":
        return likeliest
    scaled = scaled_logits(changed, rows, kind=kind)
    noise = jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[1:], jnp.float32))(keys)
    drawn = _argmax(scaled + noise)
    return jnp.where(rows.temperature > 0, drawn, likeliest)


def _argmax(x: Float[Array, "B V"]) -> Int[Array, " B"]:
    """Returns what `jnp.argmax` does, in a sixth of its time on a CPU.

    A largest value and a least number are found by vector instructions, a pair of both is not.
    """
    is_largest = (x == jnp.max(x, axis=1, keepdims=True)) | jnp.isnan(x)
    numbers = jnp.arange(x.shape[1], dtype=jnp.int32)[None, :]
    return jnp.min(jnp.where(is_largest, numbers, x.shape[1]), axis=1)


def kind_for(samplings: Iterable[Sampling]) -> DrawKind:
    """Returns the cheapest kind of program that can draw for all of several requests."""
    kind: DrawKind = "greedy"
    for sampling in samplings:
        if not sampling.is_plain:
            return "full"
        kind = kind if sampling.temperature == 0 else "plain"
    return kind


def changed_logits(
    logits: Float[Array, "B V"],
    rows: SamplingRows,
    *,
    allowed: UInt32[ArrayLike, "#B W"] | None = None,
    history: TokenHistory | None = None,
    kind: DrawKind = "full",
) -> Float[Array, "B V"]:
    """Returns logits after penalties, biases and the mask; the arguments are those of `draw`."""
    logits = jnp.asarray(logits, jnp.float32)
    if kind == "full":
        logits = logits if history is None else penalize(logits, rows, history)
        logits = add_bias(logits, rows)
    return logits if allowed is None else mask_logits(logits, jnp.asarray(allowed))


def scaled_logits(
    changed: Float[Array, "B V"], rows: SamplingRows, *, kind: DrawKind = "full"
) -> Float[Array, "B V"]:
    """Returns logits whose softmax is the distribution that rows with a temperature draw from.

    Args:
        changed: What `changed_logits` returned.
        rows: How each row draws; a temperature of 0 counts as 1.
        kind: Whether there are filters.
    """
    temperature = jnp.where(rows.temperature > 0, rows.temperature, 1.0)[:, None]
    scaled = (changed - jnp.max(changed, axis=1, keepdims=True)) / temperature
    return filter_tokens(scaled, rows) if kind == "full" else scaled


def log_probabilities(
    logits: Float[Array, "B V"], tokens: Int[Array, " B"], num_likeliest: int
) -> LogProbs:
    """Returns the log-probabilities of tokens and of the likeliest, by the model alone.

    Args:
        logits: As the model gave them.
        tokens: The drawn ones.
        num_likeliest: How many of the likeliest to return.
    """
    whole = jax.nn.log_softmax(logits.astype(jnp.float32), axis=1)
    drawn = jnp.take_along_axis(whole, tokens[:, None], axis=1)[:, 0]
    of_likeliest, likeliest = jax.lax.top_k(whole, num_likeliest)
    return LogProbs(drawn, likeliest.astype(jnp.int32), of_likeliest)
