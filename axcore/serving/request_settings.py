"""`Settings`: what completions and chats ask of each answer alike."""

import hashlib
import random
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.data import Tokenizer
from axcore.inference import Request, Sampling
from axcore.serving.api_error import invalid
from axcore.serving.config import Limits
from axcore.serving.request_parser import RequestParser, checked_text, finite_number

_MAX_STOPS = 16
"""Texts that may end an answer."""

_MAX_STOP_LETTERS = 1000
"""Letters of one of them; each is prepared for each answer while others wait."""

MAX_LOGPROBS = 20
"""Likeliest tokens that are listed with each token at most."""

MAX_BIASES = 300
_MIN_TOP_P = 1e-6
_MAX_INT = 2**63 - 1


@attrs.frozen(kw_only=True)
class Settings:
    """What a request asks of each of its answers.

    Args:
        sampling: How tokens are sampled.
        num_choices: Answers to each prompt.
        seed: Decides the samples; None takes another one for each request.
        stop: Texts that end an answer.
        ignores_end: Whether an answer continues after the model ended it.
        is_streamed: Whether tokens are sent as they are sampled.
        includes_usage: Whether a stream ends with the number of tokens.
        priority: Requests of a lower one are served sooner.
        stop_tokens: Tokens that end an answer, in addition to the model's.
        includes_stop: Whether an answer has the stop that ended it.
        min_tokens: Tokens before which nothing ends an answer.
        shows_special: Whether special tokens are written out.
        num_prompt_logprobs: Likeliest tokens that are listed at each place of the prompt; None
            lists nothing.
        returns_tokens: Whether the numbers of tokens are sent, too.
        truncates_to: Tokens of the prompt that are kept, its last ones; None keeps all, and -1 as
            many as there is room for.
    """

    sampling: Sampling
    num_choices: int
    seed: int | None
    stop: tuple[str, ...]
    ignores_end: bool
    is_streamed: bool
    includes_usage: bool
    priority: int
    stop_tokens: tuple[int, ...]
    includes_stop: bool
    min_tokens: int
    shows_special: bool
    num_prompt_logprobs: int | None
    returns_tokens: bool
    truncates_to: int | None

    def request(
        self,
        tokenizer: Tokenizer,
        *,
        num_logprobs: int | None,
        visible: Sequence[int] = (),
        **values: Any,
    ) -> Request:
        """Return what an engine is asked for.

        Args:
            tokenizer: The model's.
            num_logprobs: Likeliest tokens that are listed with each sampled one.
            visible: Special tokens that are written out anyway.
            **values: What a request has that is not of these settings.
        """
        wanted = [one for one in (num_logprobs, self.num_prompt_logprobs) if one is not None]
        shown = {*visible, *(tokenizer.special_tokens() if self.shows_special else ())}
        listed = values.pop("prompt_logprobs", False) or self.num_prompt_logprobs is not None
        return Request(
            sampling=self.sampling,
            stop=(*self.stop, *values.pop("stops", ())),
            priority=self.priority,
            ignores_end=self.ignores_end,
            stop_tokens=self.stop_tokens,
            includes_stop=self.includes_stop,
            min_tokens=self.min_tokens,
            visible_tokens=tuple(sorted(shown)),
            num_logprobs=max(wanted, default=None),
            prompt_logprobs=listed,
            **values,
        )


def read_settings(fields: RequestParser, limits: Limits) -> Settings:
    """Return the settings of a request.

    Raises:
        ApiError: A value is not one that can be used.
    """
    is_streamed = fields.boolean("stream")
    fields.ignore("spaces_between_special_tokens", "tokens are written as they are")
    num_prompt_logprobs = fields.integer("prompt_logprobs", min_value=0, max_value=MAX_LOGPROBS)
    if is_streamed and num_prompt_logprobs is not None:
        path = fields.path("prompt_logprobs")
        raise invalid(f"{path} is only for requests without stream: true", path)
    return Settings(
        sampling=_sampling(fields),
        num_choices=fields.integer("n", min_value=1, max_value=limits.max_completions) or 1,
        seed=fields.integer("seed", min_value=-_MAX_INT, max_value=_MAX_INT),
        stop=_stop(fields),
        ignores_end=fields.boolean("ignore_eos"),
        is_streamed=is_streamed,
        includes_usage=_includes_usage(fields, is_streamed=is_streamed),
        priority=fields.integer("priority", min_value=-1000, max_value=1000) or 0,
        stop_tokens=_stop_tokens(fields),
        includes_stop=fields.boolean("include_stop_str_in_output"),
        min_tokens=fields.integer("min_tokens", min_value=0, max_value=2**31 - 1) or 0,
        shows_special=not fields.boolean("skip_special_tokens", default=True),
        num_prompt_logprobs=num_prompt_logprobs,
        returns_tokens=fields.boolean("return_token_ids"),
        truncates_to=_truncates_to(fields),
    )


