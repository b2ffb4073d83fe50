"""`CompletionRequest`: the body of `/v1/completions`."""

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.data import Tokenizer
from axcore.serving.api_error import invalid
from axcore.serving.fields import Fields, checked_text
from axcore.serving.limits import Limits
from axcore.serving.response_format import read_response_format
from axcore.serving.settings import MAX_LOGPROBS, Settings, read_settings

Prompt = str | tuple[int, ...]
"""A text, or the numbers of its tokens."""

MAX_TOKENS = 16
"""Tokens of an answer where a request names no number, as OpenAI's API has it."""


@attrs.frozen(kw_only=True)
class PromptOptions:
    """How a text becomes tokens.

    Args:
        parses_special: Whether special tokens that it writes out are these tokens, as for clients
            that render chat templates themselves; otherwise they are characters.
        adds_special: Whether bos is put in front, where there is one and the text has none.
    """

    parses_special: bool
    adds_special: bool

    def tokens(self, tokenizer: Tokenizer, text: str) -> NDArray[np.int32]:
        """Return the tokens of a text."""
        if self.adds_special:
            return tokenizer.encode_prompt(text, parses_special=self.parses_special)
        return tokenizer.encode_written(text) if self.parses_special else tokenizer.encode(text)


def read_prompt_options(fields: Fields) -> PromptOptions:
    """Return what a request says of its texts."""
    return PromptOptions(
        parses_special=fields.boolean("parse_special", default=True),
        adds_special=fields.boolean("add_special_tokens", default=True),
    )


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
        num_logprobs: Likeliest tokens that are listed beside each one; None lists nothing.
        grammar: What answers must follow.
        settings: The rest.
    """

    model: str | None
    prompts: tuple[Prompt, ...]
    prompt_options: PromptOptions
    max_tokens: int | None
    echo: bool
    num_logprobs: int | None
    grammar: Any
    settings: Settings


def read_completion(content: Any, limits: Limits) -> CompletionRequest:
    """Returns a request from its body.

    Raises:
        ApiError: A field is unknown, not supported, or has a value that cannot be used.
    """
    fields = Fields(content)
    echo = fields.boolean("echo")
    max_tokens = fields.integer("max_tokens", least=0, most=2**31 - 1)
    if max_tokens == 0 and not echo:
        raise invalid("max_tokens is 0, which needs echo: true; expected 1 or more", "max_tokens")
    request = CompletionRequest(
        model=fields.text("model"),
        prompts=_prompts(fields, limits),
        prompt_options=read_prompt_options(fields),
        max_tokens=max_tokens,
        echo=echo,
        num_logprobs=fields.integer("logprobs", least=0, most=MAX_LOGPROBS),
        grammar=read_response_format(fields),
        settings=read_settings(fields, limits),
    )
    fields.text("user")
    harmless = [1, request.settings.num_choices]
    fields.refuse("best_of", "Ask for n answers, and choose by their logprobs.", harmless=harmless)
    fields.refuse("suffix", "Models continue texts; they fill no gaps.", harmless=("",))
    fields.finish()
    return request


def _prompts(fields: Fields, limits: Limits) -> tuple[Prompt, ...]:
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
    if len(found) > limits.max_answers:
        most = limits.max_answers
        raise invalid(f"prompt has {len(found)} texts; at most {most} are accepted", path)
    return tuple(_prompt(one, f"{path}[{number}]") for number, one in enumerate(found))


def read_prompt(fields: Fields) -> str:
    """Returns the one text of a request.

    Raises:
        ApiError: There is none.
    """
    text = fields.text("prompt")
    if text is None:
        raise invalid("prompt is missing; expected a text", "prompt", code="missing_field")
    return text


def _prompt(found: Any, path: str) -> Prompt:
    if isinstance(found, str):
        return checked_text(found, path)
    if isinstance(found, list) and found and all(_is_token(one) for one in found):
        return tuple(found)
    expected = "a text or a list of token numbers"
    raise invalid(f"{path} is {found!r:.40}; expected {expected}", path, code="invalid_type")


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
