"""What of a conversation's text the model has to write: its answers, each as it is when it is new.

An answer is learnt behind the very text that a server shows the model to ask for it. Templates that
only ever append make one text of a full conversation. Many do not: they drop the thinking of
earlier answers, or put the system message in front of the last question. Then what a conversation
was, when an earlier answer was written, is another text, and the conversation becomes several: one
for each answer that the next text does not continue.
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from axcore.data.chat.chat_template import BUNDLED_TEMPLATES, REASONING, ChatTemplate, Message
from axcore.data.chat.conversation import Conversation
from axcore.data.chat.template_marks import Span, Trace
from axcore.errors import DataError

_OPENED_AND_CLOSED = re.compile(
    r"\s*<[^<>]+>[^<>]*(</[^<>]+>|<[^<>|/]+\|>|<\|END_[^<>]+>)\s*", re.DOTALL
)
"""A thinking that is empty: `<think></think>`, `<|channel>thought<channel|>`."""

_OTHER_TEMPLATE = "--set data.tokenizer.chat_template_path=FILE"
_GO_ON = "continue without: --set data.source.reads.leaves_out_unwritten=true"

_LONG = 16
"""Characters from which on a text is not in an answer by chance."""

_BUNDLED = {
    "deepseek-r1.jinja": ("<\uff5cAssistant\uff5c><think>\\n", ".split('</think>')[-1]"),
    "qwq.jinja": ("<|im_start|>assistant\\n<think>\\n", ".split('</think>')[-1]"),
}
"""Templates to use instead of published ones that drop thinking, and what those have in them."""


@attrs.frozen
class Answers:
    """A text, and the answers in it that the loss counts.

    Attributes:
        text: The text.
        spans: Where each answer begins, and where what the template writes with it ends.
        weights: What a token of each weighs.
        ends_turns: Whether a span ends with the token that ends a turn, if one is in it, and with
            that behind it otherwise; not where the template itself marks what counts.
    """

    text: str
    spans: tuple[Span, ...]
    weights: tuple[float, ...]
    ends_turns: bool = False


def find_answers(
    chat: Conversation,
    template: ChatTemplate,
    *,
    role: str | None,
    values: Mapping[str, Any] | None = None,
    leaves_out_unwritten: bool = False,
) -> tuple[Answers, ...]:
    """Return a conversation as one text or several, with the messages of a role that count.

    Where a template marks what the model wrote, and the role is the model's, those marks are the
    spans, in one text.

    Args:
        chat: The conversation.
        template: Its template.
        role: Whose messages count; None for all of the text.
        values: What else the template reads.
        leaves_out_unwritten: Whether thinking and messages of others that the template does not
            write are left out with a warning. An answer always needs its content and its calls.

    Raises:
        DataError: It has no message of the role, the template refuses it, writes it without
            something that counts, or does not say which text an answer is.
    """
    template = template.chosen(chat.tools)
    given = {**(values or {}), "tools": chat.tools and list(chat.tools)}
    view = _View(chat, template, given, leaves_out_unwritten)
    if role is None:
        _check_has_no_weights(chat)
        _warn_of_unread_tools(chat, template)
        text = view.trace(len(chat.messages)).text
        return (Answers(text, ((0, len(text)),), (1.0,)),)
    _check_has(chat, role)
    counted = [
        place
        for place, (message, weight) in enumerate(zip(chat.messages, chat.weights, strict=True))
        if message["role"] == role and weight
    ]
    if not counted:
        return (Answers(view.trace(len(chat.messages)).text, (), ()),)
    if role != "assistant":
        _warn_of_unread_tools(chat, template)
        return (_as_written(view, counted),)
    for place in counted:
        view.check_written(place)
    view.check_shown(counted[-1])
    _warn_of_unread_tools(chat, template)
    if template.marks_answers and not view.trace(len(chat.messages)).messages:
        return (_marked_in_order(view),)
    return tuple(_joined(view, counted))


def _warn_of_unread_tools(chat: Conversation, template: ChatTemplate) -> None:
    if chat.tools and not template.reads_tools:
        _warn_of_unwritten("tools", template)


def _warn_of_unwritten(what: str, template: ChatTemplate) -> None:
    warnings.warn(
        f"Of conversations, {what} are left out: the chat template {template.where} does not write "
        "them.",
        stacklevel=2,
    )


def _check_has(chat: Conversation, role: str) -> None:
    """Check that some message is of a role, and that no other has a weight that would be lost."""
    roles = [message["role"] for message in chat.messages]
    if role not in roles:
        raise DataError(
            f"The conversation has no message of {role!r}, of which the loss would count any; its "
            f"roles are {', '.join(roles)}.",
            hint="Correct or remove it, or set the source's on_bad='skip'.",
        )
    for place, (other, weight) in enumerate(zip(roles, chat.weights, strict=True)):
        if other != role and weight not in (0, 1):
            raise DataError(
                f"Message {place + 1} of {other!r} has the weight {weight:g}, and the loss counts "
                f"messages of {role!r} alone.",
                hint="Leave out the weight, or set the role whose messages count.",
            )


def _check_has_no_weights(chat: Conversation) -> None:
    found = next((place for place, weight in enumerate(chat.weights) if weight != 1), None)
    if found is not None:
        raise DataError(
            f"Message {found + 1} has the weight {chat.weights[found]:g}, and role=None counts "
            "every token alike.",
            hint="Leave out the weight, or set the role whose messages count.",
        )


@attrs.define
class _View:
    """A conversation as its template writes it."""

    chat: Conversation
    template: ChatTemplate
    values: Mapping[str, Any]
    leaves_out_unwritten: bool
    _known: dict[tuple[int, bool], Trace] = attrs.field(factory=dict)

    def trace(self, size: int, *, asks: bool = False) -> Trace:
        """Return the first messages as they are written, perhaps asking for the next one."""
        # Templates are slow, and each answer asks for the same beginnings again.
        if (size, asks) not in self._known:
            self._known[size, asks] = self.trace_of(self.chat.messages[:size], asks=asks)
        return self._known[size, asks]

    def trace_of(self, messages: Sequence[Message], *, asks: bool = False) -> Trace:
        return self.template.trace(messages, add_generation_prompt=asks, **self.values)

    def written(self, place: int) -> Span | None:
        """Return where a message is written when it is the last one."""
        found = self.trace(place + 1)
        if place in found.twice:
            raise self.refused(
                f"Message {place + 1} is written by more than one loop",
                found.line_at(found.messages[place][0]),
            )
        return found.messages.get(place)

    def refused(self, what: str, line: int, *, hint: str | None = None) -> DataError:
        """Return the error of a template that cannot be trained with, which names its line."""
        return DataError(
            f"{what}: {self.template.line(line)}.",
            where=self.template.where,
            hint=hint
            or "Use a template with generation blocks around answers: --set "
            "data.tokenizer.chat_template_path=FILE; or role=None, so that every token counts.",
        )

    def check_written(self, place: int) -> None:
        """Check that an answer is written with all that it has."""
        message, span = self.chat.messages[place], self.written(place)
        after = self.trace(place + 1)
        begin, end = span or (0, len(after.text))
        for what, text, other in _parts(message):
            # A long text that is found word for word cannot be there by chance. A short one can,
            # so the template renders the conversation with another text in its place.
            if len(text) >= _LONG and text in after.text[begin:end]:
                continue
            messages = [*self.chat.messages[:place], other]
            if self._writes_another_text(messages, after, asks=False):
                continue
            if what == "the thinking" and self.leaves_out_unwritten:
                _warn_of_unwritten("thoughts", self.template)
                continue
            raise self.refused(
                f"The chat template leaves out {what} of message {place + 1}, so that it would not "
                "be learnt; the answer is written by",
                after.main_line(begin, end),
                hint=self._hint_of_dropped(what),
            )

    def _writes_another_text(
        self, messages: Sequence[Message], trace: Trace, *, asks: bool
    ) -> bool:
        """Whether other messages are written as another text, or not taken at all."""
        try:
            return self.trace_of(messages, asks=asks).text != trace.text
        # A template that refuses the other message has looked at it.
        except DataError:
            return True

    def _hint_of_dropped(self, what: str) -> str:
        instead = _bundled(self.template)
        if what == "the thinking" and instead is not None:
            return _use(instead)
        if what == "the thinking":
            return f"Use a template that writes it: {_OTHER_TEMPLATE}; or {_GO_ON}."
        return f"Remove {what} from the data, or use a template that writes it: {_OTHER_TEMPLATE}."

    def check_shown(self, last: int) -> None:
        """Check that what an answer is to is written: no template may lose a message of others."""
        asks, size = (False, last + 1) if self.template.marks_answers else (True, last)
        shown = self.trace(size, asks=asks)
        for place, message in enumerate(self.chat.messages[:last]):
            text = (message.get("content") or "").strip()
            is_there = place in shown.messages or text in shown.text
            if message["role"] == "assistant" or is_there:
                continue
            messages = [*self.chat.messages[:size]]
            messages[place] = {**message, "content": _other(text)}
            if self._writes_another_text(messages, shown, asks=asks):
                continue
            if self.leaves_out_unwritten:
                _warn_of_unwritten(f"messages of {message['role']!r}", self.template)
                continue
            raise self.refused(
                f"The chat template leaves out message {place + 1} of {message['role']!r}; what it "
                "does write is by",
                shown.main_line(0, shown.end),
                hint=f"Put its text into another message, or use a template that writes it: "
                f"{_OTHER_TEMPLATE}; or {_GO_ON}.",
            )


def _parts(message: Message) -> Iterator[tuple[str, str, Message]]:
    """Yield what an answer has: its name, its text, and the message with another one there."""
    content = message.get("content") or ""
    thought, mark, said = content.rpartition("</think>")
    text = thought.replace("<think>", "").strip()
    if text:
        yield "the thinking", text, {**message, "content": f"<think>{_other(text)}{mark}{said}"}
    if said.strip():
        other = {**message, "content": thought + mark + _other(said)}
        yield "the content", said.strip(), other
    thoughts = {name: message[name] for name in REASONING if message.get(name)}
    if thoughts:
        text = str(next(iter(thoughts.values()))).strip()
        yield "the thinking", text, {**message, **dict.fromkeys(thoughts, _other(text))}
    calls = message.get("tool_calls") or ()
    for number, call in enumerate(calls):
        what = "the tool call" if len(calls) == 1 else f"tool call {number + 1}"
        function = call.get("function") if isinstance(call.get("function"), Mapping) else call
        for name, value in (("name", "other"), ("arguments", {"other": "?"})):
            if not function.get(name):
                continue
            changed = {**function, name: value}
            other_call = changed if function is call else {**call, "function": changed}
            other_calls = [*calls[:number], other_call, *calls[number + 1 :]]
            yield what, "", {**message, "tool_calls": other_calls}


def _other(text: str) -> str:
    return "!" if text == "?" else "?"


def _joined(view: _View, counted: Sequence[int]) -> Iterator[Answers]:
    """Yield texts, each the longest that continues what was there for its answers."""
    text, spans, weights = "", list[Span](), list[float]()
    ends_turns = not view.template.marks_answers
    for place in counted:
        continued, own = (_marked if view.template.marks_answers else _answered)(view, place)
        # Only where it continues what is there: some templates drop thoughts
        # of earlier answers, and then each answer needs a text of its own.
        if spans and not continued[: own[0][0]].startswith(text):
            yield Answers(text, tuple(spans), tuple(weights), ends_turns=ends_turns)
            spans, weights = [], []
        text = continued
        spans += own
        weights += [view.chat.weights[place]] * len(own)
    yield Answers(text, tuple(spans), tuple(weights), ends_turns=ends_turns)


def _marked(view: _View, place: int) -> tuple[str, list[Span]]:
    """Return a conversation up to an answer, and what of that the template marks."""
    after = view.trace(place + 1)
    begin, end = view.written(place) or (0, len(after.text))
    found = [(a, b) for a, b in after.generated if begin <= a < b <= end]
    if not found:
        raise view.refused(
            f"The chat template's generation blocks mark nothing of message {place + 1}, so that "
            "it would not be learnt",
            after.main_line(begin, end),
            hint="Put its text into a generation block.",
        )
    return after.text[:end], found


def _answered(view: _View, place: int) -> tuple[str, list[Span]]:
    """Return the text that asks for an answer with the answer behind it, and where that is."""
    before, after = view.trace(place, asks=True), view.trace(place + 1)
    prompt = before.text
    span = view.written(place)
    begin, end = span or (len(prompt), len(after.text))
    if after.text.startswith(prompt) and len(prompt) < end:
        return after.text[:end], [(len(prompt), end)]
    if after.text == prompt:
        raise _nothing_written(view, place)
    if span is None:
        raise view.refused(
            f"Message {place + 1} is not written in a loop over messages, and what is there before "
            "it is written in another way than where the answer is asked for",
            after.line_at(_num_common(after.text, prompt)),
        )
    # The template writes another text before the answer than the one that asks for it. The model
    # reads the latter; behind it comes what is written of the answer but for its own beginning,
    # which the request has already.
    written, asks = after.text[begin:end], prompt[_begin_of_request(view, place) :]
    if asks.strip():
        written, asks = written.lstrip(), asks.lstrip()
    num_common = _num_common(asks, written)
    header = written[:num_common]
    # If the common part ends inside of a mark such as `<think`, cut it before the mark: half of a
    # mark is not a mark.
    if num_common < len(asks) and header.rfind("<") > header.rfind(">"):
        num_common = header.rfind("<")  # two marks that begin alike
    more = asks[num_common:]
    # The request may be more than what is written where the answer is there: an empty thinking,
    # say, behind which the answer follows as it is. But where it opens something that the answer
    # then does not close, the model would learn to answer inside of it.
    is_fine = header.strip() and _OPENED_AND_CLOSED.fullmatch(more)
    if more.strip() and not is_fine:
        raise view.refused(
            f"The chat template asks for answers with {more!r}, which it does not write in message "
            f"{place + 1}, so that the model would learn to continue it with an answer",
            before.line_at(len(prompt) - len(more)),
            hint=_hint_of_request(view.template, more),
        )
    if num_common == len(written):
        raise _nothing_written(view, place)
    text = prompt + written[num_common:]
    return text, [(len(prompt), len(text))]


def _nothing_written(view: _View, place: int) -> DataError:
    after = view.trace(place + 1)
    return view.refused(
        f"The chat template writes nothing for message {place + 1}, of which the loss would count "
        "the tokens",
        after.main_line(0, len(after.text)),
        hint="Correct or remove it, or set the source's on_bad='skip'.",
    )


def _begin_of_request(view: _View, place: int) -> int:
    """Return where, in the text that asks for an answer, the last message has ended."""
    asked, plain = view.trace(place, asks=True), view.trace(place)
    ends = [asked.end] if asked.messages else []
    if asked.text.startswith(plain.text):  # some templates ask while they write the last message
        ends.append(len(plain.text))
    return min(ends, default=0)


def _marked_in_order(view: _View) -> Answers:
    """Return the marked spans of a template without a loop over messages, one for each answer."""
    whole = view.trace(len(view.chat.messages))
    weights = [
        weight
        for message, weight in zip(view.chat.messages, view.chat.weights, strict=True)
        if message["role"] == "assistant"
    ]
    if len(whole.generated) != len(weights) or any(begin == end for begin, end in whole.generated):
        raise DataError(
            f"The chat template marks {len(whole.generated)} spans of {len(weights)} answers, so "
            "that it cannot be said which is which.",
            where=view.template.where,
            hint="Use a template with one generation block for each answer.",
        )
    return Answers(whole.text, whole.generated, tuple(weights))


def _as_written(view: _View, counted: Sequence[int]) -> Answers:
    """Return messages that the model does not write, as the template writes them."""
    whole = view.trace(len(view.chat.messages))
    lost = next((place for place in counted if place not in whole.messages), None)
    if lost is not None:
        role = view.chat.messages[lost]["role"]
        raise view.refused(
            f"The chat template has no text of its own for message {lost + 1} of {role!r}",
            whole.line_at(len(whole.text)),
        )
    spans = tuple(whole.messages[place] for place in counted)
    return Answers(whole.text, spans, tuple(view.chat.weights[place] for place in counted))


def _num_common(first: str, second: str) -> int:
    """Return how many characters two texts begin with alike."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(first), len(second)))


def _bundled(template: ChatTemplate) -> Path | None:
    """Return the template to use instead, where one comes with axcore."""
    # By marks in its source, as published templates differ in white space.
    for name, marks in _BUNDLED.items():
        if all(mark in template.source for mark in marks):
            return BUNDLED_TEMPLATES / name
    return None


def _use(instead: Path) -> str:
    return (
        "Use the template that writes the same and keeps the thinking: --set "
        f"data.tokenizer.chat_template_path={instead}"
    )


def _hint_of_request(template: ChatTemplate, more: str) -> str | None:
    """Return what to do where a template asks for answers with more than it writes of them."""
    instead = _bundled(template)
    if instead is not None:
        return _use(instead)
    if "enable_thinking" in template.source:
        values = {"enable_thinking": "</" in more}
        return (
            "The template knows enable_thinking: --set "
            f'"data.source.reads.chat_template_kwargs={values}", or a record has '
            "chat_template_kwargs."
        )
    return None
