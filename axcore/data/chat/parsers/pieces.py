"""What an answer is made of: text, reasoning, and calls of tools, part by part."""

import json
import secrets
import string
from collections.abc import Callable, Generator
from typing import Any

import attrs

from axcore.data.chat.parsers.scanner import MalformedError, Scanner

_SIGNS = string.ascii_letters + string.digits


@attrs.frozen
class Reasoning:
    """What a model thinks before it answers.

    Args:
        text: The text.
    """

    text: str


@attrs.frozen
class CallPart:
    """What is known of a call, and was not before.

    Args:
        number: Of the call in the answer, from 0.
        name: Of the function, with the first part.
        id: What the result of the call names, with the first part.
        arguments: Appended to the JSON object so far.
        is_whole: Whether the call ends with it.
    """

    number: int
    name: str | None = None
    id: str | None = None
    arguments: str = ""
    is_whole: bool = False


@attrs.frozen
class BrokenCall:
    """A text that turned out not to be a call.

    Args:
        number: Of the call that it would have been.
        text: All of it.
        rest: What of it is not in parts that were returned.
    """

    number: int
    text: str
    rest: str


Piece = str | Reasoning | CallPart | BrokenCall
PieceSteps = Generator[Piece | None, None, None]


class Call:
    """A call that is being read; each argument is a part of it as soon as it is whole.

    Args:
        number: Of the call in the answer.

    Attributes:
        name: Of the function; set before the first argument.
        id: What its result names.
        is_begun: Whether there is a part of it.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = ""
        self.id = f"call_{secrets.token_hex(12)}"
        self.is_begun = False
        self._has_arguments = False

    def argument(self, key: str, value: Any) -> CallPart:
        """Return the part that an argument is."""
        before, self._has_arguments = ", " if self._has_arguments else "{", True
        return self._part(f"{before}{_written(key)}: {_written(value)}", is_whole=False)

    def end(self, arguments: str | None = None) -> CallPart:
        """Return the last part.

        Args:
            arguments: All of them, where the model wrote them as one text.
        """
        written = "}" if self._has_arguments else "{}"
        return self._part(written if arguments is None else arguments, is_whole=True)

    def short_id(self) -> str:
        """Return an id of nine letters and digits, which some templates insist on."""
        return "".join(secrets.choice(_SIGNS) for _ in range(9))

    def _part(self, arguments: str, *, is_whole: bool) -> CallPart:
        if not self.name:
            raise MalformedError("the function has no name")
        is_first, self.is_begun = not self.is_begun, True
        name, identity = (self.name, self.id) if is_first else (None, None)
        return CallPart(self.number, name, identity, arguments, is_whole)


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


CallReader = Callable[[Call], Generator[CallPart | None, None, None]]
"""Yields the parts of a call, and goes behind it."""


class CallCounter:
    """Numbers the calls of an answer, and makes text of those that are none."""

    def __init__(self) -> None:
        self.num_calls = 0

    def read(self, scanner: Scanner, read_call: CallReader) -> PieceSteps:
        """Yield the parts of the call that begins where the scanner's text does.

        Args:
            scanner: The text, which begins with the mark of the call.
            read_call: Yields the parts of a call, and goes behind it.
        """
        call = Call(self.num_calls)
        sent = 0
        try:
            for part in read_call(call):
                if part is not None:
                    sent = scanner.place
                yield part
        except MalformedError:
            text = scanner.drop()
            yield BrokenCall(call.number, text, text[sent:])
            # A stream has sent its number, so that no other call can have it.
            self.num_calls += call.is_begun
        else:
            scanner.drop()
            self.num_calls += call.is_begun
