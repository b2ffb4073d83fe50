"""`Request`: a text to continue, its `Sampling` settings, and the limits that an engine checks.

Plain values.
"""

import hashlib
import math
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, get_args

import attrs
import numpy as np

from axcore.config import config
from axcore.errors import ConfigError, EngineError, RequestError
from axcore.layers import FIRST_SOFT_TOKEN

MAX_BIASES = 300
# Biases are an array with a row of so many for each slot.
"""Number of tokens that one request may give a bias."""


MAX_LOGPROBS = 20
"""Number of likeliest tokens whose log-probabilities a request may ask for."""


_MAX_PRIORITY = 1_000_000
"""Bounded so that a place in the order of requests fits into 64 bits."""


_RANGES = {
    "temperature": (0.0, math.inf, "0 takes the likeliest token, 1 samples as the model says"),
    "top_p": (math.ulp(0.0), 1.0, "1 samples from all tokens"),
    "min_p": (0.0, 1.0, "0 samples from all tokens"),
    "repetition_penalty": (math.ulp(0.0), math.inf, "1 changes nothing"),
    "presence_penalty": (-2.0, 2.0, "0 changes nothing"),
    "frequency_penalty": (-2.0, 2.0, "0 changes nothing"),
}
"""The smallest and the largest value of each number, and a hint."""


@config
class Sampling:
    """The sampling settings of a request.

    Logits are changed in this order: penalties, bias, tokens that are not allowed, temperature,
    top-k, top-p, min-p. Each of the last three sees what the one before it left.

    Args:
        temperature: Divides the logits; 0 takes the likeliest token.
        top_k: Number of likeliest tokens to sample from, and those as likely as the last of them;
            None samples from all.
        top_p: Samples from the fewest likeliest tokens whose probabilities add up to this.
        min_p: Samples from tokens that are at least this many times as likely as the likeliest.
        repetition_penalty: Divides positive logits of tokens that are in the prompt or in the
            answer so far, and multiplies negative ones.
        presence_penalty: Is subtracted from the logit of each token in the answer so far.
        frequency_penalty: Is subtracted as often as the answer so far has the token.
        logit_bias: Tokens, and the number that is added to the logit of each.
    """

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def check(self, vocab_size: int | None = None) -> None:
        """Raise ConfigError where a value makes no sense.

        Args:
            vocab_size: Number of tokens that there are; None leaves the tokens unchecked.
        """
        for name, (lowest, highest, hint) in _RANGES.items():
            value = getattr(self, name)
            if not (lowest <= value <= highest and math.isfinite(value)):
                raise ConfigError(
                    f"{name} is {value}; expected {_range_text(lowest, highest)}", hint=hint
                )
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(
                f"top_k is {self.top_k}; expected 1 or more", hint="None samples from all tokens"
            )
        self._check_bias(vocab_size)

    @property
    def has_penalties(self) -> bool:
        """Whether samples depend on the tokens before."""
        return self.has_counted_penalties or self.repetition_penalty != 1

    @property
    def has_counted_penalties(self) -> bool:
        """Whether samples depend on how often the answer has a token."""
        return bool(self.presence_penalty or self.frequency_penalty)

    @property
    def is_plain(self) -> bool:
        """Whether the temperature alone changes the logits."""
        unfiltered = self.top_k is None and self.top_p == 1 and self.min_p == 0
        return (unfiltered or self.temperature == 0) and not (self.has_penalties or self.logit_bias)

    def _check_bias(self, vocab_size: int | None) -> None:
        if len(self.logit_bias) > MAX_BIASES:
            raise ConfigError(
                f"logit_bias has {len(self.logit_bias)} tokens; expected at most {MAX_BIASES}",
                hint="allow or forbid many tokens by a grammar",
            )
        # A dict drops repeated names, which is how one shows.
        if len(dict(self.logit_bias)) < len(self.logit_bias):
            raise ConfigError(
                f"logit_bias names a token twice: {[token for token, _ in self.logit_bias]}",
                hint="give each token one bias",
            )
        for token, bias in self.logit_bias:
            if token < 0 or (vocab_size is not None and token >= vocab_size):
                known = "" if vocab_size is None else f" and less than {vocab_size}"
                raise ConfigError(
                    f"logit_bias names token {token}; expected 0 or more{known}",
                    hint="give numbers of tokens, as the tokenizer encodes them",
                )
            if not -100 <= bias <= 100:
                raise ConfigError(
                    f"logit_bias of token {token} is {bias}; expected -100 to 100",
                    hint="-100 forbids a token in practice",
                )


