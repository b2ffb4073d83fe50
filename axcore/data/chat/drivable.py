"""Whether a chat template can be driven in tokens: proven on conversations, or what is not so.

A template is drivable where the text of a longer conversation continues that of a shorter one: what
asked for an answer, the answer as the model wrote it, the bridge, and so on. Many are not: they
drop the thinking of earlier answers, move the tools to the last question, or end the last answer in
another way than those before it. A model that was trained in tokens would then never see what it
was trained on.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import attrs

from axcore.data.chat.chat_answers import Answers, find_answers
from axcore.data.chat.chat_tokens import tokenize_chat
from axcore.data.chat.chat_turns import ChatTurns
from axcore.data.chat.conversation import Conversation, read_conversation
from axcore.data.tokenizers.tokenizer import Tokenizer
from axcore.errors import DataError

FollowUp = Literal["user", "tool"]
"""Whose message comes between two answers."""

FOLLOW_UPS: tuple[FollowUp, ...] = ("user", "tool")

Thinking = Literal["", "field", "content"]
"""Where an answer has its thinking, if it has one."""

_WITH_TOOLS: Mapping[FollowUp, tuple[bool, ...]] = {"user": (False, True), "tool": (True,)}

_TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    },
)
_NUM_ANSWERS = 3
"""A template may treat the last answer apart, and the one before it: three show both."""

_SHOWN = 60
"""Characters of the first differing text that are shown, before and after."""


@attrs.frozen(kw_only=True)
class TurnCase:
    """A conversation that a template was tried with.

    Args:
        has_system: Whether it begins with a system message.
        thinking: Whether answers have a thinking: in a field of the message, in their content, or
            none.
        problem: Why the template cannot be driven in it; empty where it can.
        is_refused: Whether the template does not take it, or does not write all of it.
    """

    has_system: bool
    thinking: Thinking
    problem: str = ""
    is_refused: bool = False

    @property
    def result(self) -> str:
        """Say what came of it."""
        return "not taken" if self.is_refused else "changes" if self.problem else "drivable"


@attrs.frozen(kw_only=True)
class TurnKind:
    """A kind of conversation that a template was tried with.

    Args:
        follow_up: Whose messages come between answers.
        has_tools: Whether the model may call tools.
        cases: What was tried.
        thinks: Whether the model is asked to think, as far as the template lets it.
    """

    follow_up: FollowUp
    has_tools: bool
    cases: tuple[TurnCase, ...]
    thinks: bool = True

    @property
    def deciding(self) -> TurnCase:
        """The case that decides.

        Where a template writes thinking, that is what models write; else those with it in the
        content matter as much as those without. Of these it is one with a problem, if there is one.
        """
        fields = [one for one in self.cases if one.thinking == "field" and not one.is_refused]
        used = fields if fields and self.thinks else self._without_field
        taken = [one for one in used if not one.is_refused]
        return next((one for one in taken if one.problem), (taken or used)[0])

    @property
    def is_drivable(self) -> bool:
        """Whether the template can be driven in such conversations."""
        return not self.deciding.problem

    @property
    def result(self) -> str:
        """Say whether it can."""
        return {"changes": "not drivable"}.get(self.deciding.result, self.deciding.result)

    def describe(self) -> str:
        """Say what kind of conversation it is."""
        with_tools = " and tools" if self.has_tools and self.follow_up != "tool" else ""
        return f"{self.follow_up} turns{with_tools}"

    @property
    def _without_field(self) -> list[TurnCase]:
        plain = [one for one in self.cases if not one.thinking]
        return plain + [one for one in self.cases if one.thinking == "content" and self.thinks]


def try_turns(
    tokenizer: Tokenizer,
    *,
    follow_ups: Sequence[FollowUp] = FOLLOW_UPS,
    values: Mapping[str, Any] | None = None,
) -> list[TurnKind]:
    """Return what came of driving the tokenizer's chat template in each kind of conversation.

    Args:
        tokenizer: Has the chat template.
        follow_ups: Whose messages come between answers.
        values: What else the template reads.

    Raises:
        DataError: The tokenizer has no chat template.
    """
    _ = tokenizer.known_chat_template
    given = dict(values or {})
    kinds = [(one, has_tools) for one in follow_ups for has_tools in _WITH_TOOLS[one]]
    return [
        TurnKind(
            follow_up=follow_up,
            has_tools=has_tools,
            cases=tuple(
                _tried(
                    TurnCase(has_system=has_system, thinking=thinking),
                    _conversation(follow_up, has_tools, has_system, thinking),
                    tokenizer,
                    given,
                )
                for thinking in get_args(Thinking)
                for has_system in (False, True)
            ),
            thinks=given.get("enable_thinking") is not False,
        )
        for follow_up, has_tools in kinds
    ]


def check_drivable(
    tokenizer: Tokenizer,
    *,
    follow_ups: Sequence[FollowUp],
    has_tools: bool = False,
    values: Mapping[str, Any] | None = None,
) -> None:
    """Check that a chat template can be driven in the conversations of a run.

    Args:
        tokenizer: Has the chat template.
        follow_ups: Whose messages come between answers.
        has_tools: Whether the model may call tools.
        values: What else the template reads.

    Raises:
        DataError: It cannot; it says in which conversations, and what differs.
    """
    of_tools = has_tools or "tool" in follow_ups
    for kind in try_turns(tokenizer, follow_ups=follow_ups, values=values):
        if kind.has_tools == of_tools and not kind.is_drivable:
            raise DataError(
                f"the chat template cannot be driven in tokens, in conversations with "
                f"{kind.describe()}: {kind.deciding.problem}",
                where=tokenizer.known_chat_template.where,
                hint="`axcore chat-template check` shows all cases; use a template that only "
                "appends: --set data.tokenizer.chat_template_path=FILE",
            )


def _conversation(
    follow_up: FollowUp, has_tools: bool, has_system: bool, thinking: Thinking
) -> Conversation:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Question number 0?"}]
    if has_system:
        messages.insert(0, {"role": "system", "content": "Be brief."})
    for number in range(_NUM_ANSWERS):
        is_call = follow_up == "tool" and number < _NUM_ANSWERS - 1
        content, identity = "" if is_call else f"Answer number {number}.", f"call{number:05}"
        answer: dict[str, Any] = {"role": "assistant", "content": content}
        thought = _thought(number)
        if thinking == "field":
            answer["reasoning_content"] = thought
        elif thinking == "content":
            answer["content"] = f"<think>\n{thought}\n</think>\n\n{content}"
        if is_call:
            function = {"name": "add", "arguments": {"a": number, "b": 1}}
            answer["tool_calls"] = [{"type": "function", "id": identity, "function": function}]
        messages.append(answer)
        if number == _NUM_ANSWERS - 1:
            break
        if is_call:
            result = {"role": "tool", "name": "add", "content": f"{number + 1}"}
            messages.append({**result, "tool_call_id": identity})
        else:
            messages.append({"role": "user", "content": f"Question number {number + 1}?"})
    tools = list(_TOOLS) if has_tools else None
    return read_conversation({"messages": messages, "tools": tools})


def _thought(number: int) -> str:
    return f"I think of number {number}."


def _tried(
    case: TurnCase, chat: Conversation, tokenizer: Tokenizer, values: Mapping[str, Any]
) -> TurnCase:
    template = tokenizer.known_chat_template
    try:
        if chat.tools and not template.chosen(chat.tools).reads_tools:
            raise DataError("The chat template does not write tools.")
        template.render(chat.messages, tools=chat.tools and list(chat.tools), **values)
        answers = find_answers(chat, template, role="assistant", values=values)
    except DataError as error:
        return attrs.evolve(case, problem=error.what, is_refused=True)
    if len(answers) > 1:
        return attrs.evolve(case, problem=_difference(answers[0], answers[1], chat))
    return attrs.evolve(case, problem=_problem_in_tokens(chat, tokenizer, values))


def _problem_in_tokens(chat: Conversation, tokenizer: Tokenizer, values: Mapping[str, Any]) -> str:
    """Drive a conversation in tokens; return where that leads elsewhere than its rendering."""
    (made,) = tokenize_chat(chat, tokenizer, values=values)
    wanted, counts = made.tokens.tolist(), made.counts.tolist()
    turns = ChatTurns(tokenizer, tools=chat.tools or (), values=values)
    places = [n for n, one in enumerate(chat.messages) if one["role"] == "assistant"]
    driven = list(turns.request(chat.messages[: places[0]]))
    for number, place in enumerate(places):
        if number:
            try:
                driven += turns.bridge(chat.messages[places[number - 1] + 1 : place])
            except DataError as error:
                return error.what
        if wanted[: len(driven)] != driven:
            return (
                "what it writes between two answers depends on what is before them: it writes "
                + _first_difference(tokenizer.decode(driven), tokenizer.decode(wanted))
            )
        end = len(driven)
        while end < len(counts) and counts[end]:
            end += 1
        driven = wanted[:end]  # what the model writes, with what ends its turn
    return ""


def _difference(before: Answers, after: Answers, chat: Conversation) -> str:
    """Return what of a text is another one in the text of a longer conversation."""
    old, new = before.text[: before.spans[-1][1]], after.text
    at = _num_common(old, new)
    answered = [n for n, one in enumerate(chat.messages) if one["role"] == "assistant"]
    last = answered[len(before.spans) - 1]
    thoughts = [_thought(number) for number in range(len(answered))]
    shown = _first_difference(old, new)
    if any(one in old and one not in new for one in thoughts):
        return f"it drops the thinking of earlier answers: it writes {shown}"
    if at >= before.spans[-1][0]:
        what = "tool calls" if chat.messages[last].get("tool_calls") else "answers"
        return f"it changes earlier {what} once something follows: it writes {shown}"
    return f"it changes what is before an answer once something follows: it writes {shown}"


def _first_difference(old: str, new: str) -> str:
    at = _num_common(old, new)
    begin = max(0, at - _SHOWN // 3)
    dots = "..." if begin else ""
    first, second = (text[begin : at + _SHOWN] for text in (old, new))
    return f"{dots + first!r} at first, and {dots + second!r} later"


def _num_common(first: str, second: str) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(first), len(second)))
