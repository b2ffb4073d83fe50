"""A conversation as tokens, and what each weighs in the loss: those that the model has to write."""

import contextlib
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.data.chat.chat_answers import Answers, find_answers
from axcore.data.chat.conversation import Conversation
from axcore.data.document import Document
from axcore.data.tokenizers.tokenizer import PlacedTokens, Tokenizer
from axcore.errors import DataError


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


@contextlib.contextmanager
def naming_conversation(document: Document) -> Iterator[None]:
    """Name, in what is wrong with a conversation, the line that contains it."""
    try:
        yield
    except DataError as error:
        what = f"{document.name}: {error.what}"
        raise DataError(what, where=error.where or document.name, hint=error.hint) from error


def tokenize_chat(
    chat: Conversation,
    tokenizer: Tokenizer,
    *,
    role: str | None = "assistant",
    values: Mapping[str, Any] | None = None,
    leaves_out_unwritten: bool = False,
) -> tuple[ChatTokens, ...]:
    """Return the tokens of a conversation: one sequence, or several where its template needs it.

    Args:
        chat: The conversation.
        tokenizer: Has the chat template.
        role: Whose messages count; None for every token.
        values: What else the template reads.
        leaves_out_unwritten: As `find_answers`.

    Raises:
        DataError: As `find_answers`.
    """
    found = find_answers(
        chat,
        tokenizer.known_chat_template,
        role=role,
        values=values,
        leaves_out_unwritten=leaves_out_unwritten,
    )
    return tuple(_tokens(one, tokenizer) for one in found)


def _tokens(answers: Answers, tokenizer: Tokenizer) -> ChatTokens:
    text, begins = answers.text, [begin for begin, _ in answers.spans]
    placed = _placed(text, begins if answers.ends_turns else [], tokenizer)
    weights = np.zeros(len(placed.tokens), np.float32)
    for (begin, end), weight in zip(answers.spans, answers.weights, strict=True):
        within = placed.within(begin, end)
        if answers.ends_turns:
            within = _turn(placed, within, text, tokenizer)
        weights[within] = weight
    tokens = placed.tokens.astype(np.int64)
    # Only where the last answer has no end already;
    # two would teach the model to continue after one.
    if answers.ends_turns and not np.isin(tokens[weights != 0][-1:], tokenizer.end_ids).all():
        # The template writes no end, as the next message begins with it, and there is none.
        tokens = np.append(tokens, tokenizer.eos_id)
        weights = np.append(weights, answers.weights[-1]).astype(np.float32)
    return ChatTokens(tokens, weights)


def _turn(placed: PlacedTokens, within: slice, text: str, tokenizer: Tokenizer) -> slice:
    """Return an answer's tokens up to the one that ends its turn.

    Templates write a line end after that, which no model comes to write; and some leave the token
    to what comes next, where the next message begins with it.
    """
    are_ends = np.isin(placed.tokens, tokenizer.end_ids)
    ends = np.flatnonzero(are_ends[within])
    if ends.size:
        last = within.start + int(ends[-1])
        # White space behind the end token is the template's, not the answer's.
        if not text[placed.ends[last] : placed.ends[within.stop - 1]].strip():
            return slice(within.start, last + 1)
    is_next = within.stop < len(are_ends) and are_ends[within.stop]
    return slice(within.start, within.stop + int(is_next))


def _placed(text: str, begins: list[int], tokenizer: Tokenizer) -> PlacedTokens:
    """Return the tokens of a text, none of which is of a prompt and of an answer at once.

    A server reads the prompt without the answer, so that the model begins behind its last token. A
    token across that border would never be asked for.
    """
    placed = tokenizer.encode_placed(text)
    # Read whole at first: most borders are between two tokens, and the text need not be cut.
    borders = [begin for begin in begins if _is_crossed(placed, begin)]
    if not borders:
        return placed
    places = [0, *borders, len(text)]
    parts = [tokenizer.encode_placed(text[a:b]) for a, b in pairwise(places)]
    parted = PlacedTokens(
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.begins + a for part, a in zip(parts, places, strict=False)]),
        np.concatenate([part.ends + a for part, a in zip(parts, places, strict=False)]),
    )
    # Tokenizers that put a space in front of a text cannot read it in parts.
    is_same = tokenizer.decode(parted.tokens) == tokenizer.decode(placed.tokens)
    return parted if is_same else placed


def _is_crossed(placed: PlacedTokens, place: int) -> bool:
    first = placed.within(place, place + 1).start
    return first < len(placed.tokens) and bool(placed.begins[first] < place)
