"""A conversation as tokens, and which of them the model has to write."""

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
        counts: [N] which of them the loss counts.
    """

    tokens: NDArray[np.int64]
    counts: NDArray[np.bool_]


@attrs.frozen
class Answers:
    """A conversation as text.

    Attributes:
        text: All of it.
        spans: What of it answers are, which the loss counts.
    """

    text: str
    spans: tuple[Span, ...]


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
    counts = np.zeros(len(placed.tokens), bool)
    for span in answers.spans:
        counts[placed.within(*span)] = True
    return ChatTokens(placed.tokens.astype(np.int64), counts)


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
        return Answers(whole.text, ((0, len(whole.text)),))
    _check_has(chat, role)
    wanted = [
        (place, weight != 0)
        for place, (one, weight) in enumerate(zip(chat.messages, chat.weights, strict=True))
        if one["role"] == role
    ]
    if role == "assistant" and template.marks_answers:
        return Answers(whole.text, tuple(_marked(whole, [counts for _, counts in wanted])))
    spans = [_added(chat, template, whole.text, place) for place, counts in wanted if counts]
    return Answers(whole.text, tuple(spans))


def _check_has(chat: Conversation, role: str) -> None:
    roles = [message["role"] for message in chat.messages]
    if role not in roles:
        raise DataError(
            f"The conversation has no message of {role!r}, of which the loss would count any; its "
            f"roles are {', '.join(roles)}.",
            hint="Correct or remove it, or set the source's on_bad_line='skip'.",
        )


def _marked(whole: MarkedText, counts: list[bool]) -> list[Span]:
    if all(counts):
        return list(whole.spans)
    if len(whole.spans) != len(counts):
        raise DataError(
            f"The chat template marks {len(whole.spans)} spans of {len(counts)} answers, so that "
            "it cannot be said which of them is the one of weight 0.",
            hint="Use a template with one generation block for each answer, or leave out weights.",
        )
    return [span for span, is_counted in zip(whole.spans, counts, strict=True) if is_counted]


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
