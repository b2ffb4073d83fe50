"""Transforms of conversations, by the tokenizer's chat template; the loss counts the answers.

`ChatMessages` reads one conversation; `ChatPairs` and `LabelledChats` read labelled answers, for
`PreferenceData`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from axcore.config import config
from axcore.data.chat.chat_tokens import ChatTokens, naming_conversation, tokenize_chat
from axcore.data.chat.conversation import (
    EXTRAS,
    FIELDS,
    ROLES,
    Conversation,
    read_conversation,
    template_values,
)
from axcore.data.document import Document
from axcore.data.tokenizers.tokenizer import Tokenizer
from axcore.data.transforms.transform import Dropped, Transform, TransformTools
from axcore.errors import DataError

SEQUENCES = "sequences"
"""Of a document's fields, its conversations as tuples of `ChatTokens`."""

LABEL = "label"
"""Of a document's fields, whether its answer is a good one."""

_LABELLED = ("prompt", "completion", "messages", "conversations", LABEL)


class ChatMessages(Transform):
    """Makes a document of a list of messages, in OpenAI's layout or in ShareGPT's.

    What the model has to write counts; see `axcore.data.chat.chat_answers`. A message's
    `weight` is what each of its tokens weighs in the loss, 1 where it has none. Of a conversation
    whose earlier turns the chat template writes in another way later on, it makes several
    documents.
    """

    @config
    class Config(Transform.Config):
        """Where the messages are, and whose count.

        Attributes:
            field: Of the record; None for `messages` or `conversations`, whichever it has.
            role: Whose messages the loss counts; None for every token.
            roles: What messages may have as their role.
            chat_template_kwargs: What else the chat template reads, as `enable_thinking`; before
                it, what a record has under that name.
            leaves_out_unwritten: Whether thinking and messages of others that the chat template
                does not write are left out with a warning, rather than refused.
            stores_weights: Whether a token store keeps other weights than 0 and 1, with 8 bytes a
                token. In memory they are kept in any case.
        """

        field: str | None = None
        role: str | None = "assistant"
        roles: tuple[str, ...] = ROLES
        chat_template_kwargs: Mapping[str, str | int | float | bool] = {}
        leaves_out_unwritten: bool = False
        stores_weights: bool = False

    replaces_text = True
    makes_loss_mask = True

    @property
    def makes_loss_weights(self) -> bool:
        """Whether a store supports weights other than 0 and 1."""
        return self.config.stores_weights

    @property
    def fields(self) -> tuple[str, ...]:
        """The messages, where the config names their field."""
        return () if self.config.field is None else (self.config.field,)

    @property
    def optional_fields(self) -> tuple[str, ...]:
        """What may hold messages, and what belongs to them."""
        return EXTRAS if self.config.field is not None else (*FIELDS, *EXTRAS)

    def apply(self, document: Document, tools: TransformTools) -> Sequence[Document] | Dropped:
        """Return the conversation's tokens."""
        cfg = self.config
        with naming_conversation(document):
            chat = read_conversation(document.fields, field=cfg.field, roles=cfg.roles)
            values = template_values(document.fields, cfg.chat_template_kwargs)
            made = tokenize_chat(
                chat,
                tools.tokenizer,
                role=cfg.role,
                values=values,
                leaves_out_unwritten=cfg.leaves_out_unwritten,
            )
        counted = [one for one in made if one.weights[1:].any()]
        if not counted:
            return Dropped("no message counts: each has the weight 0, or no text")
        return [
            attrs.evolve(document, text="", tokens=one.tokens, loss_weights=one.weights)
            for one in counted
        ]


class ChatPairs(Transform):
    """Makes a document of one prompt with two answers, `chosen` and `rejected`.

    Each is a list of messages or a text; `prompt` may be left out where both lists begin with it.
    What counts is what the model writes behind what they share.
    """

    @config
    class Config(Transform.Config):
        """What is read.

        Attributes:
            roles: What messages may have as their role.
            chat_template_kwargs: What else the chat template reads, as `enable_thinking`; before
                it, what a record has under that name.
            leaves_out_unwritten: Whether thinking and messages of others that the chat template
                does not write are left out with a warning, rather than refused.
        """

        roles: tuple[str, ...] = ROLES
        chat_template_kwargs: Mapping[str, str | int | float | bool] = {}
        leaves_out_unwritten: bool = False

    replaces_text = True

    @property
    def fields(self) -> tuple[str, ...]:
        """Both answers."""
        return ("chosen", "rejected")

    @property
    def optional_fields(self) -> tuple[str, ...]:
        """What may be before the answers."""
        return ("prompt", *EXTRAS)

    def apply(self, document: Document, tools: TransformTools) -> Document | Dropped:
        """Return a document with both conversations."""
        record = document.fields
        with naming_conversation(document):
            prompt = _messages(record.get("prompt"), "user")
            ends = [_messages(record[name], "assistant") for name in self.fields]
            if ends[0] == ends[1]:
                raise DataError(
                    f"`chosen` and `rejected` are the same answer: {ends[0][-1:]!r:.200}.",
                    hint="Remove the record: it prefers neither.",
                )
            shared = 0 if prompt else _num_shared(*ends)
            if not prompt and not shared:
                raise DataError(
                    "There is no prompt: `chosen` and `rejected` do not begin alike.",
                    hint='Add "prompt": [{"role": "user", "content": ...}].',
                )
            made = tuple(
                answer_tokens(
                    [*prompt, *end], len(prompt) + shared, record, tools.tokenizer, self.config
                )
                for end in ends
            )
        return _document(document, made)


