"""Chat templates: a conversation as the text that a model was trained to continue."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import attrs

from axcore.errors import DataError
from axcore.extras import import_extra

Message = Mapping[str, Any]
"""One turn of a conversation: its `role`, its `content`, and what else a template reads."""


_BEGIN, _END = "\ufdd0", "\ufdd1"
"""What is around the text of `generation` blocks until all is rendered: no characters."""


@attrs.frozen
class MarkedText:
    """A conversation as text, with what its template marks as written by the model.

    Attributes:
        text: The text.
        spans: Where the text of each `generation` block begins, and where it has ended.
    """

    text: str
    spans: tuple[tuple[int, int], ...]


class ChatTemplate:
    """A template in Jinja, rendered in a sandbox, as Hugging Face's tokenizers bring it.

    Templates find what they find in transformers: `messages`, `tools`, `documents`,
    `add_generation_prompt`, the special tokens, `raise_exception`, `strftime_now`, a `tojson` that
    escapes nothing, loop controls, and `generation` blocks.

    Args:
        source: The template.
        tokens: Special tokens by the name that templates know them by, as `bos_token`.
        where: The file that it is from, for errors.

    Raises:
        DataError: It is no template, or Jinja is not installed.
    """

    def __init__(self, source: str, tokens: Mapping[str, str], *, where: str) -> None:
        self.source = source
        self._tokens, self._where = tokens, where
        jinja2 = _library()
        environment = _environment()
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise DataError(
                f"The chat template is no Jinja that can be read: {error.message}, in line "
                f"{error.lineno}.",
                where=where,
                hint="Take the template that was published with the tokenizer.",
            ) from error
        self.marks_answers: bool = getattr(environment, "marks_answers", False)

    def render(self, messages: Sequence[Message], **values: Any) -> str:
        """Returns the text of a conversation; see `render_marked`."""
        return self.render_marked(messages, **values).text

    def render_marked(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = False,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        **values: Any,
    ) -> MarkedText:
        """Returns the text of a conversation, and the spans of its `generation` blocks.

        Args:
            messages: The turns, the first one first.
            add_generation_prompt: Whether the text ends with what comes before an answer.
            tools: JSON schemas of functions that the model may call.
            documents: What the model may quote, each with a `title` and a `text`.
            **values: What else the template reads, as `enable_thinking`.

        Raises:
            DataError: The template refuses the conversation, or fails over it; or a text holds
                U+FDD0 or U+FDD1, which are no characters.
        """
        _check_characters([*messages, *(tools or ()), *(documents or ())], self._where)
        given = {**self._tokens, **values, "messages": list(messages), "tools": tools}
        given |= {"documents": documents, "add_generation_prompt": add_generation_prompt}
        try:
            return _without_marks(str(self._template.render(given)))
        except Exception as error:  # a template may do anything that its sandbox lets it
            roles = [message.get("role") for message in messages]
            raise DataError(
                f"The chat template does not take this conversation: {error}.",
                where=self._where,
                hint=f"The roles are {roles}; look into the template for what it asks for.",
            ) from error


def _without_marks(rendered: str) -> MarkedText:
    """Returns a text without its marks, and where they were."""
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    length = begin = 0
    for piece in re.split(f"([{_BEGIN}{_END}])", rendered):
        if piece == _BEGIN:
            begin = length
        elif piece == _END:
            spans.append((begin, length))
        else:
            pieces.append(piece)
            length += len(piece)
    return MarkedText("".join(pieces), tuple(spans))


def _check_characters(values: Sequence[Any], where: str) -> None:
    said = json.dumps(values, ensure_ascii=False, default=str)
    if _BEGIN in said or _END in said:
        raise DataError(
            "A conversation holds U+FDD0 or U+FDD1, which Unicode says are no characters.",
            where=where,
            hint="Remove them from the text.",
        )


def _environment() -> Any:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation(), loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _generation() -> type[Any]:
    """Returns the extension by which templates mark what the model wrote."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            environment: Any = self.environment
            environment.marks_answers = True
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            begin, end = (
                nodes.Output([nodes.TemplateData(mark)], lineno=line) for mark in (_BEGIN, _END)
            )
            return [begin, *body, end]

    return Generation


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> NoReturn:
    raise _library().TemplateError(message)


def _library() -> Any:
    return import_extra("jinja2", used_by="a chat template", error=DataError)
