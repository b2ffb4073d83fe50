"""`beam_search`: the likeliest continuations of a prompt, found several at a time."""

from collections.abc import Sequence

import attrs

from axcore.errors import RequestError
from axcore.inference.replicas import AnyEngine
from axcore.inference.request import MAX_LOGPROBS, Request, Sampling

MAX_BEAMS = MAX_LOGPROBS // 2
"""Beams at most: each step reads twice as many likeliest tokens of each."""


@attrs.frozen
class Beam:
    """A continuation that a beam search found.

    Args:
        tokens: Its tokens, without the end token.
        logprob: The sum of the log-probabilities of its tokens, the end token included.
        score: That sum divided by its length to the power of the length penalty.
        finish_reason: "stop" where the model ended it, "length" otherwise.
    """

    tokens: tuple[int, ...]
    logprob: float
    score: float
    finish_reason: str


def beam_search(
    engine: AnyEngine,
    request: Request,
    *,
    num_beams: int,
    end_ids: Sequence[int],
    length_penalty: float = 1.0,
    stops_early: bool = False,
) -> tuple[Beam, ...]:
    """Return the best continuations of a prompt, the best first.

    Every step is a request of one token for each beam, which reads the full pages of its text from
    the prefix cache and the rest again: up to `page_size` tokens a beam and step.

    Args:
        engine: What computes log-probabilities; other requests may run in it.
        request: The prompt with its inputs, `max_tokens`, `ignores_end`, adapter and priority.
        num_beams: Continuations that are continued at once, and returned.
        end_ids: Tokens that end a text.
        length_penalty: Above 0 longer texts are preferred, below 0 shorter ones.
        stops_early: Whether the search ends once `num_beams` have ended; otherwise it continues
            while the best of the others has a better score than the worst of these.

    Raises:
        RequestError: There are too many beams, or the request asks for what a search does not
            have: sampling, stop strings, a grammar, log-probabilities.

    Source:
        The rules of `generate(num_beams=...)` in transformers 5.
    """
    _check(request, num_beams, engine.max_length)
    width = 2 * num_beams
    running: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    ended: list[Beam] = []
    for length in range(1, request.max_tokens + 1):
        candidates = _continued(engine, request, running, width)[:width]
        running = []
        for rank, (tokens, logprob) in enumerate(candidates):
            is_end = tokens[-1] in end_ids and not request.ignores_end
            if is_end or length == request.max_tokens:
                # What is less likely than `num_beams` others is there so that
                # enough are left to continue, and is not an answer itself.
                if rank < num_beams:
                    text = tokens[:-1] if is_end else tokens
                    score = logprob / length**length_penalty
                    ended.append(Beam(text, logprob, score, "stop" if is_end else "length"))
            elif len(running) < num_beams:
                running.append((tokens, logprob))
        ended = sorted(ended, key=lambda one: one.score, reverse=True)[:num_beams]
        if not running:
            break
        best = running[0][1] / length**length_penalty
        if len(ended) == num_beams and (stops_early or best <= ended[-1].score):
            break
    return tuple(ended)


def _continued(
    engine: AnyEngine,
    request: Request,
    running: Sequence[tuple[tuple[int, ...], float]],
    width: int,
) -> list[tuple[tuple[int, ...], float]]:
    """Return continuations by one token, the likeliest first."""
    # Greedy, and the sampled token is not looked at: all candidates come from the listed ones.
    one = attrs.evolve(
        request,
        max_tokens=1,
        ignores_end=True,
        sampling=Sampling(temperature=0),
        num_logprobs=width,
    )
    asked = [attrs.evolve(one, prompt=request.prompt + tokens) for tokens, _ in running]
    found = []
    for (tokens, logprob), stream in zip(running, engine.submit_all(asked), strict=True):
        (token,) = stream.result().tokens
        found += [((*tokens, number), logprob + value) for number, value in token.top_logprobs]
    return sorted(found, key=lambda pair: pair[1], reverse=True)


_WITHOUT = (
    *("sampling", "stop", "stop_tokens", "min_tokens", "grammar", "num_logprobs"),
    "prompt_logprobs",
)
"""Fields of a request that a search has no use for."""


def _check(request: Request, num_beams: int, max_length: int) -> None:
    # Here and not at the step that would be too long, by which all that was found would be lost.
    size = len(request.prompt)
    if request.max_tokens < 1 or size + request.max_tokens > max_length:
        raise RequestError(
            f"the prompt has {size} tokens, and max_tokens is {request.max_tokens}; expected 1 or "
            f"more, and {max_length} together at most",
            where="max_tokens",
            hint=f"set max_tokens to {max(1, max_length - size)}, or give a shorter prompt",
        )
    if not 1 <= num_beams <= MAX_BEAMS:
        raise RequestError(
            f"num_beams is {num_beams}; expected 1 to {MAX_BEAMS}", where="num_beams"
        )
    fields = attrs.fields_dict(Request)
    given = [name for name in _WITHOUT if getattr(request, name) != fields[name].default]
    if given:
        raise RequestError(
            f"a beam search takes no {' and no '.join(given)}",
            where=given[0],
            hint="leave it out, or sample instead",
        )
