"""Formats of reasoning: what a model thinks before it answers, apart from the answer."""

import re
from collections.abc import Callable, Generator

from axcore.data.chat.parsers.pieces import Piece, PieceSteps, Reasoning
from axcore.data.chat.parsers.scanner import MalformedError, Scanner

ReasoningSteps = Callable[[Scanner, bool], PieceSteps]
"""Yields reasoning and text; the second says whether the prompt has begun the reasoning."""


def between(begin: str, end: str) -> ReasoningSteps:
    """Return what reads reasoning at the beginning of an answer, between two marks.

    Every character but the marks is kept, white space too.
    """

    def read(scanner: Scanner, is_open: bool) -> PieceSteps:
        yield from scanner.spaces()
        # Some models write the mark that the prompt ended with once more.
        if (yield from scanner.takes(begin)):
            is_open = True
            # White space before the mark is reasoning: an answer does not begin with it.
            spaces = scanner.drop().removesuffix(begin)
            if spaces:
                yield Reasoning(spaces)
        else:
            scanner.place = 0
        if is_open:
            yield from scanner.pass_until([end], Reasoning)
        yield from scanner.pass_rest(str)

    return read


_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=functions\.[^\s<]+")
_BEGINS = ("<|start|>", "<|channel|>")
_ENDS = ("<|end|>", "<|return|>", "<|call|>")


def harmony(scanner: Scanner, is_open: bool) -> PieceSteps:
    """Read the channels of gpt-oss: `analysis` is reasoning, `final` and `commentary` are text.

    A message to a function stays as it is, for who reads calls. Marks of all others are dropped.
    """
    if is_open:
        yield from _content(scanner, Reasoning)
    while True:
        scanner.drop()
        yield from scanner.spaces()
        if (yield from scanner.takes(*_ENDS)):
            continue
        # The prompt ended with the role, so the first message begins with its channel or recipient.
        if (yield from scanner.starts(*_BEGINS, "to=functions.")):
            yield from _message(scanner)
            continue
        scanner.place = 0  # a message whose beginning is in the prompt
        if (yield from _content(scanner, str)) is None:
            return


def _message(scanner: Scanner) -> PieceSteps:
    """Read a message, up to what ends it."""
    try:
        header, _ = yield from scanner.header("<|message|>")
    except MalformedError:
        # At least what it began with, which would be read again.
        scanner.place = max(len(_BEGINS[0]), scanner.place)
        yield scanner.drop()
        return
    scanner.drop()
    channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
    if recipient is not None:
        # The channel first, wherever the recipient was written.
        yield f"<|channel|>commentary {recipient[0]} <|message|>"
        if (yield from _content(scanner, str)) is not None:
            yield "<|call|>"
    elif channel is not None and channel[1] == "analysis":
        yield from _content(scanner, Reasoning)
    else:
        yield from _content(scanner, str)


def _content(
    scanner: Scanner, as_piece: Callable[[str], Piece]
) -> Generator[Piece | None, None, str | None]:
    """Yield the content of a message; returns what ended it, behind which the scanner is."""
    found = yield from scanner.pass_until((*_BEGINS, *_ENDS), as_piece)
    if found in _BEGINS:
        scanner.place = 0
    return found
