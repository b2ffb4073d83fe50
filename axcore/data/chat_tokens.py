"""A conversation as tokens, and what each weighs in the loss: those that the model has to write."""

import contextlib
from collections.abc import Iterator

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.data.chat_template import ChatTemplate, MarkedText
from axcore.data.conversation import Conversation
from axcore.data.document import Document
from axcore.data.tokenizer import Tokenizer
from axcore.errors import DataError

Span = tuple[int, int]


@attrs.frozen(eq=False)
class ChatTokens:
    """A conversation as its template writes it.

    Attributes:
        tokens: [N] int64.
        weights: [N] what each of them weighs in the loss.
    """

    tokens: NDArray[np.int64]
    weights: NDArray[np.float32]

    @property
    def counts(self) -> NDArray[np.bool_]:
        """[N] which of them the loss counts."""
        counts: NDArray[np.bool_] = self.weights != 0
        return counts


@attrs.frozen
class Answers:
    """A conversation as text.

    Attributes:
        text: All of it.
        spans: What of it answers are, which the loss counts.
        weights: What a token of each weighs.
    """

    text: str
    spans: tuple[Span, ...]
    weights: tuple[float, ...]


@contextlib.contextmanager
def naming_conversation(document: Document) -> Iterator[None]:
    """Names, in what is wrong with a conversation, the line that holds it."""
    try:
        yield
    except DataError as error:
        what = f"{document.name}: {error.what}"
        raise DataError(what, where=error.where or document.name, hint=error.hint) from error


def tokenize_chat(
    chat: Conversation, tokenizer: Tokenizer, *, role: str | None = "assistant"
) -> ChatTokens:
    """Returns the tokens of a conversation.

    Args:
        chat: The conversation.
        tokenizer: Has the chat template.
        role: Whose messages count; None for every token.

    Raises:
        DataError: It has no message of the role, the template refuses it, or it cannot be said
            where answers are.
    """
    answers = find_answers(chat, tokenizer.known_chat_template, role=role)
    placed = tokenizer.encode_placed(answers.text)
    weights = np.zeros(len(placed.tokens), np.float32)
    for span, weight in zip(answers.spans, answers.weights, strict=True):
        weights[placed.within(*span)] = weight
    return ChatTokens(placed.tokens.astype(np.int64), weights)


def find_answers(chat: Conversation, template: ChatTemplate, *, role: str | None) -> Answers:
    """Returns a conversation's text, and the spans of the messages of a role that count.

    Where a template marks what the model wrote, and the role is the model's, those marks are the
    spans. Otherwise a message's span is what the template adds with it, from the end of what it
    writes to ask for one.

    Raises:
        DataError: As `tokenize_chat`.
    """
    whole = template.render_marked(chat.messages, tools=chat.tools and list(chat.tools))
    if role is None:
        _check_has_no_weights(chat)
        return Answers(whole.text, ((0, len(whole.text)),), (1.0,))
    _check_has(chat, role)
    wanted = [
        (place, weight)
        for place, (one, weight) in enumerate(zip(chat.messages, chat.weights, strict=True))
        if one["role"] == role
    ]
    if role == "assistant" and template.marks_answers:
        return _marked(whole, [weight for _, weight in wanted])
    counted = [(place, weight) for place, weight in wanted if weight]
    spans = [_added(chat, template, whole.text, place) for place, _ in counted]
    return Answers(whole.text, tuple(spans), tuple(weight for _, weight in counted))


def _check_has(chat: Conversation, role: str) -> None:
    """Checks that some message is of a role, and that no other has a weight that would be lost."""
    roles = [message["role"] for message in chat.messages]
    if role not in roles:
        raise DataError(
            f"The conversation has no message of {role!r}, of which the loss would count any; its "
            f"roles are {', '.join(roles)}.",
            hint="Correct or remove it, or set the source's on_bad_line='skip'.",
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


def _marked(whole: MarkedText, weights: list[float]) -> Answers:
    """Returns the spans that the template marks, with the weights of the answers."""
    if len(set(weights)) == 1:
        return Answers(whole.text, whole.spans, (weights[0],) * len(whole.spans))
    if len(whole.spans) != len(weights):
        raise DataError(
            f"The chat template marks {len(whole.spans)} spans of {len(weights)} answers, so that "
            f"it cannot be said what each weighs; the answers' weights are {weights}.",
            hint="Use a template with one generation block for each answer, or leave out weights.",
        )
    return Answers(whole.text, whole.spans, tuple(weights))


def _added(chat: Conversation, template: ChatTemplate, text: str, place: int) -> Span:
    """Returns what a message adds to the text of those before it."""
    tools = chat.tools and list(chat.tools)
    before = template.render(chat.messages[:place], tools=tools, add_generation_prompt=True)
    after = template.render(chat.messages[: place + 1], tools=tools)
    if not (text.startswith(after) and after.startswith(before)):
        raise DataError(
            f"The chat template writes messages up to {place + 1} in another way than the whole "
            "conversation, so that it cannot be said which text is the answer.",
            hint="Use a template with generation blocks, or one that does not change earlier "
            "messages; or role=None, so that every token counts.",
        )
    return len(before), len(after)
