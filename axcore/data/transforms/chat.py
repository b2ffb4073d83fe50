"""`ChatMessages`: conversations, by the tokenizer's chat template; the loss counts the answers."""

from collections.abc import Mapping, Sequence

import attrs

from axcore.config import config
from axcore.data.chat_tokens import naming_conversation, tokenize_chat
from axcore.data.conversation import (
    EXTRAS,
    FIELDS,
    ROLES,
    read_conversation,
    template_values,
)
from axcore.data.document import Document
from axcore.data.transforms.transform import Dropped, Transform, TransformTools


class ChatMessages(Transform):
    """Makes a document of a list of messages, in OpenAI's layout or in ShareGPT's.

    What the model has to write counts; see `axcore.data.chat_answers`. A message's `weight` is what
    each of its tokens weighs in the loss, 1 where it has none. Of a conversation whose earlier
    turns the chat template writes in another way later on, it makes several documents.
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
        """Whether a store has room for weights other than 0 and 1."""
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
        """Returns the conversation's tokens."""
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
