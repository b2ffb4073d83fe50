"""`/v1/completions`: texts that continue prompts."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import attrs

from axcore.inference import Answer, DrawnToken, Piece, Request
from axcore.serving.answering import Answers, RequestFigures
from axcore.serving.completion_request import CompletionRequest, Prompt
from axcore.serving.served_model import ServedModel, seeds


@attrs.define(kw_only=True)
class Choice:
    """An answer as it grows.

    Args:
        prompt: Tokens of its prompt.
        prompt_text: What an echo begins with.
        text: What was drawn so far.
        tokens: Its tokens.
        offset: Letters of the tokens so far, as log-probabilities count them.
        finish_reason: Why it ended; None before.
    """

    prompt: tuple[int, ...]
    prompt_text: str = ""
    text: str = ""
    tokens: list[DrawnToken] = attrs.field(factory=list)
    offset: int = 0
    finish_reason: str | None = None

    def add(self, piece: Piece) -> None:
        """Appends a piece."""
        self.text += piece.text
        self.tokens += piece.tokens
        self.finish_reason = piece.finish_reason


@attrs.define(kw_only=True)
class CompletionJob:
    """A request that is answered.

    Args:
        served: The model.
        request: What was asked.
        id: What the response is called.
        choices: Its answers.
        answers: Where their tokens come from.
    """

    served: ServedModel
    request: CompletionRequest
    id: str
    choices: list[Choice]
    answers: Answers

    async def response(self) -> dict[str, Any]:
        """Returns the whole response."""
        async for arrived in self.answers.pieces():
            if arrived is not None:
                number, piece = arrived
                self.choices[number].add(self._kept(piece))
        found = [self._whole(number) for number in range(len(self.choices))]
        return {**self._head(), "choices": found, "usage": self._usage()}

    async def events(self) -> AsyncIterator[dict[str, Any] | None]:
        """Yields the response in pieces."""
        begun = set[int]()
        async for arrived in self.answers.pieces():
            if arrived is None:
                yield None
                continue
            number, piece = arrived
            piece, choice = self._kept(piece), self.choices[number]
            text, logprobs = piece.text, self._logprobs(choice, piece.tokens)
            if self.request.echo and number not in begun:
                text = choice.prompt_text + text
                logprobs = self._with_prompt(number, logprobs)
            begun.add(number)
            if text or piece.tokens or piece.finish_reason:
                yield {
                    **self._head(),
                    "choices": [_choice(number, text, logprobs, piece.finish_reason)],
                }
        if self.request.settings.includes_usage:
            yield {**self._head(), "choices": [], "usage": self._usage()}

    def _usage(self) -> dict[str, Any]:
        return usage(self.answers.figures, has_answers=self.request.max_tokens > 0)

    def _kept(self, piece: Piece) -> Piece:
        """Returns a piece; one that was drawn only to look at the prompt is empty."""
        if self.request.max_tokens:
            return piece
        return Piece("", (), None if piece.finish_reason is None else "length")

    def _whole(self, number: int) -> dict[str, Any]:
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

    def _head(self) -> dict[str, Any]:
        name = self.request.model or self.served.name
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.served.created,
            "model": name,
        }


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
        tokens = await served.prompt_tokens(prompt, param)
        figures.num_prompt_tokens += len(tokens)
        size = served.answer_size(tokens, max(request.max_tokens, 1))
        for seed in seeds(settings, settings.num_choices):
            text = _echoed(served, prompt) if request.echo else ""
            choices.append(Choice(prompt=tokens, prompt_text=text, offset=len(text)))
            requests.append(_request(request, tokens, size=size, seed=seed, adapter=adapter))
    answers = await served.submit(requests, figures)
    return CompletionJob(
        served=served, request=request, id=identity, choices=choices, answers=answers
    )


def usage(figures: RequestFigures, *, has_answers: bool = True) -> dict[str, Any]:
    """Returns the numbers of tokens of a request that was answered.

    Args:
        figures: Of the request.
        has_answers: Whether it got the tokens that were drawn.
    """
    prompt, drawn = figures.num_prompt_tokens, figures.num_tokens if has_answers else 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": drawn,
        "total_tokens": prompt + drawn,
        "prompt_tokens_details": {"cached_tokens": figures.num_cached_tokens},
    }


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
        DrawnToken(token, logprob, () if best is None else (best,))
        for token, logprob, best in zip(choice.prompt, logprobs, likeliest, strict=True)
    ]


def _choice(
    number: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None
) -> dict[str, Any]:
    return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
