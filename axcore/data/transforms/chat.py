"""`ChatMessages`: conversations, by the tokenizer's chat template; the loss counts the answers."""

from typing import Any

import attrs
import numpy as np

from axcore.config import config
from axcore.data.document import Document
from axcore.data.transforms.transform import Dropped, Transform, TransformTools
from axcore.errors import DataError


class ChatMessages(Transform):
    """Makes a document of a list of messages, each with a `role` and a `content`.

    What the model has to write counts: what the template adds to the conversation with each
    message of `role`, after what it writes to ask for one.
    """

    @config
    class Config(Transform.Config):
        """Where the messages are, and whose count.

        Attributes:
            field: Of the record.
            role: Whose messages the loss counts; None for every token.
        """

        field: str = "messages"
        role: str | None = "assistant"

    replaces_text = True
    makes_loss_mask = True

    @property
    def fields(self) -> tuple[str, ...]:
        """The messages."""
        return (self.config.field,)

    def apply(self, document: Document, tools: TransformTools) -> Document | Dropped:
        """Returns the conversation's tokens."""
        messages = self._messages(document)
        tokens = tools.tokenizer.encode_chat(messages, add_generation_prompt=False)
        counts = np.full(len(tokens), self.config.role is None)
        for place, message in enumerate(messages):
            if message["role"] == self.config.role:
                begin = tools.tokenizer.encode_chat(messages[:place], add_generation_prompt=True)
                end = tools.tokenizer.encode_chat(
                    messages[: place + 1], add_generation_prompt=False
                )
                self._check_is_prefix(document, tokens, begin, end)
                counts[len(begin) : len(end)] = True
        if not counts[1:].any():
            return Dropped(f"no message of {self.config.role!r}")
        return attrs.evolve(document, text="", tokens=tokens.astype(np.int64), loss_mask=counts)

    def _messages(self, document: Document) -> list[dict[str, Any]]:
        messages: Any = document.fields[self.config.field]
        is_list = isinstance(messages, list) and bool(messages)
        if not is_list or not all(isinstance(one, dict) and "role" in one for one in messages):
            raise DataError(
                f"Field {self.config.field!r} of {document.name} holds no messages with roles.",
                where=document.name,
                hint='Each is an object such as {"role": "user", "content": "Hello"}.',
            )
        return list(messages)

    def _check_is_prefix(self, document: Document, tokens: Any, *prefixes: Any) -> None:
        """Checks that a template writes the first messages as it does where others follow."""
        for prefix in prefixes:
            if not np.array_equal(tokens[: len(prefix)], prefix):
                raise DataError(
                    f"The chat template writes a part of {document.name} in another way than the "
                    "whole, so that it cannot be said which tokens are answers.",
                    where=document.name,
                    hint="Use a template that does not change earlier messages, or role=None.",
                )
