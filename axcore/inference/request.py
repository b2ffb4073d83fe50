"""What an engine is asked, and what it gives back: plain values, without jax."""

from typing import Any

import attrs

from axcore.errors import EngineError
from axcore.inference.sampling import Sampling

Likeliest = tuple[tuple[int, float], ...]
"""Numbers and log-probabilities of the likeliest tokens at a place, the likeliest one first."""


class QueueFull(EngineError):  # noqa: N818 - as queue.Full of the standard library
    """As many requests wait as may wait; a later attempt can succeed."""


class Draining(EngineError):  # noqa: N818 - a state, which passes
    """The engine takes no new requests: it finishes those that it has."""


@attrs.frozen(kw_only=True)
class Request:
    """A text to continue, and how.

    Token `i` of the answer is drawn with `fold_in(key(seed), i)`, whatever else is in the batch.

    Args:
        prompt: Tokens to continue, at least one.
        max_tokens: Tokens drawn at most.
        sampling: How tokens are drawn.
        seed: Decides the draws.
        stop: The text ends before the first of these.
        num_logprobs: Number of likeliest tokens whose log-probabilities are returned with that of
            each drawn token; None returns none.
        prompt_logprobs: Whether log-probabilities of the prompt's tokens are returned.
        priority: Lower ones are served sooner.
        adapter: Name of the adapter that the model is used with.
        grammar: What the text has to match.
        ignores_end: Whether tokens that end a text are drawn as any other.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = Sampling()  # noqa: RUF009 - a frozen value
    seed: int = 0
    stop: tuple[str, ...] = ()
    num_logprobs: int | None = None
    prompt_logprobs: bool = False
    priority: int = 0
    adapter: str | None = None
    grammar: Any = None
    ignores_end: bool = False


@attrs.frozen
class DrawnToken:
    """A token of an answer.

    Args:
        id: Its number.
        logprob: Its log-probability, where the request asks for it.
        likeliest: Numbers and log-probabilities of the likeliest tokens, the likeliest one first.
    """

    id: int
    logprob: float | None = None
    likeliest: Likeliest = ()


@attrs.frozen
class Piece:
    """What one step added to an answer.

    Args:
        text: Whole characters, and no part of a stop string.
        tokens: The tokens drawn; their text may come with a later piece.
        finish_reason: "stop", "length", "cancelled" or "error" of the last piece, None before.
        end: The end token, where the model drew one; it has no text.
    """

    text: str
    tokens: tuple[DrawnToken, ...]
    finish_reason: str | None = None
    end: DrawnToken | None = None

    @property
    def drawn(self) -> tuple[DrawnToken, ...]:
        """Every token that was drawn, the end token included."""
        return self.tokens if self.end is None else (*self.tokens, self.end)


@attrs.frozen
class Completion:
    """A whole answer.

    Args:
        text: Its text.
        tokens: Its tokens, without the end token.
        finish_reason: "stop", "length" or "cancelled".
        prompt_logprobs: Of each token of the prompt, the first of which has none; None where the
            request does not ask for them.
        prompt_likeliest: The likeliest tokens at each of those places, as many as the request asks
            for by `num_logprobs`, but at least one.
        num_cached_prompt_tokens: Tokens of the prompt that another request had computed.
        end: The end token, where the model drew one.
    """

    text: str
    tokens: tuple[DrawnToken, ...]
    finish_reason: str
    prompt_logprobs: tuple[float | None, ...] | None = None
    prompt_likeliest: tuple[Likeliest | None, ...] | None = None
    num_cached_prompt_tokens: int = 0
    end: DrawnToken | None = None
