"""`Environment`: what answers a policy between its turns, as a function of what it wrote so far."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from axcore.config import Configurable, PositiveFloat, PositiveInt, config

Message = Mapping[str, Any]
"""A turn of somebody else, as chat templates read it: its `role`, its `content`, and more."""


@attrs.frozen
class ToolCall:
    """A call of a function that the policy asks for.

    Args:
        name: Of the function.
        arguments: A JSON object, as text.
        id: What the message with the result names.
    """

    name: str
    arguments: str
    id: str


@attrs.frozen
class Turn:
    """A turn of the policy.

    Args:
        text: What it wrote, without the token that ends it.
        calls: The calls in it, where the chat template's way of writing them is known.
        is_ended: Whether the policy ended it; otherwise it was cut off, and is the last one.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    is_ended: bool = True


@attrs.frozen
class Reply:
    """What comes after a turn of the policy: more to read, or with neither of these the end.

    Args:
        text: Of the user where the prompt is a conversation; otherwise it is appended as it is.
        messages: What others say, for the chat template.
        fields: What rewards read, and the next `reply`, in addition to the fields of the prompt. A
            later reply may replace those of an earlier one.
    """

    text: str = ""
    messages: tuple[Message, ...] = ()
    fields: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def is_end(self) -> bool:
        """Whether the episode is over."""
        return not (self.text or self.messages)

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads.

        Raises:
            TypeError: The fields or messages are not JSON.
        """
        found = {"text": self.text, "messages": list(self.messages), "fields": dict(self.fields)}
        json.dumps(found)
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Reply":
        """Return the reply that was written."""
        return cls(data["text"], tuple(data["messages"]), data["fields"])


class Environment(Configurable, ABC):
    """Answers a policy between its turns.

    `reply` runs in processes of its own, under a time limit. It is a function of its arguments
    alone: an environment with a state makes it of the turns so far, or keeps it in fields. So any
    process can answer any turn, and a run that was killed resumes with the same answers.
    """

    @config
    class Config(Configurable.Config["Environment"]):
        """Describes an environment.

        Args:
            max_turns: How many turns the policy has at most.
            max_turn_tokens: Tokens of a turn of the policy at most; None for no other limit than
                `data.max_new_tokens`, which all turns and replies share.
            time_limit_s: Seconds that a reply may take.
            num_workers: Processes that reply; None takes one for each core, up to 8.
            memory_mib: Address space that each of them may use.
        """

        max_turns: PositiveInt = 8
        max_turn_tokens: PositiveInt | None = None
        time_limit_s: PositiveFloat = 30.0
        num_workers: PositiveInt | None = None
        memory_mib: PositiveInt = 8192

    config: Config

    @property
    def roles(self) -> tuple[str, ...]:
        """Whose messages its replies are: `user`, `tool`, or both."""
        return ("user",)

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """JSON schemas of the functions that the policy may call; in the prompt."""
        return ()

    def check(self) -> None:
        """Check that this machine can run it; called once, before a run begins.

        Raises:
            ConfigError: It cannot.
        """

    def start(self, prompt: str, fields: Mapping[str, Any]) -> Sequence[Message] | None:
        """Return the conversation that an episode begins with; None for the prompt as it is.

        It is called in the trainer's process, once for each prompt.

        Args:
            prompt: The prompt's text; empty where it is a conversation.
            fields: The other fields of its record, such as `messages`.
        """
        return None

    @abstractmethod
    def reply(self, prompt: str, turns: Sequence[Turn], fields: Mapping[str, Any]) -> Reply:
        """Return what comes after the last turn.

        Args:
            prompt: The prompt's text.
            turns: Those of the policy so far, one at least.
            fields: The other fields of the prompt's record, and those of replies so far.
        """


def checked_reply(value: Any, roles: Sequence[str]) -> Reply:
    """Return what an environment returned as a reply.

    A text or a list of messages continues the episode; a dict of fields ends it.

    Raises:
        TypeError: It is none of these.
        ValueError: A message has another role than the environment says, or a text is empty.
    """
    if isinstance(value, Mapping):
        value = Reply(fields=value)
    elif isinstance(value, str):
        if not value:
            raise ValueError("it returned an empty text; a dict of fields, {} too, ends an episode")
        value = Reply(text=value)
    elif isinstance(value, (list, tuple)):
        value = Reply(messages=tuple(value))
    if not isinstance(value, Reply):
        raise TypeError(
            f"it returned {value!r:.80}, a {type(value).__qualname__}; expected a text, a list of "
            "messages, a dict of fields that ends the episode, or a Reply"
        )
    if value.text and value.messages:
        raise ValueError("its reply has a text and messages; expected one of them")
    for message in value.messages:
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in roles or not isinstance(message.get("content"), str):
            raise ValueError(
                f"its reply has the message {message!r:.80}; expected an object with a text "
                f"`content` and the role {' or '.join(map(repr, roles))}"
            )
    return value