def _range_text(lowest: float, highest: float) -> str:
    start = "above 0" if lowest == math.ulp(0.0) else f"{lowest:g}"
    if highest == math.inf:
        return f"a finite number {start if lowest else 'of 0 or more'}"
    return f"{start} and at most {highest:g}" if start == "above 0" else f"{start} to {highest:g}"


LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]
"""Log-probabilities by the model alone, or by the distribution that a token is sampled from."""


SamplerKind = Literal["greedy", "plain", "full"]
"""What a program can do: `greedy` takes the likeliest token, `plain` has a temperature too, and
`full` every setting. Each does all that those before it do."""


_KIND_ORDER: tuple[SamplerKind, ...] = ("greedy", "plain", "full")
"""What programs can sample; each does all that those before it do."""


def kind_for(samplings: Iterable[Sampling]) -> SamplerKind:
    """Return the cheapest kind of program that can sample for all of several requests."""
    kind: SamplerKind = "greedy"
    for sampling in samplings:
        if not sampling.is_plain:
            return "full"
        kind = kind if sampling.temperature == 0 else "plain"
    return kind


def kind_index(sampling: Sampling, kinds: tuple[SamplerKind, ...]) -> int:
    """Return the place of the first kind of program that can sample so.

    Raises:
        RequestError: None can.
    """
    needed = kind_for([sampling])
    for place, kind in enumerate(kinds):
        if _KIND_ORDER.index(kind) >= _KIND_ORDER.index(needed):
            return place
    raise RequestError(
        f"this engine samples {' or '.join(kinds)}, and the request needs {needed!r}",
        where="sampling",
        hint="sample the likeliest token or by a temperature alone, or change sampler_kinds",
    )


class EncoderSpec(NamedTuple):
    """What an engine knows of a model's encoder of other inputs than text.

    Args:
        input: Has the shape and the dtype of one input.
        num_tokens: Soft tokens of one.
        num_slots: Inputs whose soft tokens the device keeps.
    """

    input: Any
    num_tokens: int
    num_slots: int


@attrs.frozen(eq=False)
class EncoderInput:
    """An input of another kind than text, such as a picture.

    Args:
        value: What the model's encoder takes.

    Attributes:
        digest: Inputs with an equal one are encoded once.
    """

    value: np.ndarray
    digest: bytes = attrs.field(init=False)

    @digest.default
    def _digest(self) -> bytes:
        value = np.ascontiguousarray(self.value)
        # Cryptographic: else a client could make a picture that is answered as somebody else's.
        about = f"{value.dtype}{value.shape}".encode()
        return hashlib.blake2b(about + value.tobytes(), digest_size=16).digest()