def _sampling(fields: RequestParser) -> Sampling:
    return Sampling(
        temperature=fields.number("temperature", min_value=0, max_value=100, default=1.0),
        top_k=_top_k(fields),
        # 0 leaves the likeliest token, and so does the smallest number that is one of sampling.
        top_p=max(_MIN_TOP_P, fields.number("top_p", min_value=0, max_value=1, default=1.0)),
        min_p=fields.number("min_p", min_value=0, max_value=1, default=0.0),
        repetition_penalty=fields.number(
            "repetition_penalty", min_value=0.01, max_value=100, default=1.0
        ),
        presence_penalty=fields.number("presence_penalty", min_value=-2, max_value=2, default=0.0),
        frequency_penalty=fields.number(
            "frequency_penalty", min_value=-2, max_value=2, default=0.0
        ),
        logit_bias=_logit_bias(fields),
    )


def _top_k(fields: RequestParser) -> int | None:
    """Return the number of tokens to sample from; -1 and 0 stand in for all of them."""
    found = fields.integer("top_k", min_value=-1, max_value=_MAX_INT)
    return None if found in (None, -1, 0) else found


def _logit_bias(fields: RequestParser) -> tuple[tuple[int, float], ...]:
    found = fields.raw("logit_bias")
    if found is None:
        return ()
    path = fields.path("logit_bias")
    if not isinstance(found, dict):
        raise invalid(f"{path} is not an object of token numbers and numbers", path)
    if len(found) > MAX_BIASES:
        raise invalid(f"{path} has {len(found)} tokens; at most {MAX_BIASES} are accepted", path)
    biases = {}
    for token, value in found.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise invalid(f"{path} has the key {token!r:.40}; expected the number of a token", path)
        where = f"{path}.{token}"
        biases[int(token)] = finite_number(value, where, min_value=-100, max_value=100)
    return tuple(biases.items())


def _stop(fields: RequestParser) -> tuple[str, ...]:
    found, path = fields.raw("stop"), fields.path("stop")
    texts = [found] if isinstance(found, str) else fields.items("stop", max_items=_MAX_STOPS) or []
    for text in texts:
        if not isinstance(text, str) or not text:
            raise invalid(f"{path} has {text!r:.40}; expected texts of one letter or more", path)
        if len(text) > _MAX_STOP_LETTERS:
            most = f"at most {_MAX_STOP_LETTERS} are accepted"
            raise invalid(f"{path} has a text of {len(text)} letters; {most}", path)
    return tuple(checked_text(text, path) for text in texts)


def _stop_tokens(fields: RequestParser) -> tuple[int, ...]:
    found = fields.items("stop_token_ids", max_items=_MAX_STOPS) or []
    for token in found:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 2**31:
            path = fields.path("stop_token_ids")
            raise invalid(f"{path} has {token!r:.40}; expected numbers of tokens", path)
    return tuple(found)


def _truncates_to(fields: RequestParser) -> int | None:
    found = fields.integer("truncate_prompt_tokens", min_value=-1, max_value=2**31 - 1)
    if found == 0:
        path = fields.path("truncate_prompt_tokens")
        raise invalid(f"{path} is 0; expected -1, or a number of tokens to keep", path)
    return found


def _includes_usage(fields: RequestParser, *, is_streamed: bool) -> bool:
    inner = fields.inner("stream_options")
    if inner is None:
        return False
    if not is_streamed:
        path = fields.path("stream_options")
        raise invalid(f"{path} is only for requests with stream: true", path)
    wanted = inner.boolean("include_usage")
    inner.refuse("include_obfuscation", "Pieces are sent as they are.", harmless=(False,))
    inner.finish()
    return wanted


class Seeds:
    """Gives each answer a seed.

    Args:
        seed: What the seeds of requests that send none follow from, in the order in which they
            come; None takes entropy of the operating system.
    """

    def __init__(self, seed: int | None) -> None:
        self._random = random.Random(seed)

    def of(self, settings: Settings, number: int | None = None) -> list[int]:
        """Return the seeds of the answers to one prompt.

        The first is the request's own, so that it is answered as if it were alone; the others
        follow from it.

        Args:
            settings: Of the request.
            number: Of answers; by default as many as are sent.
        """
        first = self._random.getrandbits(31) if settings.seed is None else settings.seed
        return [
            _seed(first if index == 0 else f"{first}/{index}")
            for index in range(number or settings.num_choices)
        ]


def _seed(source: int | str) -> int:
    if isinstance(source, int) and 0 <= source < 2**31:
        return source
    return int.from_bytes(hashlib.sha256(str(source).encode()).digest()[:4]) >> 1


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


def read_prompt_options(fields: RequestParser) -> PromptOptions:
    """Return what a request says about its texts."""
    return PromptOptions(
        parses_special=fields.boolean("parse_special", default=True),
        adds_special=fields.boolean("add_special_tokens", default=True),
    )


def read_prompt(fields: RequestParser) -> str:
    """Return the one text of a request.

    Raises:
        ApiError: There is none.
    """
    text = fields.text("prompt")
    if text is None:
        raise invalid("prompt is missing; expected a text", "prompt", code="missing_field")
    return text
