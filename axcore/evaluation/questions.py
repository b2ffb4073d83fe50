"""What a model is asked, what it replies, and the protocol of what can be asked."""

from typing import Any, Protocol

import attrs


@attrs.frozen(kw_only=True)
class Likelihood:
    """How likely a model finds a continuation.

    Args:
        context: What comes before; may be empty.
        continuation: What is scored, a space at its beginning included.
    """

    context: str
    continuation: str


@attrs.frozen(kw_only=True)
class TextLikelihood:
    """How likely a model finds a full text, however long it is.

    Args:
        text: It is read in windows of the model's length.
    """

    text: str


@attrs.frozen(kw_only=True)
class Continuation:
    """Text that a model writes.

    Args:
        prompt: What comes before.
        max_tokens: Tokens written at most.
        stop: The text ends before the first of these.
        temperature: 0 takes the likeliest token.
        seed: Seed of the samples.
    """

    prompt: str
    max_tokens: int
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    seed: int = 0


Question = Likelihood | TextLikelihood | Continuation


@attrs.frozen(kw_only=True)
class Scored:
    """The reply to `Likelihood` and `TextLikelihood`.

    Args:
        logprob: Of all scored tokens together, in nats.
        num_tokens: Scored tokens.
        is_greedy: Whether each of them is the likeliest at its place.
        num_cut: Tokens left out because the model reads no longer texts.
    """

    logprob: float
    num_tokens: int
    is_greedy: bool
    num_cut: int = 0


@attrs.frozen(kw_only=True)
class Written:
    """The reply to `Continuation`.

    Args:
        text: What was written.
        num_tokens: Tokens of it.
        finish_reason: "stop" where the model or a stop text ended it, otherwise "length".
        num_cut: Tokens of the prompt's beginning that were left out.
    """

    text: str
    num_tokens: int
    finish_reason: str
    num_cut: int = 0


Reply = Scored | Written


class PendingReply(Protocol):
    """A question that was asked."""

    def reply(self, timeout_s: float) -> Any:
        """Return a `Reply`.

        Raises:
            TimeoutError: There is none in time; it is given up.
        """


class LanguageModel(Protocol):
    """What answers questions, many at once."""

    def ask(self, question: Any) -> PendingReply:
        """Take a `Question`; return at once."""
