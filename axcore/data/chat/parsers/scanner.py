"""`Scanner`: text of an answer that comes piece by piece, read as if all of it were there.

A format of calls or of reasoning is a generator over a scanner. It yields what it has found, and
None where it needs more text; `yield from scanner.until(...)` waits within it. So a format reads
from top to bottom, and finds the same however the text is cut: no decision depends on where a piece
ends. Nothing is looked at twice, but for the beginnings of marks.
"""

import json
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Generic, TypeVar

Found = TypeVar("Found")

_MAX_HEADER = 4096
"""Characters of a name or a header; what is longer is none, and must not be kept for ever."""

_STRUCTURE = re.compile(r'["{}\[\]]')
_STRING_END = re.compile(r'["\\]')
_AFTER_SCALAR = re.compile(r"[\s,\]}:]")
_NO_SPACE = re.compile(r"[^ \t\r\n]")


class MalformedError(ValueError):
    """A text is not what its mark says; where this is raised depends on the text alone."""


class Scanner:
    """The text that no one has taken yet.

    Attributes:
        text: From the last `drop` on.
        place: Where the next reading begins.
        is_ended: Whether no more text comes.
    """

    def __init__(self) -> None:
        self.text, self.place, self.is_ended = "", 0, False

    def drop(self) -> str:
        """Forget the text before the place; returns it."""
        taken, self.text, self.place = self.text[: self.place], self.text[self.place :], 0
        return taken

    def more(self) -> Generator[None]:
        """Wait for more text.

        Raises:
            MalformedError: There is none.
        """
        if self.is_ended:
            self.place = len(self.text)
            raise MalformedError("the answer ends here")
        yield None

    def pass_until(
        self, marks: Sequence[str], as_piece: Callable[[str], Found]
    ) -> Generator[Found | None, None, str | None]:
        """Yield the text before the first of several marks as it comes, and go behind the mark.

        Args:
            marks: None of which begins another one.
            as_piece: Makes a piece of text.

        Returns:
            The mark; None at the end of the answer.
        """
        self.drop()
        start = 0
        longest = max(map(len, marks))
        while True:
            found = self._first(marks, start)
            # The beginning of a mark is kept back until what follows decides.
            kept = 0 if self.is_ended else max(map(self._overlap, marks))
            end = len(self.text) - kept if found is None else found[0]
            if end:
                self.place = end
                yield as_piece(self.drop())
            if found is not None:
                self.place = len(found[1])
                return found[1]
            if self.is_ended:
                return None
            start = max(0, len(self.text) - longest + 1)
            yield None

    def pass_rest(self, as_piece: Callable[[str], Found]) -> Generator[Found | None, None, None]:
        """Yield all text from the place on as it comes."""
        self.drop()
        while self.text or not self.is_ended:
            if not self.text:
                yield None
                continue
            self.place = len(self.text)
            yield as_piece(self.drop())

    def until(
        self, *marks: str, max_size: int | None = None
    ) -> Generator[None, None, tuple[str, str]]:
        """Go behind the first of several marks.

        Args:
            *marks: None of which begins another one.
            max_size: Characters before it at most.

        Returns:
            The text before the mark, and the mark.
        """
        begin = start = self.place
        longest = max(map(len, marks))
        while True:
            found = self._first(marks, start)
            size = (len(self.text) if found is None else found[0]) - begin
            if max_size is not None and size > max_size + (longest if found is None else 0):
                raise MalformedError(f"there is no {marks[0]!r} within {max_size} characters")
            if found is not None:
                self.place = found[0] + len(found[1])
                return self.text[begin : found[0]], found[1]
            start = max(begin, len(self.text) - longest + 1)
            yield from self.more()

    def header(self, *marks: str) -> Generator[None, None, tuple[str, str]]:
        """Go behind the first of several marks, which is not far; see `until`."""
        return (yield from self.until(*marks, max_size=_MAX_HEADER))

    def starts(self, *texts: str) -> Generator[None, None, str | None]:
        """Return which of several texts comes next, None where none does; go nowhere."""
        while True:
            rest = self.text[self.place : self.place + max(map(len, texts))]
            if found := [one for one in texts if rest.startswith(one)]:
                return max(found, key=len)
            if self.is_ended or not any(one.startswith(rest) for one in texts):
                return None
            yield None

    def takes(self, *texts: str) -> Generator[None, None, str | None]:
        """Return which of several texts comes next, None where none does, and go behind it."""
        found = yield from self.starts(*texts)
        self.place += len(found or "")
        return found

    def expect(self, *texts: str) -> Generator[None, None, str]:
        """Go behind one of several texts.

        Raises:
            MalformedError: Something else comes next.
        """
        found = yield from self.takes(*texts)
        if found is None:
            raise MalformedError(f"{self.text[self.place : self.place + 9]!r} is not {texts[0]!r}")
        return found

    def spaces(self) -> Generator[None]:
        """Go behind white space."""
        while (found := _NO_SPACE.search(self.text, self.place)) is None:
            self.place = len(self.text)
            if self.is_ended:
                return
            yield None
        self.place = found.start()

    def peek(self) -> Generator[None, None, str]:
        """Return the next character; empty at the end of the answer."""
        while self.place >= len(self.text) and not self.is_ended:
            yield None
        return self.text[self.place : self.place + 1]

    def json_value(self) -> Generator[None, None, Any]:
        """Go behind a JSON value.

        Raises:
            MalformedError: It is none.
        """
        yield from self.spaces()
        begin, first = self.place, (yield from self.peek())
        if first == '"':
            self.place += 1
            yield from self._string_end()
        elif first in ("{", "["):
            yield from self._brackets_end()
        else:
            yield from self._scalar_end()
        return checked_json(self.text[begin : self.place])

    def _brackets_end(self) -> Generator[None]:
        depth = 0
        while True:
            while (found := _STRUCTURE.search(self.text, self.place)) is None:
                self.place = len(self.text)
                yield from self.more()
            self.place = found.end()
            if found.group() == '"':
                yield from self._string_end()
            else:
                depth += 1 if found.group() in "{[" else -1
            if depth == 0:
                return

    def _string_end(self) -> Generator[None]:
        while True:
            while (found := _STRING_END.search(self.text, self.place)) is None:
                self.place = len(self.text)
                yield from self.more()
            self.place = found.end()
            if found.group() == '"':
                return
            while self.place >= len(self.text):  # what is escaped
                yield from self.more()
            self.place += 1

    def _scalar_end(self) -> Generator[None]:
        begin = self.place
        while (found := _AFTER_SCALAR.search(self.text, self.place)) is None:
            self.place = len(self.text)
            if self.is_ended:
                return
            if self.place - begin > _MAX_HEADER:
                break
            yield None
        end = self.place if found is None else found.start()
        self.place = min(end, begin + _MAX_HEADER)
        if end > self.place:
            raise MalformedError("a number has no end")

    def _first(self, marks: Sequence[str], start: int) -> tuple[int, str] | None:
        """Return the first of several marks from a place on, and where it is."""
        places = ((self.text.find(one, start), one) for one in marks)
        return min((one for one in places if one[0] >= 0), default=None)

    def _overlap(self, mark: str) -> int:
        """Return how many characters at the end of the text may begin a mark."""
        longest = min(len(self.text), len(mark) - 1)
        sizes = range(longest, 0, -1)
        return next((size for size in sizes if mark.startswith(self.text[-size:])), 0)


