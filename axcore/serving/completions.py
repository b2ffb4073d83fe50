"""`/v1/completions`: texts that continue prompts."""

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from axcore.inference import Answer, DrawnToken, Piece, Request
from axcore.serving.answer_job import AnswerJob
from axcore.serving.answering import RequestFigures
from axcore.serving.completion_request import MAX_TOKENS, CompletionRequest, Prompt
from axcore.serving.served_model import ServedModel


@attrs.define(kw_only=True)
class Choice:
    """An answer as it grows.

    Args:
        prompt: Tokens of its prompt.
        prompt_text: What an echo begins with.
        text: What was drawn so far.
        tokens: Its tokens, the end token included.
        offset: Letters of the tokens so far, as log-probabilities count them.
        finish_reason: Why it ended; None before.
        is_begun: Whether an event reported it.
    """

    prompt: tuple[int, ...]
    prompt_text: str = ""
    text: str = ""
    tokens: list[DrawnToken] = attrs.field(factory=list)
    offset: int = 0
    finish_reason: str | None = None
    is_begun: bool = False

    def add(self, piece: Piece) -> None:
        """Appends a piece."""
        self.text += piece.text
        self.tokens += piece.drawn
        self.finish_reason = piece.finish_reason


class CompletionJob(AnswerJob[CompletionRequest, Choice]):
    """A request that is answered."""

    kind = chunk_kind = "text_completion"

    def add(self, number: int, piece: Piece) -> None:
        """Appends a piece to an answer."""
        self.choices[number].add(piece)

    def changes(self, number: int, piece: Piece) -> Iterator[dict[str, Any]]:
        """Yields what a new piece adds to an answer, as streams have it."""
        choice = self.choices[number]
        text, logprobs = piece.text, self._logprobs(choice, piece.drawn)
        if self.request.echo and not choice.is_begun:
            text = choice.prompt_text + text
            logprobs = self._with_prompt(number, logprobs)
        choice.is_begun = True
        if text or piece.drawn or piece.finish_reason:
            yield _choice(number, text, logprobs, piece.finish_reason)

    def whole(self, number: int) -> dict[str, Any]:
        """Returns an answer that has ended, as responses have it."""
        choice = self.choices[number]
        text, logprobs = choice.text, self._logprobs(choice, choice.tokens)
        if self.request.echo:
            text = choice.prompt_text + text
            logprobs = self._with_prompt(number, logprobs)
        return _choice(number, text, logprobs, choice.finish_reason)

    def _logprobs(self, choice: Choice, tokens: Sequence[DrawnToken]) -> dict[str, Any] | None:
        """Returns log-probabilities of new tokens of a choice."""
        if self.request.num_logprobs is None:
            return None
        found, choice.offset = self.served.texts.as_completion(tokens, choice.offset)
        return found

    def _with_prompt(self, number: int, logprobs: dict[str, Any] | None) -> dict[str, Any] | None:
        """Returns log-probabilities of a choice's prompt, and others after them."""
        if logprobs is None:
            return None
        prompt = _prompt_tokens(self.choices[number], self.answers.answers[number])
        before, _ = self.served.texts.as_completion(prompt, 0)
        return {name: before[name] + logprobs[name] for name in before}


async def begin_completion(
    served: ServedModel, request: CompletionRequest, identity: str, figures: RequestFigures
) -> CompletionJob:
    """Returns a request whose answers are being drawn.

    Raises:
        ApiError: It cannot be answered, or not now.
    """
    adapter, settings = served.adapter(request.model), request.settings
    choices, requests = [], []
    for index, prompt in enumerate(request.prompts):
        param = "prompt" if len(request.prompts) == 1 else f"prompt[{index}]"
        tokens = await served.prompt_tokens(prompt, param, request.prompt_options)
        figures.num_prompt_tokens += len(tokens)
        # An engine draws one token at least; that of a request for none is left out.
        asked = 1 if request.max_tokens == 0 else request.max_tokens
        size = served.answer_size(tokens, asked, default=MAX_TOKENS)
        for seed in served.seeds.of(settings):
            text = _echoed(served, prompt) if request.echo else ""
            choices.append(Choice(prompt=tokens, prompt_text=text, offset=len(text)))
            requests.append(_request(request, tokens, size=size, seed=seed, adapter=adapter))
    answers = await served.submit(requests, figures, keeps_tokens=request.max_tokens != 0)
    return CompletionJob(
        served=served, request=request, id=identity, choices=choices, answers=answers
    )


def _request(request: CompletionRequest, tokens: tuple[int, ...], **values: Any) -> Request:
    settings = request.settings
    return Request(
        prompt=tokens,
        max_tokens=values["size"],
        sampling=settings.sampling,
        seed=values["seed"],
        stop=settings.stop,
        num_logprobs=request.num_logprobs,
        prompt_logprobs=request.echo and request.num_logprobs is not None,
        priority=settings.priority,
        adapter=values["adapter"],
        grammar=request.grammar,
        ignores_end=settings.ignores_end,
    )


def _echoed(served: ServedModel, prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else served.decode(prompt)


def _prompt_tokens(choice: Choice, answer: Answer) -> list[DrawnToken]:
    """Returns the tokens of a prompt with their log-probabilities, the first of which has none."""
    none = (None,) * len(choice.prompt)
    logprobs, likeliest = answer.prompt_logprobs or none, answer.prompt_likeliest or none
    return [
        DrawnToken(token, logprob, (best or ())[: answer.request.num_logprobs])
        for token, logprob, best in zip(choice.prompt, logprobs, likeliest, strict=True)
    ]


def _choice(
    number: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None
) -> dict[str, Any]:
    return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
