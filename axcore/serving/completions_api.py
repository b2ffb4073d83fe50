"""`CompletionRequest`: the body of `/v1/completions`."""

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from axcore.inference import CompletionDelta, CompletionStream, SampledToken
from axcore.serving.api_error import invalid
from axcore.serving.config import Limits
from axcore.serving.metrics import RequestStats
from axcore.serving.request_handler import generate
from axcore.serving.request_parser import RequestParser, checked_text
from axcore.serving.request_settings import (
    MAX_LOGPROBS,
    PromptOptions,
    Settings,
    read_prompt_options,
    read_settings,
)
from axcore.serving.responses import CompletionSet, GenerationJob
from axcore.serving.served_model import ServedModel
from axcore.serving.structured_outputs import read_response_format

Prompt = str | tuple[int, ...]
"""A text, or the numbers of its tokens."""

MAX_TOKENS = 16
"""Tokens of an answer where a request names no number, as OpenAI's API has it."""


@attrs.frozen(kw_only=True)
class CompletionRequest:
    """What continues which texts.

    Args:
        model: Name of the model; None is the one that is served.
        prompts: What is continued.
        prompt_options: How texts among the prompts become tokens.
        max_tokens: Tokens of an answer at most; 0 only looks at the prompt, and None is
            `MAX_TOKENS`, or as many as there is room for.
        echo: Whether answers begin with their prompt.
        num_logprobs: Likeliest tokens that are listed with each one; None lists nothing.
        best_of: Answers that are sampled for each prompt, of which the likeliest are sent; None
            sends all.
        grammar: What answers must follow.
        settings: The rest.
    """

    model: str | None
    prompts: tuple[Prompt, ...]
    prompt_options: PromptOptions
    max_tokens: int | None
    echo: bool
    num_logprobs: int | None
    best_of: int | None
    grammar: Any
    settings: Settings


def read_completion(content: Any, limits: Limits) -> CompletionRequest:
    """Return a request from its body.

    Raises:
        ApiError: A field is unknown, not supported, or has a value that cannot be used.
    """
    fields = RequestParser(content)
    echo = fields.boolean("echo")
    max_tokens = fields.integer("max_tokens", min_value=0, max_value=2**31 - 1)
    if max_tokens == 0 and not echo:
        raise invalid("max_tokens is 0, which needs echo: true; expected 1 or more", "max_tokens")
    request = CompletionRequest(
        model=fields.text("model"),
        prompts=_prompts(fields, limits),
        prompt_options=read_prompt_options(fields),
        max_tokens=max_tokens,
        echo=echo,
        num_logprobs=fields.integer("logprobs", min_value=0, max_value=MAX_LOGPROBS),
        grammar=read_response_format(fields),
        best_of=fields.integer("best_of", min_value=1, max_value=limits.max_completions),
        settings=read_settings(fields, limits),
    )
    fields.text("user")
    _check_best_of(request)
    number = len(request.prompts) * (request.best_of or request.settings.num_choices)
    if number > limits.max_completions:
        most = limits.max_completions
        message = f"prompts and n or best_of make {number} completions; at most {most} are accepted"
        raise invalid(message, "best_of" if request.best_of else "n")
    fields.refuse("suffix", "Models continue texts; they fill no gaps.", harmless=("",))
    fields.finish()
    return request


def _check_best_of(request: CompletionRequest) -> None:
    most, settings = request.best_of, request.settings
    if most is not None and most < settings.num_choices:
        message = f"best_of is {most}, and n {settings.num_choices}; expected n or more"
        raise invalid(message, "best_of")
    if most is not None and most > settings.num_choices and settings.is_streamed:
        # Which are the best is known at the end alone.
        raise invalid("best_of above n is only for requests without stream: true", "best_of")


