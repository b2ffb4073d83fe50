"""`OutputWriter`: an answer as items of OpenAI's Responses API, and their events."""

from collections.abc import Iterator
from typing import Any

from axcore.data.chat.parsers.pieces import BrokenCall, CallPart, Piece, Reasoning

Event = dict[str, Any]

_ITEM = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
_PART = {"reasoning": "reasoning_text", "message": "output_text"}
"""Types of items that have content, and the type of their one part."""


class OutputWriter:
    """Makes items of the pieces of an answer, in their order.

    Args:
        identity: Of the response; those of items are made of it.

    Attributes:
        items: Those so far; the last one may be open.
    """

    def __init__(self, identity: str) -> None:
        self.items: list[dict[str, Any]] = []
        self._identity = identity
        self._open: dict[str, Any] | None = None
        # White space before a call is not a message.
        self._held = ""

    def add(self, piece: Piece) -> Iterator[Event]:
        """Append a piece; yields the events of a stream."""
        if isinstance(piece, Reasoning):
            yield from self._add_text("reasoning", piece.text)
        elif isinstance(piece, CallPart):
            yield from self._add_call(piece)
        elif isinstance(piece, BrokenCall):
            # What a stream has sent of a call stays, as one that is not complete.
            yield from self._close("incomplete")
            yield from self._add_text("message", piece.rest)
        elif self._is_open("message") or (self._held + piece).strip():
            text, self._held = self._held + piece, ""
            yield from self._add_text("message", text)
        else:
            self._held += piece

    def finish(self, status: str) -> Iterator[Event]:
        """Close what is open; an answer has one message at least, or a call.

        Args:
            status: Of the last item.
        """
        has_call = any(item["type"] == "function_call" for item in self.items)
        has_message = any(item["type"] == "message" for item in self.items)
        if not has_call and (self._held or not has_message):
            yield from self._add_text("message", self._held)
        yield from self._close(status)

    def _is_open(self, kind: str) -> bool:
        return self._open is not None and self._open["type"] == kind

    def _begin(self, kind: str, **fields: Any) -> Iterator[Event]:
        yield from self._close("completed")
        number = len(self.items)
        item = {"type": kind, "id": f"{_ITEM[kind]}_{self._identity}_{number}", **fields}
        self._open = item = {**item, "status": "in_progress"}
        self.items.append(item)
        yield {"type": "response.output_item.added", "output_index": number, "item": _copy(item)}
        if kind in _PART:
            yield self._about("response.content_part.added", content_index=0, part=_part(kind))
            item["content"] = [_part(kind)]

    def _add_text(self, kind: str, text: str) -> Iterator[Event]:
        if not self._is_open(kind):
            fields: dict[str, Any] = {"summary": []} if kind == "reasoning" else {}
            role = {"role": "assistant"} if kind == "message" else {}
            yield from self._begin(kind, **role, **fields, content=[])
        assert self._open is not None
        if not text:
            return
        self._open["content"][0]["text"] += text
        yield self._about(
            f"response.{_PART[kind]}.delta", content_index=0, delta=text, **_logs(kind)
        )

    def _add_call(self, part: CallPart) -> Iterator[Event]:
        self._held = ""
        if part.name is not None:
            begun = {"call_id": part.id, "name": part.name, "arguments": ""}
            yield from self._begin("function_call", **begun)
        assert self._open is not None
        self._open["arguments"] += part.arguments
        yield self._about("response.function_call_arguments.delta", delta=part.arguments)
        if part.is_whole:
            yield from self._close("completed")

    def _close(self, status: str) -> Iterator[Event]:
        item = self._open
        if item is None:
            return
        kind, item["status"] = item["type"], status
        if kind == "function_call":
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield self._about("response.function_call_arguments.done", **done)
        else:
            part = item["content"][0]
            done = {"content_index": 0, "text": part["text"], **_logs(kind)}
            yield self._about(f"response.{_PART[kind]}.done", **done)
            yield self._about("response.content_part.done", content_index=0, part={**part})
        number, self._open = len(self.items) - 1, None
        yield {"type": "response.output_item.done", "output_index": number, "item": _copy(item)}

    def _about(self, kind: str, **fields: Any) -> Event:
        """Return an event about the open item."""
        assert self._open is not None
        place = {"item_id": self._open["id"], "output_index": len(self.items) - 1}
        return {"type": kind, **place, **fields}


def _part(kind: str) -> dict[str, Any]:
    more: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "message" else {}
    return {"type": _PART[kind], "text": "", **more}


def _logs(kind: str) -> dict[str, Any]:
    return {"logprobs": []} if kind == "message" else {}


def _copy(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item as it is now; it grows while events about it are sent."""
    content = item.get("content")
    copied = {} if content is None else {"content": [{**one} for one in content]}
    return {**item, **copied}
