"""The formats of calls and of reasoning that are known, and which a chat template asks for."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from axcore.data.chat.parsers import json_calls, reasoning, tagged_calls
from axcore.data.chat.parsers.pieces import BrokenCall, CallPart, Piece, PieceSteps, Reasoning
from axcore.data.chat.parsers.scanner import PieceReader, Scanner
from axcore.data.tokenizers.tokenizer import Tokenizer
from axcore.errors import ConfigError


@attrs.frozen(kw_only=True)
class ToolFormat:
    """How a family of models writes calls of tools.

    Args:
        name: What users call it.
        signs: Texts of which a chat template has all where its models write calls so.
        marks: What calls are written with; those that are special tokens are made text.
        read: Yields the pieces of a text, given the schema of each function's arguments.
        end: What ends a call, which is read without it too; None where nothing is so.
    """

    name: str
    signs: tuple[str, ...]
    marks: tuple[str, ...]
    read: Callable[[Scanner, Mapping[str, Mapping[str, Any]]], PieceSteps]
    end: str | None = None


@attrs.frozen(kw_only=True)
class ReasoningFormat:
    """How a family of models writes what it thinks.

    Args:
        name: What users call it.
        signs: Texts of which a chat template has all where its models write so.
        marks: What reasoning is written with; those that are special tokens are made text.
        read: Yields the pieces of a text.
        begin: What a prompt ends with that has begun the reasoning.
        end: What ends the reasoning.
    """

    name: str
    signs: tuple[str, ...]
    marks: tuple[str, ...]
    read: reasoning.ReasoningSteps
    begin: str
    end: str

    def is_begun_by(self, prompt: str, prefill: str = "") -> bool:
        """Return whether a prompt has begun the reasoning.

        Args:
            prompt: The text that the model continues. Its end alone is looked at, as a question
                may write the mark, too.
            prefill: What of it the answer begins with, where a message is continued.
        """
        begin = self.begin.rstrip()
        return prompt.rstrip().endswith(begin) or prefill.rfind(begin) > prefill.rfind(self.end)


_HARMONY = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>")
_KIMI = tuple(
    f"<|tool_{one}|>"
    for one in ("calls_section_begin", "call_begin", "call_argument_begin", "call_end")
)

# The first whose signs a template has is taken, so those with more in common come first.
TOOL_FORMATS = (
    ToolFormat(
        name="gpt-oss",
        signs=("<|channel|>", "functions."),
        marks=_HARMONY,
        read=json_calls.harmony_calls,
    ),
    ToolFormat(
        name="deepseek-dsml",
        signs=(tagged_calls.DSML,),
        marks=(tagged_calls.DSML,),
        read=tagged_calls.deepseek_dsml,
    ),
    ToolFormat(
        name="deepseek",
        signs=(json_calls.DEEPSEEK_MARKS[1],),
        marks=json_calls.DEEPSEEK_MARKS,
        read=json_calls.deepseek,
        end=json_calls.DEEPSEEK_MARKS[3],
    ),
    ToolFormat(
        name="kimi",
        signs=("<|tool_call_begin|>",),
        marks=(*_KIMI, "<|tool_calls_section_end|>"),
        read=json_calls.kimi,
        end=_KIMI[3],
    ),
    ToolFormat(
        name="glm",
        signs=("<tool_call>", "<arg_key>"),
        marks=(
            *("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>"),
            "</arg_value>",
        ),
        read=tagged_calls.glm,
    ),
    ToolFormat(
        name="qwen-coder",
        signs=("<function=", "<parameter="),
        marks=("<tool_call>", "</tool_call>"),
        read=tagged_calls.qwen_coder,
        end="</tool_call>",
    ),
    ToolFormat(
        name="hermes",
        signs=("<tool_call>",),
        marks=("<tool_call>", "</tool_call>"),
        read=json_calls.hermes,
        end="</tool_call>",
    ),
    ToolFormat(
        name="mistral",
        signs=("[TOOL_CALLS]",),
        marks=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        read=json_calls.mistral,
    ),
    ToolFormat(
        name="gemma",
        signs=("<|tool_call>",),
        marks=("<|tool_call>", "<tool_call|>", '<|"|>'),
        read=tagged_calls.gemma,
        end="<tool_call|>",
    ),
    ToolFormat(
        name="function-gemma",
        signs=("<start_function_call>",),
        marks=("<start_function_call>", "<end_function_call>", "<escape>"),
        read=tagged_calls.function_gemma,
        end="<end_function_call>",
    ),
    ToolFormat(
        name="pythonic",
        signs=("python", "[func_name1("),
        marks=("<|python_start|>", "<|python_end|>"),
        read=tagged_calls.pythonic,
    ),
    ToolFormat(
        name="llama",
        signs=('"parameters"', "python"),
        marks=("<|python_tag|>",),
        read=json_calls.whole_json,
    ),
)


def _between(name: str, begin: str, end: str, *, sign: str | None = None) -> ReasoningFormat:
    return ReasoningFormat(
        name=name,
        signs=(sign or begin,),
        # A mark may be longer than its token, as Gemma's with the name of a channel.
        marks=(begin.partition("thought")[0], end),
        read=reasoning.between(begin, end),
        begin=begin,
        end=end,
    )


REASONING_FORMATS = (
    ReasoningFormat(
        name="gpt-oss",
        signs=("<|channel|>", "analysis"),
        marks=(*_HARMONY, "<|return|>"),
        read=reasoning.harmony,
        begin="<|channel|>analysis<|message|>",
        end="<|end|>",
    ),
    _between("mistral", "[THINK]", "[/THINK]"),
    _between("gemma", "<|channel>thought\n", "<channel|>", sign="<|channel>"),
    _between("seed", "<seed:think>", "</seed:think>"),
    # A template that only removes the thinking of earlier answers names the second mark alone.
    _between("think", "<think>", "</think>", sign="</think>"),
)

HERMES, LLAMA = (
    next(one for one in TOOL_FORMATS if one.name == name) for name in ("hermes", "llama")
)
"""By which calls are forced: between marks, and by JSON alone."""

Format = TypeVar("Format", ToolFormat, ReasoningFormat)
NONE = "none"
"""What users call no format."""


def named_format(
    formats: Sequence[Format], name: str | None, template: str | None, *, where: str
) -> Format | None:
    """Return the format of a name, or the one that a chat template asks for; None without.

    Args:
        formats: Those that there are.
        name: Of the format; None chooses by the template.
        template: The source of the template.
        where: What the name was given by, for errors.

    Raises:
        ConfigError: There is no format of the name.
    """
    if name is None:
        signs = template or ""
        return next((one for one in formats if all(sign in signs for sign in one.signs)), None)
    if name == NONE:
        return None
    found = next((one for one in formats if one.name == name), None)
    if found is None:
        raise ConfigError(
            f"there is no format {name!r}",
            where=where,
            hint=f"take one of {', '.join([*(one.name for one in formats), NONE])}",
        )
    return found


def special_marks(
    tokenizer: Tokenizer, *formats: ToolFormat | ReasoningFormat | None
) -> dict[str, int]:
    """Return the numbers of the marks of formats that are special tokens, which have no text."""
    marks = (mark for one in formats if one is not None for mark in one.marks)
    numbers = {mark: tokenizer.added_token(mark) for mark in marks}
    return {
        mark: number
        for mark, number in numbers.items()
        if number is not None and tokenizer.token_bytes(number) is None
    }


def schemas_of(tools: Sequence[Any]) -> dict[str, Mapping[str, Any]]:
    """Return the schema of the arguments of each function, by its name."""
    functions = [one["function"] for one in tools]
    return {one["name"]: one.get("parameters") or {} for one in functions}


class AnswerReader:
    """Splits an answer into reasoning, text and calls as it comes.

    Args:
        reasoning: How reasoning is written; None splits off none.
        tools: How calls are written; None reads none.
        schemas: Of the arguments of each function.
        is_open: Whether the prompt has begun the reasoning.
        max_calls: Calls that are read; what follows them is dropped. None reads all.

    Attributes:
        num_reasoning_tokens: Tokens of reasoning so far, those of its marks included.
    """

    def __init__(
        self,
        reasoning: ReasoningFormat | None = None,
        tools: ToolFormat | None = None,
        *,
        schemas: Mapping[str, Mapping[str, Any]] | None = None,
        is_open: bool = False,
        max_calls: int | None = None,
    ) -> None:
        self._reasoning: PieceReader[Piece] | None = None
        self._tools: PieceReader[Piece] | None = None
        if reasoning is not None:
            self._reasoning = PieceReader(lambda scanner: reasoning.read(scanner, is_open))
        if tools is not None:
            self._tools = PieceReader(lambda scanner: tools.read(scanner, schemas or {}))
        self._max_calls, self._num_calls = max_calls, 0
        self.num_reasoning_tokens = 0
        # Tokens of which nothing is known yet, such as those of a mark.
        self._num_held, self._is_reasoning = 0, False

    def read(self, text: str, num_tokens: int = 0) -> list[Piece]:
        """Return what is known after more text, in order.

        Args:
            text: The text.
            num_tokens: Its tokens; one at a time, so that those of reasoning are counted right.
        """
        if self._reasoning is None:
            return self._calls_in([text] if text else [])
        pieces = self._reasoning.read(text)
        self._count(pieces, num_tokens)
        return self._calls_in(pieces)

    def finish(self) -> list[Piece]:
        """Return what is left at the end of the answer."""
        pieces: list[Piece] = []
        if self._reasoning is not None:
            pieces = self._reasoning.finish()
            self._count(pieces, 0)
            self.num_reasoning_tokens += self._num_held if self._is_reasoning else 0
            self._num_held = 0
        found = self._calls_in(pieces)
        return found if self._tools is None else found + self._kept(self._tools.finish())

    def _count(self, pieces: Sequence[Piece], num_tokens: int) -> None:
        if not pieces:
            self._num_held += num_tokens
            return
        if any(isinstance(one, Reasoning) for one in pieces):
            self.num_reasoning_tokens += self._num_held + num_tokens
        elif self._is_reasoning:  # the mark that ended it
            self.num_reasoning_tokens += self._num_held
        self._num_held, self._is_reasoning = 0, isinstance(pieces[-1], Reasoning)

    def _calls_in(self, pieces: Sequence[Piece]) -> list[Piece]:
        if self._tools is None:
            return [*pieces]
        found: list[Piece] = []
        for one in pieces:
            found += self._kept(self._tools.read(one)) if isinstance(one, str) else [one]
        return found

    def _kept(self, pieces: Sequence[Piece]) -> list[Piece]:
        kept: list[Piece] = []
        for one in pieces:
            if self._max_calls is None or self._num_calls < self._max_calls:
                kept.append(one)
            self._num_calls += isinstance(one, CallPart) and one.is_whole
        return kept


def merged(pieces: Sequence[Piece]) -> list[Piece]:
    """Return pieces without their cuts: texts that follow one another as one, calls as a whole.

    A call that was none is text, all of it.
    """
    found: list[list[Piece]] = []
    for one in pieces:
        last = found[-1][-1] if found else None
        if isinstance(one, BrokenCall):
            if isinstance(last, CallPart) and not last.is_whole:
                found.pop()
                last = found[-1][-1] if found else None
            one = one.text
        continues = type(one) is type(last) and not (isinstance(last, CallPart) and last.is_whole)
        if continues:
            found[-1].append(one)
        elif one != "":
            found.append([one])
    return [_joined(parts) for parts in found]


def _joined(parts: Sequence[Piece]) -> Piece:
    first = parts[0]
    if isinstance(first, str):
        return "".join(one for one in parts if isinstance(one, str))
    if isinstance(first, Reasoning):
        return Reasoning("".join(one.text for one in parts if isinstance(one, Reasoning)))
    calls = [one for one in parts if isinstance(one, CallPart)]
    arguments = "".join(one.arguments for one in calls)
    return attrs.evolve(calls[0], arguments=arguments, is_whole=calls[-1].is_whole)