def _prompts(fields: RequestParser, limits: Limits) -> tuple[Prompt, ...]:
    found, path = fields.raw("prompt"), fields.path("prompt")
    if found is None:
        raise invalid("prompt is missing; expected a text", path, code="missing_field")
    if isinstance(found, str):
        return (checked_text(found, path),)
    if not isinstance(found, list) or not found:
        expected = "a text, a list of texts, a list of token numbers, or a list of those"
        raise invalid(f"prompt is {found!r:.40}; expected {expected}", path, code="invalid_type")
    if all(_is_token(one) for one in found):
        return (tuple(found),)
    if len(found) > limits.max_completions:
        most = limits.max_completions
        raise invalid(f"prompt has {len(found)} texts; at most {most} are accepted", path)
    return tuple(_prompt(one, f"{path}[{number}]") for number, one in enumerate(found))


def _prompt(found: Any, path: str) -> Prompt:
    if isinstance(found, str):
        return checked_text(found, path)
    if isinstance(found, list) and found and all(_is_token(one) for one in found):
        return tuple(found)
    expected = "a text or a list of token numbers"
    raise invalid(f"{path} is {found!r:.40}; expected {expected}", path, code="invalid_type")


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


@attrs.define(kw_only=True)
class Choice:
    """An answer as it grows.

    Args:
        prompt: Tokens of its prompt.
        prompt_text: What an echo begins with.
        text: What was sampled so far.
        tokens: Its tokens, the end token included.
        offset: Letters of the tokens so far, as log-probabilities count them.
        finish_reason: Why it ended; None before.
        is_begun: Whether an event reported it.
    """

    prompt: tuple[int, ...]
    prompt_text: str = ""
    text: str = ""
    tokens: list[SampledToken] = attrs.field(factory=list)
    offset: int = 0
    finish_reason: str | None = None
    is_begun: bool = False

    def add(self, delta: CompletionDelta) -> None:
        """Append a piece."""
        self.text += delta.text
        self.tokens += delta.sampled
        self.finish_reason = delta.finish_reason


