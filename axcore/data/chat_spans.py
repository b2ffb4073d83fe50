"""Which characters of a conversation the model has to write."""

import attrs

from axcore.data.chat_template import ChatTemplate, MarkedText
from axcore.data.conversation import Conversation
from axcore.errors import DataError

Span = tuple[int, int]


@attrs.frozen
class Answers:
    """A conversation as text.

    Attributes:
        text: All of it.
        spans: What of it answers are, which the loss counts.
    """

    text: str
    spans: tuple[Span, ...]


def find_answers(chat: Conversation, template: ChatTemplate, *, role: str) -> Answers:
    """Returns a conversation's text, and the spans of the messages of a role that count.

    Where a template marks what the model wrote, and the role is the model's, those marks are the
    spans. Otherwise a message's span is what the template adds with it, from the end of what it
    writes to ask for one.

    Raises:
        DataError: The template refuses the conversation, or it cannot be said where answers are.
    """
    whole = template.render_marked(chat.messages, tools=chat.tools and list(chat.tools))
    wanted = [
        (place, weight != 0)
        for place, (one, weight) in enumerate(zip(chat.messages, chat.weights, strict=True))
        if one["role"] == role
    ]
    if role == "assistant" and template.marks_answers:
        return Answers(whole.text, tuple(_marked(whole, [counts for _, counts in wanted])))
    spans = [_added(chat, template, whole.text, place) for place, counts in wanted if counts]
    return Answers(whole.text, tuple(spans))


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