@attrs.frozen(kw_only=True)
class Request:
    """A text to continue, and how.

    Token `i` of the answer is sampled with `fold_in(key(seed), i)`, whatever else is in the batch.

    Args:
        prompt: Tokens to continue, at least one. `FIRST_SOFT_TOKEN + n` is soft token n of the
            inputs, counted through all of them.
        max_tokens: Tokens sampled at most.
        sampling: How tokens are sampled.
        seed: Decides the samples.
        stop: The text ends before the first of these.
        num_logprobs: Number of likeliest tokens whose log-probabilities are returned with that of
            each sampled token; None returns none.
        logprobs_mode: "raw_logprobs" are by the model alone. "processed_logprobs" are by the
            distribution that each token was sampled from: after penalties, biases, tokens that are
            not allowed, temperature, top-k, top-p and min-p; minus infinity for what these rule
            out. A temperature of 0, which takes the likeliest token, counts as 1 without filters.
        prompt_logprobs: Whether log-probabilities of the prompt's tokens are returned, always by
            the model alone.
        priority: Lower ones are served sooner.
        adapter: Name of the adapter that the model is used with.
        grammar: What the text has to match.
        ignores_end: Whether tokens that end a text are sampled as any other.
        inputs: What the model's encoder makes soft tokens of.
        visible_tokens: Special tokens that the text has by their names; it has no others.
        splits_deltas: Whether each token is a delta of its own, however many a step samples.
        stop_tokens: Tokens that end the text in addition to the tokenizer's, whatever
            `ignores_end` is.
        includes_stop: Whether the text has the stop string or the token that ended it.
        min_tokens: Tokens before which neither a token nor a stop string ends the text; the end of
            a grammar does.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = Sampling()  # noqa: RUF009 - a frozen value
    seed: int = 0
    stop: tuple[str, ...] = ()
    num_logprobs: int | None = None
    logprobs_mode: LogprobsMode = "raw_logprobs"
    prompt_logprobs: bool = False
    priority: int = 0
    adapter: str | None = None
    grammar: Any = None
    ignores_end: bool = False
    inputs: tuple[EncoderInput, ...] = ()
    visible_tokens: tuple[int, ...] = ()
    splits_deltas: bool = False
    stop_tokens: tuple[int, ...] = ()
    includes_stop: bool = False
    min_tokens: int = 0


class QueueFull(EngineError):  # noqa: N818 - as queue.Full of the standard library
    """As many requests wait as may wait; a later attempt can succeed."""


class Draining(EngineError):  # noqa: N818 - a state, which passes
    """The engine takes no new requests: it finishes those that it has."""


@attrs.frozen(kw_only=True)
class RequestLimits:
    """The limits of the requests that an engine can answer.

    Args:
        num_tokens: Tokens that the model knows.
        num_text_tokens: Those of them that the tokenizer knows.
        max_length: Tokens of prompt and answer at most.
        page_size: Tokens of a page.
        num_pages: Pages there are.
        kinds: What programs can sample, the cheapest first.
        samples_one_by_one: Whether a token can be known before the next is sampled.
        encoder: What is known of the model's encoder, if it has one.
    """

    num_tokens: int
    num_text_tokens: int
    max_length: int
    page_size: int
    num_pages: int
    kinds: tuple[SamplerKind, ...]
    samples_one_by_one: bool
    encoder: EncoderSpec | None = None

    def check(self, request: Request) -> None:
        """Refuse a request that can never be answered.

        Raises:
            RequestError: Saying what in it is wrong.
        """
        self._check_size(request)
        self._check_ends(request)
        self._check_inputs(request)
        if abs(request.priority) > _MAX_PRIORITY:
            raise RequestError(
                f"priority is {request.priority}; expected {-_MAX_PRIORITY} to {_MAX_PRIORITY}",
                where="priority",
            )
        number = request.num_logprobs
        if number is not None and not 0 <= number <= MAX_LOGPROBS:
            raise RequestError(
                f"num_logprobs is {number}; expected 0 to {MAX_LOGPROBS}", where="num_logprobs"
            )
        _check_logprobs_mode(request)
        try:
            request.sampling.check(self.num_text_tokens)
        except ConfigError as error:
            raise RequestError(error.what, where="sampling", hint=error.hint) from error
        kind_index(request.sampling, self.kinds)
        needs_each = "grammar" if request.grammar is not None else "min_tokens"
        if (request.grammar is not None or request.min_tokens) and not self.samples_one_by_one:
            raise RequestError(
                f"an engine of fixed_shapes decodes several tokens in a call, and {needs_each} "
                "needs each before the next",
                where=needs_each,
                hint="set fixed_shapes to False",
            )

    def _check_size(self, request: Request) -> None:
        size, known = len(request.prompt), self.num_tokens
        if not size:
            raise RequestError("the prompt has no token", where="prompt")
        # The first alone, for a prompt may have a hundred thousand of them.
        soft = range(FIRST_SOFT_TOKEN, FIRST_SOFT_TOKEN + self._num_soft(request))
        wrong = next((one for one in request.prompt if not (0 <= one < known or one in soft)), None)
        if wrong is not None:
            raise RequestError(
                f"the prompt has token {wrong}; the model knows {known} tokens, 0 the first",
                where="prompt",
            )
        if request.max_tokens < 1:
            raise RequestError(
                f"max_tokens is {request.max_tokens}; expected 1 or more", where="max_tokens"
            )
        if size + request.max_tokens > self.max_length:
            raise RequestError(
                f"the prompt has {size} tokens, and max_tokens is {request.max_tokens}: together "
                f"more than {self.max_length}, the longest text",
                where="max_tokens",
                hint="shorten the prompt, or ask for fewer tokens",
            )
        # For the full answer: a request that fits only as long
        # as it is short would be preempted by itself for ever.
        needed = -(-(size + request.max_tokens) // self.page_size)
        if needed > self.num_pages:
            raise RequestError(
                f"prompt and answer need {needed} pages; there are {self.num_pages}",
                where="max_tokens",
                hint="ask for fewer tokens, or give the engine more pages by num_pages",
            )

    def _check_ends(self, request: Request) -> None:
        known = self.num_text_tokens
        wrong = next((one for one in request.stop_tokens if not 0 <= one < known), None)
        if wrong is not None:
            raise RequestError(
                f"stop_tokens has token {wrong}; the tokenizer knows {known}, 0 the first",
                where="stop_tokens",
            )
        if not 0 <= request.min_tokens <= request.max_tokens:
            raise RequestError(
                f"min_tokens is {request.min_tokens}, and max_tokens {request.max_tokens}; "
                "expected 0 to max_tokens",
                where="min_tokens",
            )

    def _num_soft(self, request: Request) -> int:
        """Return how many soft tokens the inputs of a request have."""
        return len(request.inputs) * (self.encoder.num_tokens if self.encoder else 0)

    def _check_inputs(self, request: Request) -> None:
        if not request.inputs:
            return
        if self.encoder is None:
            raise RequestError(
                f"the request has {len(request.inputs)} inputs, and the model reads text alone",
                where="inputs",
                hint="leave them out, or take a model with an encoder",
            )
        soft = [one for one in request.prompt if one >= FIRST_SOFT_TOKEN]
        if soft != [*range(FIRST_SOFT_TOKEN, FIRST_SOFT_TOKEN + self._num_soft(request))]:
            raise RequestError(
                f"the prompt has {len(soft)} soft tokens; its {len(request.inputs)} inputs have "
                f"{self._num_soft(request)}, each once and in order",
                where="prompt",
                hint="make the prompt with axcore.data.with_soft_tokens",
            )
        expected = self.encoder.input
        for place, one in enumerate(request.inputs):
            if one.value.shape != expected.shape or one.value.dtype != expected.dtype:
                raise RequestError(
                    f"input {place} is {one.value.dtype} of shape {one.value.shape}; the encoder "
                    f"takes {expected.dtype} of shape {expected.shape}",
                    where="inputs",
                )
        if request.prompt_logprobs:
            raise RequestError(
                "prompt_logprobs are of text alone, and the prompt has other inputs",
                where="prompt_logprobs",
                hint="leave prompt_logprobs out",
            )


def _check_logprobs_mode(request: Request) -> None:
    mode = request.logprobs_mode
    if mode not in (known := get_args(LogprobsMode)):
        raise RequestError(
            f"logprobs_mode is {mode!r}; expected {' or '.join(map(repr, known))}",
            where="logprobs_mode",
        )
    if mode != "raw_logprobs" and request.num_logprobs is None:
        raise RequestError(
            f"logprobs_mode is {mode!r}, and num_logprobs is None, which returns none",
            where="logprobs_mode",
            hint="set num_logprobs to 0 for those of the sampled tokens alone",
        )