class CompletionJob(GenerationJob[CompletionRequest, Choice]):
    """A request that is answered."""

    kind = chunk_kind = "text_completion"

    def add(self, number: int, delta: CompletionDelta) -> None:
        """Append a piece to an answer."""
        self.choices[number].add(delta)

    def changes(self, number: int, delta: CompletionDelta) -> Iterator[dict[str, Any]]:
        """Yield what a new piece adds to an answer, as streams have it."""
        choice = self.choices[number]
        text, logprobs = delta.text, self._logprobs(choice, delta.sampled)
        if self.request.echo and not choice.is_begun:
            text = choice.prompt_text + text
            logprobs = self._with_prompt(number, logprobs)
        is_first, choice.is_begun = not choice.is_begun, True
        if text or delta.sampled or delta.finish_reason:
            found = _choice(number, text, logprobs, delta.finish_reason)
            yield found | self._numbers(choice, delta.sampled, has_prompt=is_first)

    def returned(self) -> Sequence[int]:
        """Return the numbers of the answers that are sent: of each prompt the likeliest."""
        if self.request.best_of is None:
            return super().returned()
        found: list[int] = []
        for first in range(0, len(self.choices), self.request.best_of):
            numbers = range(first, first + self.request.best_of)
            # `sorted` keeps the order of equal ones, so that what is returned is one answer's.
            ranked = sorted(numbers, key=self._likelihood, reverse=True)
            found += ranked[: self.request.settings.num_choices]
        return found

    def _likelihood(self, number: int) -> float:
        """Return the mean log-probability of an answer's tokens, its end included."""
        logprobs = [one.logprob for one in self.choices[number].tokens if one.logprob is not None]
        return sum(logprobs) / max(1, len(logprobs))

    def whole(self, number: int) -> dict[str, Any]:
        """Return an answer that has ended, as responses have it."""
        choice = self.choices[number]
        text, logprobs = choice.text, self._logprobs(choice, choice.tokens)
        if self.request.echo:
            text = choice.prompt_text + text
            logprobs = self._with_prompt(number, logprobs)
        found = _choice(number, text, logprobs, choice.finish_reason)
        if self.request.settings.num_prompt_logprobs is not None:
            found["prompt_logprobs"] = self.prompt_logprobs(number)
        return found | self._numbers(choice, choice.tokens, has_prompt=True)

    def _numbers(
        self, choice: Choice, tokens: Sequence[SampledToken], *, has_prompt: bool
    ) -> dict[str, Any]:
        """Return numbers of tokens, where they are wanted."""
        if not self.request.settings.returns_tokens:
            return {}
        prompt = {"prompt_token_ids": choice.prompt} if has_prompt else {}
        return {"token_ids": [token.id for token in tokens], **prompt}

    def _logprobs(self, choice: Choice, tokens: Sequence[SampledToken]) -> dict[str, Any] | None:
        """Return log-probabilities of new tokens of a choice."""
        if self.request.num_logprobs is None:
            return None
        listed = self.listed(tokens)
        found, choice.offset = self.served.texts.as_completion(listed, choice.offset)
        return found

    def _with_prompt(self, number: int, logprobs: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return log-probabilities of a choice's prompt, and others after them."""
        if logprobs is None:
            return None
        prompt = _prompt_tokens(self.choices[number], self.completions.completions[number])
        before, _ = self.served.texts.as_completion(self.listed(prompt), 0)
        return {name: before[name] + logprobs[name] for name in before}


async def completions(request: HttpRequest) -> Response:
    """Answer `POST /v1/completions`."""
    return await generate(request, read_completion, start_completion, id_prefix="cmpl")


async def start_completion(
    served: ServedModel, request: CompletionRequest, identity: str, stats: RequestStats
) -> CompletionJob:
    """Return a request whose answers are being sampled.

    Raises:
        ApiError: It cannot be answered, or not now.
    """
    adapter, settings = served.adapter(request.model), request.settings
    choices, requests = [], []
    for index, prompt in enumerate(request.prompts):
        param = "prompt" if len(request.prompts) == 1 else f"prompt[{index}]"
        max_size = served.max_prompt_size(settings.truncates_to, request.max_tokens)
        tokens = await served.prompt_tokens(
            prompt, param, request.prompt_options, max_size=max_size
        )
        stats.num_prompt_tokens += len(tokens)
        # An engine samples one token at least; that of a request for none is left out.
        asked = 1 if request.max_tokens == 0 else request.max_tokens
        size = served.max_new_tokens(tokens, asked, default=MAX_TOKENS)
        # The engine is asked for log-probabilities also where only their order is wanted.
        ranks = request.best_of is not None and request.num_logprobs is None
        for seed in served.seeds.of(settings, request.best_of):
            text = _echoed(served, prompt) if request.echo else ""
            choices.append(Choice(prompt=tokens, prompt_text=text, offset=len(text)))
            requests.append(
                settings.request(
                    served.tokenizer,
                    prompt=tokens,
                    max_tokens=size,
                    seed=seed,
                    num_logprobs=0 if ranks else request.num_logprobs,
                    prompt_logprobs=request.echo and request.num_logprobs is not None,
                    adapter=adapter,
                    grammar=request.grammar,
                )
            )
    completions = CompletionSet(
        await served.submit(requests), stats, keeps_tokens=request.max_tokens != 0
    )
    return CompletionJob(
        served=served, request=request, id=identity, choices=choices, completions=completions
    )


def _echoed(served: ServedModel, prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else served.decode(prompt)


def _prompt_tokens(choice: Choice, completion: CompletionStream) -> list[SampledToken]:
    """Return the tokens of a prompt with their log-probabilities, the first of which has none."""
    none = (None,) * len(choice.prompt)
    logprobs, top_logprobs = (
        completion.prompt_logprobs or none,
        completion.prompt_top_logprobs or none,
    )
    return [
        SampledToken(token, logprob, (best or ())[: completion.request.num_logprobs])
        for token, logprob, best in zip(choice.prompt, logprobs, top_logprobs, strict=True)
    ]


def _choice(
    number: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None
) -> dict[str, Any]:
    return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
