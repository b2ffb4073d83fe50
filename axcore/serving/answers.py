"""`AnswerFormat`: how the answers to one chat are read: reasoning, text and calls."""

from collections.abc import Mapping
from typing import Any

import attrs

from axcore.data import Tokenizer
from axcore.data.chat.parsers.formats import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    AnswerReader,
    ReasoningFormat,
    ToolFormat,
    named_format,
    schemas_of,
    special_marks,
)
from axcore.serving.tools import ToolChoice, forced_format


@attrs.frozen(kw_only=True)
class ParserNames:
    """Which formats a server reads; None is that which the chat template asks for.

    Args:
        reasoning: Name of that of reasoning.
        tools: Name of that of calls.
    """

    reasoning: str | None = None
    tools: str | None = None

    def reasoning_format(self, template: str | None) -> ReasoningFormat | None:
        """Return the format of reasoning.

        Raises:
            ConfigError: There is none of the name.
        """
        return named_format(REASONING_FORMATS, self.reasoning, template, where="--reasoning-parser")

    def tool_format(self, template: str | None) -> ToolFormat | None:
        """Return the format of calls.

        Raises:
            ConfigError: There is none of the name.
        """
        return named_format(TOOL_FORMATS, self.tools, template, where="--tool-parser")


@attrs.frozen(kw_only=True)
class AnswerFormat:
    """How answers are read.

    Args:
        choice: What they may call.
        family: How the model's family writes calls, whether or not there may be some.
        reasoning: How reasoning is written; None leaves it in the text.
        tools: How calls are written; None reads none.
        special: Marks that are special tokens, by their numbers.
    """

    choice: ToolChoice
    family: ToolFormat | None
    reasoning: ReasoningFormat | None
    tools: ToolFormat | None
    special: Mapping[str, int]

    @classmethod
    def of(
        cls,
        names: ParserNames,
        tokenizer: Tokenizer,
        template: str | None,
        choice: ToolChoice,
        *,
        splits_reasoning: bool,
    ) -> "AnswerFormat":
        """Return the format of the answers to a request.

        Args:
            names: Which formats the server reads.
            tokenizer: The model's.
            template: The source of the request's chat template.
            choice: What answers may call.
            splits_reasoning: Whether reasoning is wanted apart, and a model may reason: it may not
                where a grammar says what it writes from the first token on.
        """
        family = names.tool_format(template)
        tools = family if choice.tools else None
        if choice.forced:
            tools = forced_format(family)
        reasoning = names.reasoning_format(template)
        if not splits_reasoning or choice.forced:
            reasoning = None
        special = special_marks(tokenizer, reasoning, tools)
        return cls(choice=choice, family=family, reasoning=reasoning, tools=tools, special=special)

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end an answer which makes one call at most."""
        is_open = self.choice.is_single and not self.choice.forced
        end = None if self.tools is None else self.tools.end
        return (end,) if is_open and end is not None else ()

    @property
    def visible_tokens(self) -> tuple[int, ...]:
        """Special tokens that have to be text, so that they are read."""
        return tuple(self.special.values())

    def reader(self, prompt: str, prefill: str) -> AnswerReader:
        """Return what reads one answer.

        Args:
            prompt: The text that the model continues.
            prefill: What of it the answer begins with, where a message is continued.
        """
        return AnswerReader(
            self.reasoning,
            self.tools,
            schemas=schemas_of(self._functions),
            is_open=self.reasoning is not None and self.reasoning.is_begun_by(prompt, prefill),
            max_calls=1 if self.choice.is_single else None,
        )

    @property
    def _functions(self) -> list[Any]:
        return self.choice.tools or [{"function": one} for one in self.choice.forced]