def checked_json(text: str) -> Any:
    """Return what JSON says, by the standard alone: no NaN, no infinity, no half of a character.

    Raises:
        MalformedError: It is none.
    """
    try:
        found = json.loads(text, parse_constant=_refuse)
        check_value(found)  # 1e999 is infinite, and an escape may be half of a surrogate pair
    except (ValueError, RecursionError) as error:
        raise MalformedError(str(error)) from error
    return found


def check_value(value: Any) -> None:
    """Check that JSON in UTF-8 can write a value.

    Raises:
        ValueError: It cannot; or TypeError.
    """
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class PieceReader(Generic[Found]):
    """Runs a format over text as it comes.

    Args:
        format: What reads a scanner, and yields pieces, or None where it needs more text.
    """

    def __init__(self, format: Callable[[Scanner], Iterator[Found | None]]) -> None:
        self._scanner = Scanner()
        self._steps = format(self._scanner)

    def read(self, text: str) -> list[Found]:
        """Return what is known after more text, in order."""
        self._scanner.text += text
        return self._run()

    def finish(self) -> list[Found]:
        """Return what is left at the end of the answer."""
        self._scanner.is_ended = True
        return self._run()

    def _run(self) -> list[Found]:
        found = []
        for step in self._steps:
            if step is None:
                break
            found.append(step)
        return found
