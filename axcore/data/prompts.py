"""Prompts as records have them: a text, a conversation or tokens, of which one is continued."""

from collections.abc import Mapping
from typing import Any

import attrs

from axcore.data.chat.conversation import FIELDS, read_conversation, template_values
from axcore.data.tokenizers.tokenizer import Tokenizer, decoded
from axcore.errors import DataError

PROMPT, PROMPT_TOKENS = "prompt", "prompt_tokens"

PROMPT_FIELDS = (PROMPT, *FIELDS, PROMPT_TOKENS)
"""Fields that hold a prompt, of which a record has one: a text, a conversation in OpenAI's layout
or in ShareGPT's, or tokens."""


@attrs.frozen
class EncodedPrompt:
    """What a model continues.

    Attributes:
        text: As people and rewards read it; of a conversation, as its chat template writes it.
        tokens: Its tokens, one at least.
    """

    text: str
    tokens: tuple[int, ...]


def encode_prompt_record(
    record: Mapping[str, Any], tokenizer: Tokenizer, *, parses_special: bool = True
) -> EncodedPrompt:
    """Return the prompt of a record.

    Args:
        record: Has one of `PROMPT_FIELDS`.
        tokenizer: Makes its tokens, and has the chat template of conversations.
        parses_special: Whether special tokens that a text writes out, as `<|im_start|>`, are these
            tokens; otherwise they are characters.

    Raises:
        DataError: It has none, several, or one that is not as it should be.
    """
    given = [name for name in PROMPT_FIELDS if record.get(name) is not None]
    if len(given) != 1:
        names = ", ".join(map(repr, given or record)) or "nothing"
        raise DataError(
            f"expected one of the fields 'prompt', 'messages' and 'prompt_tokens'; it has {names}."
        )
    found = _encoded(given[0], record, tokenizer, parses_special)
    if not found.tokens:
        raise DataError(f"the {given[0]} is empty: it has no token to continue.")
    return found


def _encoded(
    name: str, record: Mapping[str, Any], tokenizer: Tokenizer, parses_special: bool
) -> EncodedPrompt:
    value = record[name]
    if name == PROMPT_TOKENS:
        tokens = _checked_tokens(value, tokenizer.vocab_size)
        return EncodedPrompt(decoded(tokenizer, tokens), tokens)
    if name == PROMPT:
        if not isinstance(value, str):
            raise DataError(f"field 'prompt' holds {_shown(value)}, not a string.")
        check_is_unicode(value)
        encoded = tokenizer.encode_prompt(value, parses_special=parses_special)
        return EncodedPrompt(value, tuple(encoded.tolist()))
    chat = read_conversation(record, field=name)
    for message in chat.messages:
        check_is_unicode(str(message.get("content")))
    text = tokenizer.known_chat_template.render(
        chat.messages,
        add_generation_prompt=True,
        tools=chat.tools,
        **template_values(record, {}),
    )
    return EncodedPrompt(text, tuple(tokenizer.encode_rendered(text).tolist()))


def _checked_tokens(value: Any, vocab_size: int) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise DataError(f"field 'prompt_tokens' holds {_shown(value)}, not a list of tokens.")
    # A bool is an int in Python, and is not a token.
    wrong = [one for one in value if type(one) is not int or not 0 <= one < vocab_size]
    if wrong:
        raise DataError(
            f"field 'prompt_tokens' holds {_shown(wrong[0])}; tokens are whole numbers from 0 to "
            f"{vocab_size - 1}."
        )
    return tuple(value)


def check_is_unicode(text: str) -> None:
    """Check that a text can be stored.

    Raises:
        DataError: It contains half of a character.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"the text holds half of a surrogate pair, at character {error.start}."
        ) from error


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