class LabelledChats(Transform):
    """Makes a document of a conversation whose last answer has a `label`, true or false.

    It is a list of `messages`, or a `prompt` and a `completion`, each of messages or a text.
    """

    @config
    class Config(Transform.Config):
        """What is read.

        Attributes:
            roles: What messages may have as their role.
            chat_template_kwargs: What else the chat template reads, as `enable_thinking`; before
                it, what a record has under that name.
            leaves_out_unwritten: Whether thinking and messages of others that the chat template
                does not write are left out with a warning, rather than refused.
        """

        roles: tuple[str, ...] = ROLES
        chat_template_kwargs: Mapping[str, str | int | float | bool] = {}
        leaves_out_unwritten: bool = False

    replaces_text = True

    @property
    def fields(self) -> tuple[str, ...]:
        """The label."""
        return (LABEL,)

    @property
    def optional_fields(self) -> tuple[str, ...]:
        """What may hold the conversation."""
        return (*_LABELLED[:-1], *EXTRAS)

    def apply(self, document: Document, tools: TransformTools) -> Document | Dropped:
        """Return a document with the conversation and its label."""
        record = document.fields
        with naming_conversation(document):
            if not isinstance(record[LABEL], bool):
                raise DataError(f"Field 'label' contains {record[LABEL]!r:.40}, not true or false.")
            if record.get("completion") is not None:
                prompt = _messages(record.get("prompt"), "user")
                messages = [*prompt, *_messages(record["completion"], "assistant")]
            else:
                messages = _messages(record.get("messages") or record.get("conversations"), "user")
                prompt = messages[:-1]
            made = answer_tokens(messages, len(prompt), record, tools.tokenizer, self.config)
        return _document(document, (made,), label=record[LABEL])


def _messages(found: Any, role: str) -> list[Any]:
    """Return messages, of which a text is one."""
    if found is None:
        return []
    return [{"role": role, "content": found}] if isinstance(found, str) else list(found)


def _num_shared(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return how many messages two conversations begin with alike."""
    pairs = zip(first, second, strict=False)
    return next(
        (place for place, (one, other) in enumerate(pairs) if one != other),
        min(len(first), len(second)),
    )


def answer_tokens(
    messages: Sequence[Any],
    num_before: int,
    record: Mapping[str, Any],
    tokenizer: Tokenizer,
    cfg: ChatPairs.Config | LabelledChats.Config,
) -> ChatTokens:
    """Return the tokens of a conversation of which answers from a message on count.

    Args:
        messages: Of the conversation.
        num_before: How many of them are the prompt.
        record: What holds them, and perhaps `tools` and `system`.
        tokenizer: Has the chat template.
        cfg: How they are read.

    Raises:
        DataError: They are not a conversation, or the template cannot write it as one text.
    """
    extras = {name: record[name] for name in EXTRAS if name in record}
    chat = read_conversation({"messages": messages, **extras}, roles=cfg.roles)
    num_added = len(chat.messages) - len(messages)  # a system message in front
    weights = [
        float(place >= num_before + num_added) * weight for place, weight in enumerate(chat.weights)
    ]
    if not {*weights} <= {0.0, 1.0}:
        raise DataError(
            f"Messages have the weights {list(chat.weights)}; labelled answers have 0 or 1.",
            hint="Leave the weights out: a preference is of full answers.",
        )
    chat = Conversation(chat.messages, tuple(weights), chat.tools)
    values = template_values(record, cfg.chat_template_kwargs)
    made = tokenize_chat(
        chat, tokenizer, values=values, leaves_out_unwritten=cfg.leaves_out_unwritten
    )
    if len(made) > 1:
        raise DataError(
            f"The chat template writes the answers behind the prompt as {len(made)} texts, as it "
            "changes earlier ones; a labelled answer is one text.",
            hint="Move all but the last answer into the prompt.",
        )
    if not made[0].counts[1:].any():
        raise DataError("No tokens of an answer contribute to the loss.")
    return made[0]


def _document(document: Document, made: tuple[ChatTokens, ...], **fields: Any) -> Document:
    tokens = np.concatenate([one.tokens for one in made])
    return attrs.evolve(document, text="", tokens=tokens, fields={SEQUENCES: made, **fields})
