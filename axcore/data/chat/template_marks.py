"""Marks in a chat template: which text it writes at which message, and in which of its lines.

Templates write conversations in one piece. To know what of it an answer is, the parsed template is
given marks before it is compiled: around the body of every loop whose variable is a message, around
`generation` blocks, and in front of every output. A mark is rendered between two code points that
Unicode says are not characters, and is taken out of the text afterwards.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs

Span = tuple[int, int]

# Unicode promises that these two code points will never be characters.
BEGIN, END = "\ufdd0", "\ufdd1"
"""What a mark is rendered between: no characters, so that no text has them."""

GENERATION, GENERATION_END = f"{BEGIN}g{END}", f"{BEGIN}G{END}"
"""What is around the text of a `generation` block."""

ENTERS, LEAVES = "axcore_enters_message", "axcore_leaves_message"
"""What marked templates call where the body of a loop begins, and where it ends."""

_MARK = re.compile(f"{BEGIN}([gGlmM])(\\d*):?(\\d*){END}")


@attrs.frozen
class Trace:
    """A conversation as text, and what of it is from where.

    Attributes:
        text: The text.
        generated: The text of each `generation` block.
        messages: What is written while the template's loop is at a message, by its place. A loop
            that writes nothing but white space does not count.
        lines: From which character on which line of the template writes.
        twice: Places of messages at which more than one loop writes.
    """

    text: str
    generated: tuple[Span, ...]
    messages: Mapping[int, Span]
    lines: tuple[Span, ...]
    twice: frozenset[int]

    def line_at(self, place: int) -> int:
        """Return the line of the template that writes a character."""
        return max((one for one in self.lines if one[0] <= place), default=(0, 1))[1]

    def main_line(self, begin: int, end: int) -> int:
        """Return the line of the template that writes most of a part of the text."""
        places = [place for place, _ in self.lines] + [len(self.text)]
        sizes: Counter[int] = Counter({1: 0})
        for (place, line), after in zip(self.lines, places[1:], strict=True):
            sizes[line] += max(0, min(after, end) - max(place, begin))
        return sizes.most_common(1)[0][0]

    @cached_property
    def end(self) -> int:
        """Where the text of the last message has ended."""
        return max((end for _, end in self.messages.values()), default=0)


def without_marks(rendered: str) -> str:
    """Return a text that has no marks."""
    return _MARK.sub("", rendered) if BEGIN in rendered else rendered


def read_marks(rendered: str) -> Trace:
    """Return a text without its marks, and what they say."""
    pieces: list[str] = []
    generated: list[Span] = []
    messages: dict[int, Span] = {}
    lines: list[Span] = []
    twice: set[int] = set()
    length = last = begin = 0
    inside: tuple[str, int, int, int] | None = None  # loop, message, where it begins, in pieces too
    for mark in _MARK.finditer(rendered):
        pieces.append(rendered[last : mark.start()])
        length += len(pieces[-1])
        last = mark.end()
        kind, first, second = mark.groups()
        if kind == "l":
            lines.append((length, int(first)))
        elif kind == "g":
            # Of the last block alone: blocks do not nest in templates.
            begin = length
        elif kind == "G":
            generated.append((begin, length))
        elif kind == "m" and inside is None:
            # Of loops within loops the outer one decides: a template may look through other
            # messages while it writes one.
            inside = (first, int(second), length, len(pieces))
        elif kind == "M" and inside is not None and inside[0] == first:
            _, place, start, first_piece = inside
            inside = None
            # A loop that only looks, to count messages for example, writes at most white space.
            if "".join(pieces[first_piece:]).strip():
                twice |= {place} & messages.keys()
                messages[place] = (start, length)
    text = "".join(pieces) + rendered[last:]
    return Trace(text, tuple(generated), messages, tuple(lines), frozenset(twice))


def message_marks(messages: Sequence[Any]) -> dict[str, Any]:
    """Return the functions that a marked template calls, for these very messages."""
    # By identity, for two messages may be equal.
    places = {id(message): place for place, message in enumerate(messages)}

    def enters(loop: int, value: Any) -> str:
        place = places.get(id(value))
        return "" if place is None else f"{BEGIN}m{loop}:{place}{END}"

    return {ENTERS: enters, LEAVES: lambda loop: f"{BEGIN}M{loop}{END}"}


def add_marks(template: Any) -> None:
    """Add marks to a parsed template."""
    _Marker().add(template)


class _Marker:
    """Walks through a parsed template; each loop has a number of its own."""

    def __init__(self) -> None:
        self._num_loops = 0

    def add(self, node: Any, *, loop: int | None = None, is_captured: bool = False) -> None:
        """Mark what is below a node.

        Args:
            node: Of the parsed template.
            loop: The loop whose iteration a `break` or `continue` ends here.
            is_captured: Whether what is written is a value before it is text, which a filter may
                trim or a test may compare, so that lines are not marked there.
        """
        from jinja2 import nodes

        captures = (nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock)
        is_captured = is_captured or isinstance(node, captures)
        is_loop = isinstance(node, nodes.For)
        if is_loop:
            loop = None
            if isinstance(node.target, nodes.Name):
                self._num_loops += 1
                loop = self._num_loops
        for name, below in node.iter_fields():
            if not (isinstance(below, list) and below and isinstance(below[0], nodes.Stmt)):
                continue
            inner = loop if not is_loop or name == "body" else None
            found: list[Any] = []
            for one in below:
                if isinstance(one, nodes.Break | nodes.Continue) and inner is not None:
                    # Before a `break`, which would pass the mark at the end of the body.
                    found.append(_call(one.lineno, LEAVES, nodes.Const(inner)))
                if isinstance(one, nodes.Output) and not is_captured:
                    found.append(text_mark(f"{BEGIN}l{one.lineno}{END}", one.lineno))
                self.add(one, loop=inner, is_captured=is_captured)
                found.append(one)
            if is_loop and name == "body" and loop is not None:
                target = nodes.Name(node.target.name, "load")
                found.insert(0, _call(node.lineno, ENTERS, nodes.Const(loop), target))
                found.append(_call(node.lineno, LEAVES, nodes.Const(loop)))
            # Set back on the node, since Jinja's parser has made these lists.
            setattr(node, name, found)


def text_mark(mark: str, line: int) -> Any:
    """Return what writes a mark, as a part of a parsed template."""
    from jinja2 import nodes

    return nodes.Output([nodes.TemplateData(mark, lineno=line)], lineno=line)


def _call(line: int, function: str, *values: Any) -> Any:
    from jinja2 import nodes

    called = nodes.Call(nodes.Name(function, "load"), list(values), [], None, None)
    return nodes.Output([called], lineno=line).set_lineno(line)
