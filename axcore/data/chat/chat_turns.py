"""Conversations that are continued in tokens: what a chat template writes between two answers.

What a model sampled stays the tokens that it sampled. So the prompt of its next turn is all tokens
so far, and behind them those of the bridge: what the template writes from the end of an answer to
where the next one is asked for, the messages of others in between. That equals the text that a
server would show only where the template never changes what it has written: see
`axcore.data.chat.drivable`.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from axcore.data.chat.chat_template import Message
from axcore.data.chat.chat_tokens import tokenize_chat
from axcore.data.chat.conversation import Conversation
from axcore.data.tokenizers.tokenizer import Tokenizer
from axcore.errors import DataError

_QUESTION, _THOUGHT, _ANSWER = "One?", "Hm.", "First."
"""What is put in the place of the conversation before a bridge. It must not matter, which is
checked of a template before it is used."""


class ChatTurns:
    """Writes the tokens of conversations whose answers a model samples.

    Args:
        tokenizer: Has the chat template.
        tools: JSON schemas of functions that the model may call.
        values: What else the template reads, as `enable_thinking`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        tools: Sequence[Any] = (),
        values: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer, self._tools = tokenizer, tuple(tools) or None
        self._values = dict(values or {})
        self._answered: dict[str, tuple[list[Message], list[int]]] = {}

    def request(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the tokens of a conversation, up to where the model answers.

        Raises:
            DataError: The template refuses the conversation.
        """
        return tuple(self._tokens(messages))

    def bridge(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the tokens from behind the one that ends an answer to where the next is asked for.

        Args:
            messages: What others say in between; a message of `tool` has the `tool_call_id` and the
                `name` of its call.

        Raises:
            DataError: The template refuses them, or writes an answer in another way once they
                follow.
        """
        calls = [
            {
                "type": "function",
                "id": str(one.get("tool_call_id", "call00000")),
                "function": {"name": str(one.get("name", "call")), "arguments": {}},
            }
            for one in messages
            if one["role"] == "tool"
        ]
        answer: dict[str, Any] = {"role": "assistant", "content": "" if calls else _ANSWER}
        answer |= {"tool_calls": calls} if calls else {}
        try:
            return self._behind(answer, messages)
        # Templates that ask with an opened thinking take no answer without one, and some put an
        # empty one into the last answer.
        except DataError as error:
            with contextlib.suppress(DataError):
                return self._behind({**answer, "reasoning_content": _THOUGHT}, messages)
            raise error

    def _behind(self, answer: Message, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the tokens behind an answer that is put in the place of any other."""
        before, answered = self._ended(answer)
        tokens = self._tokens([*before, *messages])
        if tokens[: len(answered)] == answered:
            return tuple(tokens[len(answered) :])
        is_endless = tokens[: len(answered) - 1] == answered[:-1]
        raise DataError(
            "The chat template writes "
            + ("no token that ends an answer" if is_endless else "an answer in another way")
            + f" once a message of {messages[0]['role']!r} follows.",
            where=self._tokenizer.known_chat_template.where,
            hint="`axcore chat-template check` shows what differs; use another template: --set "
            "data.tokenizer.chat_template_path=FILE",
        )

    def _ended(self, answer: Message) -> tuple[list[Message], list[int]]:
        """Return a conversation with one answer, and its tokens up to the end of that."""
        key = json.dumps(answer, sort_keys=True)
        if key not in self._answered:
            self._answered[key] = self._tokens_to_end(answer)
        return self._answered[key]

    def _tokens_to_end(self, answer: Message) -> tuple[list[Message], list[int]]:
        messages: list[Message] = [{"role": "user", "content": _QUESTION}, answer]
        chat = Conversation(tuple(messages), (1.0, 1.0), self._tools)
        (made,) = tokenize_chat(chat, self._tokenizer, values=self._values)
        end = int(made.counts.nonzero()[0][-1]) + 1
        return messages, made.tokens[:end].tolist()

    def _tokens(self, messages: Sequence[Message]) -> list[int]:
        tools = self._tools and list(self._tools)
        tokens = self._tokenizer.encode_chat(messages, tools=tools, **self._values)
        found: list[int] = tokens.tolist()
        return found
