"""Chat templates: a conversation as the text that a model was trained to continue."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from axcore.errors import DataError

Message = Mapping[str, Any]
"""One turn of a conversation: its `role`, its `content`, and what else a template reads."""


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
        jinja2 = _jinja()
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise DataError(
                f"The chat template is no Jinja that can be read: {error.message}, in line "
                f"{error.lineno}.",
                where=where,
                hint="Take the template that was published with the tokenizer.",
            ) from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = False,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        **values: Any,
    ) -> str:
        """Returns the text of a conversation.

        Args:
            messages: The turns, the first one first.
            add_generation_prompt: Whether the text ends with what comes before an answer.
            tools: JSON schemas of functions that the model may call.
            documents: What the model may quote, each with a `title` and a `text`.
            **values: What else the template reads, as `enable_thinking`.

        Raises:
            DataError: The template refuses the conversation, or fails over it.
        """
        given = {**self._tokens, **values, "messages": list(messages), "tools": tools}
        given |= {"documents": documents, "add_generation_prompt": add_generation_prompt}
        try:
            return str(self._template.render(given))
        except Exception as error:  # a template may do anything that its sandbox lets it
            roles = [message.get("role") for message in messages]
            raise DataError(
                f"The chat template does not take this conversation: {error}.",
                where=self._where,
                hint=f"The roles are {roles}; look into the template for what it asks for.",
            ) from error


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
    """Returns the extension by which templates mark what the model wrote: its text stays as is."""
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

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
    raise _jinja().TemplateError(message)


def _jinja() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise DataError(
            "Chat templates are written in Jinja, which is not installed.",
            hint='pip install "axcore[chat]"',
        ) from error
    return jinja2
