"""Chat templates: a conversation as the text that a model was trained to continue."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from immutabledict import immutabledict

from axcore.data.chat.template_marks import (
    BEGIN,
    END,
    GENERATION,
    GENERATION_END,
    Trace,
    add_marks,
    message_marks,
    read_marks,
    text_mark,
    without_marks,
)
from axcore.errors import DataError
from axcore.extras import import_extra

Message = Mapping[str, Any]
"""One turn of a conversation: its `role`, its `content`, and what else a template reads."""

BUNDLED_TEMPLATES = Path(__file__).parent / "templates"
"""The folder of the templates that come with axcore."""

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Fields of a message that may contain what was thought before the answer."""


class ChatTemplate:
    """A template in Jinja, rendered in a sandbox, as Hugging Face's tokenizers bring it.

    Templates find what they find in transformers: `messages`, `tools`, `documents`,
    `add_generation_prompt`, the special tokens, `raise_exception`, `strftime_now`, a `tojson` that
    escapes nothing, loop controls, and `generation` blocks.

    Args:
        source: The template.
        tokens: Special tokens by the name that templates know them by, as `bos_token`.
        where: The file that it is from, for errors.
        tool_use: The template for conversations with tools, where there is one of its own.
        replaced: What a conversation has in the place of texts that the template writes, by these
            texts: around a picture, what a processor of transformers writes there.

    Raises:
        DataError: It is not a template, or Jinja is not installed.
    """

    def __init__(
        self,
        source: str,
        tokens: Mapping[str, str],
        *,
        where: str,
        tool_use: "ChatTemplate | None" = None,
        replaced: Mapping[str, str] = immutabledict(),
    ) -> None:
        self.source, self.where = source, where
        self._tokens, self._tool_use, self._replaced = tokens, tool_use, replaced
        jinja2 = _library()
        self._environment = _environment()
        try:
            # Parsed at once: a wrong template must show when the tokenizer is opened.
            self._template = self._environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise DataError(
                f"The chat template cannot be read as Jinja: {error.message}, in line "
                f"{error.lineno}.",
                where=where,
                hint="Take the template that was published with the tokenizer.",
            ) from error
        self.marks_answers: bool = getattr(self._environment, "marks_answers", False)

    def __reduce__(self) -> Any:
        """Return how another process makes it: what Jinja compiled stays here."""
        made = (self.source, dict(self._tokens), self.where, self._tool_use)
        return _again, (*made, dict(self._replaced))

    def chosen(self, tools: Sequence[Any] | None) -> "ChatTemplate":
        """Return the template for a conversation, which may be another one where it has tools."""
        return self._tool_use if tools and self._tool_use is not None else self

    @cached_property
    def reads_tools(self) -> bool:
        """Whether it reads the tools that a conversation has."""
        from jinja2 import meta

        names: set[str] = meta.find_undeclared_variables(self._environment.parse(self.source))
        return "tools" in names

    def render(
        self, messages: Sequence[Message], *, continue_final_message: bool = False, **values: Any
    ) -> str:
        """Return the text of a conversation.

        Args:
            messages: The turns, the first one first.
            continue_final_message: Whether the text ends with the content of the last message, so
                that the model continues it.
            **values: What else the template reads: `add_generation_prompt`, whether the text ends
                with what comes before an answer; `tools`, JSON schemas of functions that the model
                may call; `documents`, what it may quote, each with a `title` and a `text`; and what
                this template alone knows, as `enable_thinking`.

        Raises:
            DataError: The template refuses the conversation, or fails over it; or a text holds
                U+FDD0 or U+FDD1, which are not characters.
        """
        if continue_final_message:
            return self._continued(messages, values)
        chosen = self.chosen(values.get("tools"))
        return without_marks(chosen._rendered(chosen._template, messages, values))

    def trace(self, messages: Sequence[Message], **values: Any) -> Trace:
        """Return the text of a conversation, and which message each part of it is from.

        Args:
            messages: As `render`.
            **values: As `render`.

        Raises:
            DataError: As `render`.
        """
        chosen = self.chosen(values.get("tools"))
        # Copies, for marks find messages by identity.
        own = [dict(message) for message in messages]  # one object may be several of them
        return read_marks(chosen._rendered(chosen._marked, own, values))

    def _continued(self, messages: Sequence[Message], values: Mapping[str, Any]) -> str:
        """Return a conversation up to the last content."""
        written = self.trace(messages, **values)
        content = (messages[-1].get("content") or "") if messages else ""
        begin, end = written.messages.get(len(messages) - 1, (0, len(written.text)))
        # The last place: the same words may be in an earlier turn.
        place = written.text.rfind(content, begin, end)
        if place < 0:  # many templates strip it
            content = content.strip()
            place = written.text.rfind(content, begin, end)
        if not content.strip() or place < 0:
            raise DataError(
                "The last message cannot be continued: the chat template writes no content of it.",
                where=self.where,
                hint="Begin its answer, as {'role': 'assistant', 'content': 'The'}; or leave out "
                "continue_final_message.",
            )
        return written.text[: place + len(content)]

    def line(self, number: int) -> str:
        """Return a line, or the next one that is not empty, as errors name it."""
        lines = dict(enumerate(self.source.split("\n"), 1))
        number = next((one for one in range(number, len(lines) + 1) if lines[one].strip()), number)
        text = lines[number].strip()
        return f"line {number} of the chat template, {text if len(text) <= 80 else text[:77]!r}"

    @cached_property
    def _reasoning(self) -> tuple[str, ...]:
        """The fields that it reads of those that may hold a thinking."""
        return tuple(
            name
            for name in REASONING
            # As an attribute or a key, and not as a name in a comparison or a call.
            if re.search(rf"""(\.|['"]){name}\b(?!['"]?\s*(\(|:))""", self.source)
        )

    def _with_known_reasoning(self, message: Message) -> Message:
        """Return a message whose thinking has the name by which the template reads it."""
        own = [name for name in REASONING if message.get(name)]
        if not own or not self._reasoning or {*own} & {*self._reasoning}:
            return message
        others = {name: one for name, one in message.items() if name not in own}
        return {**others, self._reasoning[0]: message[own[0]]}

    @cached_property
    def _marked(self) -> Any:
        """The same template, which marks what it writes."""
        # Marked as a tree, not as text: a template's text may contain anything that looks like a
        # loop.
        parsed = self._environment.parse(self.source)
        add_marks(parsed)
        return self._environment.from_string(parsed.set_environment(self._environment))

    def _rendered(
        self, template: Any, messages: Sequence[Message], values: Mapping[str, Any]
    ) -> str:
        tools, documents = values.get("tools"), values.get("documents")
        _check_characters([*messages, *(tools or ()), *(documents or ())], self.where)
        given: dict[str, Any] = {"tools": None, "documents": None, "add_generation_prompt": False}
        given |= {**self._tokens, **values}

        def render(turns: Sequence[Message]) -> str:
            return str(template.render({**given, **message_marks(turns), "messages": turns}))

        try:
            text = _with_readable_calls(render, [*map(self._with_known_reasoning, messages)])
        except Exception as error:  # a template may do anything that its sandbox lets it
            roles = [message.get("role") for message in messages]
            raise DataError(
                f"The chat template does not take this conversation: {error}.",
                where=self.where,
                hint=f"The roles are {roles}; look into the template for what it asks for.",
            ) from error
        if not self._replaced:
            return text
        # At once, since a text may be in what another one becomes; the longest first.
        longest = sorted(self._replaced, key=len, reverse=True)
        either = "|".join(map(re.escape, longest))
        return re.sub(either, lambda found: self._replaced[found[0]], text)


