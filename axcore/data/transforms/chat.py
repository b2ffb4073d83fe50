"""`ChatMessages`: conversations, by the tokenizer's chat template; the loss counts the answers."""

import attrs
import numpy as np

from axcore.config import config
from axcore.data.chat_spans import find_answers
from axcore.data.conversation import EXTRAS, FIELDS, ROLES, Conversation, read_conversation
from axcore.data.document import Document
from axcore.data.transforms.transform import Dropped, Transform, TransformTools
from axcore.errors import DataError


class ChatMessages(Transform):
    """Makes a document of a list of messages, in OpenAI's layout or in ShareGPT's.

    What the model has to write counts; see `axcore.data.chat_spans`. A message with a `weight` of 0
    does not count.
    """

    @config
    class Config(Transform.Config):
        """Where the messages are, and whose count.

        Attributes:
            field: Of the record; None for `messages` or `conversations`, whichever it has.
            role: Whose messages the loss counts; None for every token.
            roles: What messages may have as their role.
        """

        field: str | None = None
        role: str | None = "assistant"
        roles: tuple[str, ...] = ROLES

    replaces_text = True
    makes_loss_mask = True

    @property
    def fields(self) -> tuple[str, ...]:
        """The messages, where the config names their field."""
        return () if self.config.field is None else (self.config.field,)

    @property
    def optional_fields(self) -> tuple[str, ...]:
        """What may hold messages, and what belongs to them."""
        return EXTRAS if self.config.field is not None else (*FIELDS, *EXTRAS)

    def apply(self, document: Document, tools: TransformTools) -> Document | Dropped:
        """Returns the conversation's tokens."""
        cfg = self.config
        try:
            chat = read_conversation(document.fields, field=cfg.field, roles=cfg.roles)
            return self._tokens(document, chat, tools)
        except DataError as error:
            what = f"{document.name}: {error.what}"
            raise DataError(what, where=error.where or document.name, hint=error.hint) from error

    def _tokens(
        self, document: Document, chat: Conversation, tools: TransformTools
    ) -> Document | Dropped:
        role, tokenizer = self.config.role, tools.tokenizer
        template = tokenizer.known_chat_template
        if role is None:
            text = template.render(chat.messages, tools=chat.tools and list(chat.tools))
            spans: tuple[tuple[int, int], ...] = ((0, len(text)),)
        else:
            _check_has(chat, role)
            answers = find_answers(chat, template, role=role)
            text, spans = answers.text, answers.spans
        placed = tokenizer.encode_placed(text)
        counts = np.zeros(len(placed.tokens), bool)
        for span in spans:
            counts[placed.within(*span)] = True
        if not counts[1:].any():
            return Dropped("no message counts: each has the weight 0, or no text")
        return attrs.evolve(
            document, text="", tokens=placed.tokens.astype(np.int64), loss_mask=counts
        )


def _check_has(chat: Conversation, role: str) -> None:
    roles = [message["role"] for message in chat.messages]
    if role not in roles:
        raise DataError(
            f"The conversation has no message of {role!r}, of which the loss would count any; its "
            f"roles are {', '.join(roles)}.",
            hint="Correct or remove it, or set the source's on_bad_line='skip'.",
        )
