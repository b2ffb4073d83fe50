"""Calls of tools in what a model writes, for the families whose way of writing them is known.

- `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, anywhere in an answer: Hermes, Qwen.
- `{"name": ..., "parameters": {...}}` as the full answer: Llama 3.

What the templates of others make a model write stays text, and so does a call that is not valid
JSON.
"""

import json
import secrets
from collections.abc import Container
from typing import Any, Protocol

import attrs

from axcore.data.tokenizers.tokenizer import Tokenizer

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@attrs.frozen
class ToolCall:
    """A call that a model asks for.

    Args:
        name: Of the function.
        arguments: A JSON object, as text.
        id: What the answer to it names.
    """

    name: str
    arguments: str
    id: str = attrs.field(factory=lambda: f"call_{secrets.token_hex(12)}")

    def as_json(self, index: int) -> dict[str, Any]:
        """Return the call as responses have it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"index": index, "id": self.id, "type": "function", "function": function}


class ToolCallReader(Protocol):
    """Reads an answer piece by piece."""

    def read(self, text: str) -> list[str | ToolCall]:
        """Return what is known to be text or a call after a piece, in order."""
        ...

    def finish(self) -> list[str | ToolCall]:
        """Return what is left at the end of the answer."""
        ...


def writes_marks(template: str | None) -> bool:
    """Return whether a chat template writes calls between `<tool_call>` marks."""
    return template is not None and OPEN in template


def tool_call_reader(template: str | None, special: Container[str] = frozenset()) -> ToolCallReader:
    """Return the reader for answers to what a chat template writes.

    Args:
        template: The template.
        special: Marks that are special tokens, which have no text: calls are what is left.
    """
    if writes_marks(template):
        return WholeCall() if OPEN in special else MarkedCalls()
    if template is not None and '"parameters"' in template and "python" in template:
        return WholeCall()
    return PlainText()


class PlainText:
    """Reads no calls."""

    def read(self, text: str) -> list[str | ToolCall]:
        """Return the text."""
        return [text] if text else []

    def finish(self) -> list[str | ToolCall]:
        """Return nothing."""
        return []


class MarkedCalls:
    """Reads calls between `<tool_call>` and `</tool_call>`."""

    def __init__(self) -> None:
        self._held, self._is_within = "", False

    def read(self, text: str) -> list[str | ToolCall]:
        """Return text up to what may begin a call, and calls that are whole."""
        self._held += text
        found: list[str | ToolCall] = []
        while True:
            mark = CLOSE if self._is_within else OPEN
            before, is_there, after = self._held.partition(mark)
            if not is_there:
                break
            found += [_call(before, OPEN, CLOSE)] if self._is_within else [before]
            self._held, self._is_within = after, not self._is_within
        if not self._is_within:
            # The beginning of a mark may be its whole; it
            # is kept back until the next piece decides.
            kept = _overlap(self._held, OPEN)
            found.append(self._held[: len(self._held) - kept])
            self._held = self._held[len(self._held) - kept :]
        return [one for one in found if one]

    def finish(self) -> list[str | ToolCall]:
        """Return a call whose end is missing as a call where it is whole, as text otherwise."""
        # A model that was cut off by its limit of tokens,
        # or by a stop string, leaves the mark open.
        held, self._held = self._held, ""
        if self._is_within:
            return [_call(held, OPEN, "")]
        return [held] if held else []


class WholeCall:
    """Reads an answer that is one call, or several with semicolons between them.

    Args:
        max_calls: Calls that are kept, the first ones; None keeps all.
    """

    def __init__(self, *, max_calls: int | None = None) -> None:
        self._held, self._is_text, self._max_calls = "", False, max_calls

    def read(self, text: str) -> list[str | ToolCall]:
        """Return text as soon as it begins with what no call does."""
        if self._is_text:
            return [text] if text else []
        self._held += text
        begin = self._held.lstrip()
        # Only an object can be a call, and the first letter says whether it is one.
        if not begin or begin.startswith("{"):
            return []
        self._is_text, held, self._held = True, self._held, ""
        return [held]

    def finish(self) -> list[str | ToolCall]:
        """Return the calls, or the text that is none."""
        if not self._held:
            return []
        decoder, rest = json.JSONDecoder(), self._held.strip()
        calls: list[str | ToolCall] = []
        while rest:
            try:
                _, end = decoder.raw_decode(rest)
            except (ValueError, RecursionError):
                # Not a call after all, so nothing of the text may be lost.
                return [self._held]
            calls.append(_call(rest[:end], "", ""))
            rest = rest[end:].lstrip("; \n")
        are_calls = all(isinstance(call, ToolCall) for call in calls)
        return calls[: self._max_calls] if are_calls else [self._held]


def _call(text: str, opened: str, closed: str) -> str | ToolCall:
    """Return the call that a text is; the text with its marks where it is none."""
    try:
        found = json.loads(text)
        name = found["name"]
        arguments = found.get("arguments", found.get("parameters", {}))
    # A model writes what it likes; what is not a call is text, and no error of the server.
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{opened}{text}{closed}"
    # Some templates have arguments as text already; encoding it again would quote it twice.
    if isinstance(arguments, str):
        return ToolCall(str(name), arguments)
    return ToolCall(str(name), json.dumps(arguments, ensure_ascii=False))


def _overlap(text: str, mark: str) -> int:
    """Return how many letters at the end of a text may begin a mark."""
    longest = min(len(text), len(mark) - 1)
    return next((size for size in range(longest, 0, -1) if mark.startswith(text[-size:])), 0)


def special_marks(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the numbers of the marks of calls that are special tokens, which have no text."""
    numbers = {mark: tokenizer.added_token(mark) for mark in (OPEN, CLOSE)}
    return {
        mark: number
        for mark, number in numbers.items()
        if number is not None and tokenizer.token_bytes(number) is None
    }