def _again(
    source: str,
    tokens: Mapping[str, str],
    where: str,
    tool_use: ChatTemplate | None,
    replaced: Mapping[str, str],
) -> ChatTemplate:
    return ChatTemplate(source, tokens, where=where, tool_use=tool_use, replaced=replaced)


def _with_readable_calls(
    render: Callable[[Sequence[Message]], str], messages: Sequence[Message]
) -> str:
    """Return a text in which the arguments of calls are JSON.

    Most templates take arguments as objects. Some write them as they come, which is right for text
    alone: those fail over an object, or write it as Python does.
    """
    arguments = [one for message in messages for one in _arguments(message)]
    try:
        text = render(messages)
    except TypeError:
        if not arguments:
            raise
    else:
        # A dict that was written as Python writes it has single quotes, and is not JSON.
        if not any(repr(one) in text for one in arguments if repr(one) != _to_json(one)):
            return text
    return render([_with_text_arguments(message) for message in messages])


def _arguments(message: Message) -> list[Any]:
    calls = message.get("tool_calls") or ()
    found = [one["function"].get("arguments") for one in calls if _has_function(one)]
    return [one for one in found if isinstance(one, Mapping)]


def _has_function(call: Any) -> bool:
    return isinstance(call, Mapping) and isinstance(call.get("function"), Mapping)


def _with_text_arguments(message: Message) -> Message:
    if not _arguments(message):
        return message
    calls = []
    for call in message["tool_calls"]:
        function = dict(call["function"]) if _has_function(call) else {}
        if isinstance(function.get("arguments"), Mapping):
            function["arguments"] = _to_json(function["arguments"])
            call = {**call, "function": function}
        calls.append(call)
    return {**message, "tool_calls": calls}


def _check_characters(values: Sequence[Any], where: str) -> None:
    # Looked for in all values at once, as any of them may be written.
    said = json.dumps(values, ensure_ascii=False, default=str)
    if BEGIN in said or END in said:
        raise DataError(
            "A conversation contains U+FDD0 or U+FDD1, which Unicode says are not characters.",
            where=where,
            hint="Remove them from the text.",
        )


def _environment() -> Any:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # The sandbox: a template comes with a model, from whoever published it.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_generation(), loopcontrols],
        optimized=False,
    )
    # Jinja computes constants while it compiles: `10 ** (10 ** 8)` would stop whoever reads the
    # template. So nothing is computed before it is rendered, which can be limited.
    environment.code_generator_class = _without_constants()
    environment.intercepted_binops = frozenset(environment.default_binop_table)
    environment.filters["tojson"] = _to_json
    # transformers has this one, and many templates raise by it where roles do not alternate.
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _without_constants() -> type[Any]:
    """Return a compiler of templates that evaluates no expression."""
    from jinja2 import nodes
    from jinja2.compiler import CodeGenerator

    class WithoutConstants(CodeGenerator):
        def _output_child_to_const(self, node: Any, frame: Any, finalize: Any) -> str:
            if not isinstance(node, nodes.TemplateData):
                raise nodes.Impossible
            return super()._output_child_to_const(node, frame, finalize)

        def visit_EvalContextModifier(self, node: Any, frame: Any) -> None:  # noqa: N802
            frame.eval_ctx.volatile = True  # so that filters within `autoescape` are not tried
            super().visit_EvalContextModifier(node, frame)

    return WithoutConstants


def _generation() -> type[Any]:
    """Return the extension by which templates mark what the model wrote."""
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            environment: Any = self.environment
            environment.marks_answers = True
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return [text_mark(GENERATION, line), *body, text_mark(GENERATION_END, line)]

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
