"""`CompletionStream`: the completion of a request as it grows, for any thread or event loop.

The engine thread puts tokens; their text is made by whoever reads it, so that the engine thread,
which every request waits for, spends no time on it.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import attrs
import numpy as np

from axcore.inference.detokenizer import IncrementalDetokenizer
from axcore.inference.request import Request

TopLogprobs = tuple[tuple[int, float], ...]
"""Numbers and log-probabilities of the likeliest tokens at a place, the likeliest one first."""


@attrs.frozen
class SampledToken:
    """A token of a completion.

    Args:
        id: Its number.
        logprob: Its log-probability, where the request asks for it.
        top_logprobs: Numbers and log-probabilities of the likeliest tokens, the likeliest first.
    """

    id: int
    logprob: float | None = None
    top_logprobs: TopLogprobs = ()


@attrs.frozen
class CompletionDelta:
    """What one step added to a completion.

    Args:
        text: Full characters, and no part of a stop string.
        tokens: The tokens sampled; their text may come with a later delta.
        finish_reason: "stop", "length", "cancelled" or "error" of the last delta, None before.
        end: The end token, where the model drew one; it has no text.
    """

    text: str
    tokens: tuple[SampledToken, ...]
    finish_reason: str | None = None
    end: SampledToken | None = None

    @property
    def sampled(self) -> tuple[SampledToken, ...]:
        """Every token that was sampled, the end token included."""
        return self.tokens if self.end is None else (*self.tokens, self.end)


@attrs.frozen
class Completion:
    """A finished completion.

    Args:
        text: Its text.
        tokens: Its tokens, without the end token.
        finish_reason: "stop", "length" or "cancelled".
        prompt_logprobs: Of each token of the prompt, the first of which has none; None where the
            request does not ask for them.
        prompt_top_logprobs: The likeliest tokens at each of those places: `num_logprobs` of them,
            but at least one.
        num_cached_prompt_tokens: Tokens of the prompt that another request had computed.
        end: The end token, where the model drew one.
        weight_versions: Index of a sampled token and the version of the weights that sampled it and
            those after it, where that changes; the first is of token 0. See
            `Engine.replace_weights`.
    """

    text: str
    tokens: tuple[SampledToken, ...]
    finish_reason: str
    prompt_logprobs: tuple[float | None, ...] | None = None
    prompt_top_logprobs: tuple[TopLogprobs | None, ...] | None = None
    num_cached_prompt_tokens: int = 0
    end: SampledToken | None = None
    weight_versions: tuple[tuple[int, int], ...] = ()


class TokenLogprobs(NamedTuple):
    """Log-probabilities of some tokens of a completion, arrays `[tokens]` and `[tokens, n]`."""

    sampled: np.ndarray
    top_tokens: np.ndarray
    top_logprobs: np.ndarray


class TokenDelta(NamedTuple):
    """New tokens of a completion, before their text is made.

    Args:
        tokens: Their numbers.
        logprobs: Where the request asks for them.
        finish_reason: See `CompletionDelta`.
        has_end: Whether the last of them is the end token.
    """

    tokens: Sequence[int]
    logprobs: TokenLogprobs | None = None
    finish_reason: str | None = None
    has_end: bool = False

    def split(self) -> tuple["TokenDelta", "TokenDelta"]:
        """Return the delta of the first token, and that of the others."""
        first = rest = self.logprobs
        if self.logprobs is not None:
            first = TokenLogprobs(*(one[:1] for one in self.logprobs))
            rest = TokenLogprobs(*(one[1:] for one in self.logprobs))
        return TokenDelta(self.tokens[:1], first), self._replace(
            tokens=self.tokens[1:], logprobs=rest
        )


class CompletionStream:
    """The completion of a request while it is sampled.

    Every iteration yields all deltas from the first one on; the last one has a finish reason.

    Args:
        request: What is asked.
        text: Makes text of the completion's tokens.
        cancel: What `cancel` calls.

    Attributes:
        request: What was asked.
        error: Why the completion ended with finish reason "error"; None otherwise.
        prompt_logprobs: See `Completion`.
        prompt_top_logprobs: See `Completion`.
        num_cached_prompt_tokens: See `Completion`.
        weight_version: Of the weights that sampled the last token; None before the first.
    """

    def __init__(
        self, request: Request, text: IncrementalDetokenizer, cancel: Callable[[], None]
    ) -> None:
        self.request = request
        self.error: Exception | None = None
        self.prompt_logprobs: tuple[float | None, ...] | None = None
        self.prompt_top_logprobs: tuple[TopLogprobs | None, ...] | None = None
        self.num_cached_prompt_tokens = 0
        self.weight_version: int | None = None
        self._weight_versions: list[tuple[int, int]] = []
        self._text = text
        self._cancel, self._is_cancelled = cancel, False
        # A deque: the engine's thread appends and readers take, each of which is atomic.
        self._put: deque[TokenDelta] = deque()
        self._deltas: list[CompletionDelta] = []
        self._is_whole = threading.Event()
        self._changed = threading.Condition()
        self._num_waiting = 0
        self._wakers: list[Callable[[], None]] = []

    def __iter__(self) -> Iterator[CompletionDelta]:
        """Yield deltas as they come."""
        index, is_last = 0, False
        while not is_last:
            self._wait_for(index)
            yield self._deltas[index]
            is_last = self._deltas[index].finish_reason is not None
            index += 1

    async def __aiter__(self) -> AsyncIterator[CompletionDelta]:
        """Yield deltas as they come."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                # Readers are on any thread, and asyncio's events are for their own loop alone.
                loop.call_soon_threadsafe(changed.set)

        # Before the first look, so that what comes after it wakes this reader.
        with self._changed:
            self._wakers.append(wake)
        try:
            index, is_last = 0, False
            while not is_last:
                while not self._has_now(index):
                    await changed.wait()
                    # Cleared after the wait and before the look:
                    # what arrives in between sets it again.
                    changed.clear()
                yield self._deltas[index]
                is_last = self._deltas[index].finish_reason is not None
                index += 1
        finally:
            with self._changed:
                self._wakers.remove(wake)

    @property
    def is_finished(self) -> bool:
        """Whether nothing more comes."""
        return self._is_whole.is_set()

    def cancel(self) -> None:
        """End the completion within a step; its slot and pages are free for other requests."""
        with self._changed:
            # The function is taken under the lock and called outside of it: it takes
            # the engine's lock, which the engine holds while it calls `take_over`.
            self._is_cancelled, cancel = True, self._cancel
        cancel()

    def take_over(self, cancel: Callable[[], None]) -> None:
        """Have `cancel` call something else from here on, as an engine that takes the request over.

        Args:
            cancel: What is called; at once where the completion was cancelled before.
        """
        with self._changed:
            self._cancel, is_cancelled = cancel, self._is_cancelled
        if is_cancelled:
            # It was cancelled before any engine had it.
            cancel()

    def result(self, timeout: float | None = None) -> Completion:
        """Wait until the completion is finished, and return it.

        Args:
            timeout: Seconds to wait at most; None waits for as long as it takes.

        Raises:
            TimeoutError: It was not finished in time.
            Exception: The engine could not finish it; see `error`.
        """
        if not self._is_whole.wait(timeout):
            raise TimeoutError(f"the completion is not finished after {timeout} s")
        with self._changed:
            # The text is made by who reads it, not by the
            # engine's thread, which every request waits for.
            self._convert()
        if self.error is not None:
            raise self.error
        return Completion(
            "".join(delta.text for delta in self._deltas),
            tuple(token for delta in self._deltas for token in delta.tokens),
            self._deltas[-1].finish_reason or "",
            self.prompt_logprobs,
            self.prompt_top_logprobs,
            self.num_cached_prompt_tokens,
            self._deltas[-1].end,
            tuple(self._weight_versions),
        )

    def put(self, delta: TokenDelta) -> None:
        """Add tokens, which only the engine does; what comes after the last delta is dropped.

        Where nobody waits no lock is taken, as this is done for each row of each step. A reader
        counts itself and then looks, and here a delta is added before readers are looked for: so
        one of the two sees the other.
        """
        # With stop strings the text decides when the sampling ends, so it has to be made here.
        if self.request.stop:
            with self._changed:
                self._add(delta)
                self._convert()
        else:
            self._add(delta)
        if self._num_waiting or self._wakers:
            self._wake()

    def set_weight_version(self, version: int, first: int) -> None:
        """Note the version of the weights that sampled a token and those after it.

        Args:
            version: Of the weights.
            first: Index of the token.
        """
        self.weight_version = version
        self._weight_versions.append((first, version))

    def fail(self, error: Exception) -> None:
        """End the completion with an error, which only the engine does."""
        # The first error is the reason; a second one comes from cleaning up.
        self.error = self.error or error
        self.put(TokenDelta((), None, "error"))

    def _add(self, delta: TokenDelta) -> None:
        if self._is_whole.is_set():
            return
        self._put.append(delta)
        if delta.finish_reason is not None:
            self._is_whole.set()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
            wakers = tuple(self._wakers)
        # Outside of the lock, as a waker may run at once.
        for wake in wakers:
            wake()

    def _wait_for(self, index: int) -> None:
        """Wait until there is a delta of this index."""
        with self._changed:
            self._num_waiting += 1
            try:
                self._changed.wait_for(partial(self._has, index))
            finally:
                self._num_waiting -= 1

    def _has_now(self, index: int) -> bool:
        with self._changed:
            return self._has(index)

    def _has(self, index: int) -> bool:
        """Return whether there is a delta of this index, after making deltas of what was put."""
        if len(self._deltas) <= index:
            self._convert()
        return len(self._deltas) > index

    def _convert(self) -> None:
        """Make deltas of the tokens that were put; a stop string ends them."""
        while self._put:
            delta = self._put.popleft()
            if self.request.splits_deltas and len(delta.tokens) > 1:
                first, rest = delta.split()
                self._put.appendleft(rest)
                delta = first
            # An end token may decode to its name.
            has_hidden = delta.has_end and not self.request.includes_stop
            num_written = len(delta.tokens) - has_hidden
            text, num_tokens, is_stopped = self._text.push(delta.tokens[:num_written])
            reason = "stop" if is_stopped else delta.finish_reason
            if reason is not None and not is_stopped:
                left = self._text.flush()
                text += left.text
                reason = "stop" if left.is_stopped else reason
            sampled = _sampled_tokens(delta, self.request.num_logprobs)
            end = None
            if delta.has_end and (num_tokens == len(delta.tokens) or not is_stopped):
                end, num_tokens = sampled[-1], min(num_tokens, len(delta.tokens) - 1)
            self._deltas.append(CompletionDelta(text, sampled[:num_tokens], reason, end))
            if is_stopped:
                self._is_whole.set()
                self._put.clear()


def _sampled_tokens(delta: TokenDelta, num_logprobs: int | None) -> tuple[SampledToken, ...]:
    if delta.logprobs is None or num_logprobs is None:
        return tuple(SampledToken(token) for token in delta.tokens)
    return tuple(
        SampledToken(token, sampled, tuple(zip(top_tokens, values, strict=True))[:num_logprobs])
        for token, sampled, top_tokens, values in zip(
            delta.tokens, *(part.tolist() for part in delta.logprobs), strict=True
        )
    )
