"""Text to token numbers and back; the byte tokenizer, which needs no vocabulary file."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from numbers import Integral
from typing import Any, ClassVar

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.config import Configurable, PositiveInt, config
from axcore.data.chat.chat_template import ChatTemplate, Message
from axcore.errors import DataError
from axcore.plugins import attributed, wrong_method_return

_SPECIAL = {"<|begin|>": 256, "<|end|>": 257}
"""How a chat template writes the special tokens of bytes."""

_BYTE_TEMPLATE = """{{ bos_token }}
{%- if tools %}
    {{- '<tools>\n' + tools | tojson + '\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<' + message.role + '>\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
            {{- message.content or '' }}
            {%- if message.tool_calls %}
                {{- '<calls>' + message.tool_calls | tojson }}
            {%- endif %}
            {{- eos_token }}
        {%- endgeneration %}
        {{- '\n' }}
    {%- else %}
        {{- message.content + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<assistant>\n' }}
{%- endif %}"""


@attrs.frozen(eq=False)
class PlacedTokens:
    """Tokens of a text, and the characters that each of them is of.

    Attributes:
        tokens: [N] int32.
        begins: [N] the first character of each.
        ends: [N] the character after its last.
    """

    tokens: NDArray[np.int32]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]

    def within(self, begin: int, end: int) -> slice:
        """Return which tokens hold characters from `begin` to before `end`."""
        first = int(np.searchsorted(self.ends, begin, side="right"))
        return slice(first, max(first, int(np.searchsorted(self.begins, end, side="left"))))


class Tokenizer(Configurable, ABC):
    """Numbers for text.

    Attributes:
        vocab_size: One more than the largest token number.
        bos_id: What every document begins with, or None.
        eos_id: What every document ends with.
        end_ids: What ends a text that a model writes: `eos_id` and, of some models, others.
        file_fields: Fields of the config that are paths of files; a run keeps a copy of each.
        pad_id: What fills rows up; its loss weight is 0.
    """

    file_fields: ClassVar[tuple[str, ...]] = ()
    vocab_size: int
    bos_id: int | None
    eos_id: int
    pad_id: int

    @property
    def end_ids(self) -> tuple[int, ...]:  # noqa: D102 - an attribute
        return (self.eos_id,)

    @abstractmethod
    def encode_many(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """Return the tokens of each text, [N] integers, with nothing added to them."""

    @abstractmethod
    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens; special tokens have no text."""

    def token_bytes(self, token: int) -> bytes | None:
        """Return the bytes that a token adds to a text.

        None for special tokens, numbers that are not tokens, and tokenizers that do not know it.
        """
        return None

    def added_token(self, name: str) -> int | None:
        """Return the number of the token that is always one token, as `<|im_end|>`; None without.

        A special one has no text: `token_bytes` of it is None.
        """
        return None

    def special_tokens(self) -> tuple[int, ...]:
        """Return the tokens that have no text, as far as they are known."""
        return ()

    def token_name(self, token: int) -> str | None:
        """Return how a token is written, special ones as `<|im_end|>`; None where nobody knows."""
        return None

    def max_token_bytes(self) -> int | None:
        """Return the bytes of the text of one token at most; None where nobody knows."""
        known = (self.token_bytes(token) for token in range(self.vocab_size))
        return max((len(one) for one in known if one), default=0) or None

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the tokens of a text, [N] int32, with nothing added to them."""
        return self._encoded([text])[0].astype(np.int32)

    def encode_prompt(self, text: str, *, parses_special: bool = False) -> NDArray[np.int32]:
        """Return the tokens of a document's beginning: bos, where there is one, and the text.

        Args:
            text: The text; one that begins with bos gets no other.
            parses_special: Whether special tokens that it writes out are these tokens, as in a text
                that a chat template rendered; otherwise they are characters.
        """
        tokens = self.encode_written(text) if parses_special else self.encode(text)
        before = self._before()
        return tokens if [*before] == [*tokens[:1]] else np.concatenate([before, tokens])

    def encode_written(self, text: str) -> NDArray[np.int32]:
        """Return the tokens of a text in which special tokens may be written out, as in templates.

        A tokenizer of which none is ever written reads them as text.
        """
        return self.encode(text)

    def encode_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **values: Any
    ) -> NDArray[np.int32]:
        """Return the tokens of a conversation, as its chat template writes it.

        Args:
            messages: The turns, the first one first; see `ChatTemplate.render`.
            add_generation_prompt: Whether the model is to answer.
            **values: What else the template reads.

        Raises:
            DataError: The tokenizer has no chat template, or it refuses the conversation.
        """
        text = self.known_chat_template.render(
            messages, add_generation_prompt=add_generation_prompt, **values
        )
        return self.encode_rendered(text)

    def encode_rendered(self, text: str) -> NDArray[np.int32]:
        """Return the tokens of a text that the chat template wrote."""
        return self.encode_placed(text).tokens

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The template of its conversations, if it has one."""
        return None

    @property
    def known_chat_template(self) -> ChatTemplate:
        """The template of its conversations.

        Raises:
            DataError: It has none.
        """
        template = self.chat_template
        if template is None:
            raise DataError(
                f"A {type(self).__name__} has no chat template.",
                hint="Use a HuggingFaceTokenizer with settings_path or chat_template_path.",
            )
        return template

    def encode_placed(self, text: str) -> PlacedTokens:
        """Return the tokens of a text in which special tokens are written out, and their places.

        A tokenizer with a chat template has this.
        """
        raise DataError(f"A {type(self).__name__} does not read special tokens out of a text.")

    def encode_documents(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """Return each text's tokens between bos, where there is one, and eos.

        The numbers are unsigned and of the narrowest width that holds the vocabulary.
        """
        self._check_numbers()
        dtype = np.min_scalar_type(self.vocab_size - 1)
        before, after = self._before(), np.array([self.eos_id], np.int32)
        return [
            np.concatenate([before, tokens, after], dtype=dtype, casting="unsafe")
            for tokens in self._encoded(texts)
        ]

    def framed(self, tokens: NDArray[Any]) -> NDArray[Any]:
        """Return tokens between bos, where there is one, and eos."""
        return np.concatenate([self._before(), tokens, [self.eos_id]], dtype=tokens.dtype)

    def _encoded(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """Return what `encode_many` does, which somebody else may have written, checked."""
        with attributed(self, "encode_many"):
            encoded = self.encode_many(texts)
        if not isinstance(encoded, list) or len(encoded) != len(texts):
            expected = f"a list of {len(texts)} arrays, one for each text"
            raise wrong_method_return(self, "encode_many", encoded, expected)
        for tokens in encoded:
            is_array = isinstance(tokens, np.ndarray) and tokens.ndim == 1
            if not is_array or not np.issubdtype(tokens.dtype, np.integer):
                expected = "a list of arrays [N] of integers"
                raise wrong_method_return(self, "encode_many", tokens, expected)
            # XLA clamps an index out of range: such a token would train another one's row.
            if len(tokens) and not 0 <= tokens.min() <= tokens.max() < self.vocab_size:
                expected = f"tokens from 0 to {self.vocab_size - 1}, below its vocab_size"
                raise wrong_method_return(self, "encode_many", tokens, expected)
        return encoded

    def _check_numbers(self) -> None:
        """Check the numbers of its own that a tokenizer of somebody else gives."""
        with attributed(self, "vocab_size"):
            size: object = self.vocab_size
        if not isinstance(size, Integral) or int(size) < 1:
            raise wrong_method_return(self, "vocab_size", size, "a number above 0", verb="is")
        for name in ("eos_id", "bos_id"):
            number: object = getattr(self, name)
            is_left_out = name == "bos_id" and number is None
            if not is_left_out and not (
                isinstance(number, Integral) and 0 <= int(number) < int(size)
            ):
                expected = f"a number from 0 to {int(size) - 1}, below its vocab_size"
                raise wrong_method_return(self, name, number, expected, verb="is")

    def _before(self) -> NDArray[np.int32]:
        return np.array([] if self.bos_id is None else [self.bos_id], np.int32)


def decoded(tokenizer: Tokenizer, tokens: Iterable[int]) -> str:
    """Return what `decode` does, which somebody else may have written, checked."""
    with attributed(tokenizer, "decode"):
        text: object = tokenizer.decode(tokens)
    if not isinstance(text, str):
        raise wrong_method_return(tokenizer, "decode", text, "text")
    return text


def round_up_vocab(size: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `size`."""
    return -(-size // multiple) * multiple


class ByteTokenizer(Tokenizer):
    """A token for each byte of UTF-8: 0 to 255 the bytes, 256 bos, 257 eos, 258 pad, then others.

    Its chat template writes `<user>`, a line end and the text for each message; an answer ends with
    eos. What it writes up to the first answer has no special token but bos.
    """

    @config
    class Config(Tokenizer.Config):
        """The vocabulary has 259 tokens, rounded up.

        Attributes:
            vocab_multiple: `vocab_size` is a multiple of this, so that embeddings divide over
                devices. The numbers behind the last token are unused.
            special_tokens: Tokens of their own from 259 on, as `<image>`; a text that a chat
                template wrote has them by these names.
        """

        vocab_multiple: PositiveInt = 8
        special_tokens: tuple[str, ...] = ()

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self.bos_id, self.eos_id, self.pad_id = 256, 257, 258
        added = {name: 259 + place for place, name in enumerate(cfg.special_tokens)}
        self._special = {**_SPECIAL, **added}
        self.vocab_size = round_up_vocab(259 + len(added), cfg.vocab_multiple)

    def encode_many(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """Return the bytes of each text."""
        return [np.frombuffer(text.encode("utf-8"), np.uint8) for text in texts]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of the bytes; bytes that are not UTF-8 become U+FFFD."""
        return bytes(int(t) for t in tokens if 0 <= t < 256).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes | None:
        """Return the byte that a token is."""
        return bytes([token]) if 0 <= token < 256 else None

    def added_token(self, name: str) -> int | None:
        """Return the number of a special token, as the chat template writes it."""
        return self._special.get(name)

    def special_tokens(self) -> tuple[int, ...]:
        """Return the tokens that are not bytes."""
        return tuple(self._special.values())

    def token_name(self, token: int) -> str | None:
        """Return how a special token is written."""
        return {number: name for name, number in self._special.items()}.get(token)

    def max_token_bytes(self) -> int | None:
        """Return the length of the longest special token, as it is written."""
        return max(map(len, self._special))

    def encode_written(self, text: str) -> NDArray[np.int32]:
        """Return the tokens of a text in which special tokens may be written out."""
        return self.encode_placed(text).tokens

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The template of its conversations."""
        begin, end = _SPECIAL
        roles = {"bos_token": begin, "eos_token": end}
        return ChatTemplate(_BYTE_TEMPLATE, roles, where="the chat template of bytes")

    def encode_placed(self, text: str) -> PlacedTokens:
        """Return the tokens of a text in which special tokens are written out, placed."""
        tokens, begins, ends = [], [], []
        place = 0
        for piece in re.split("(" + "|".join(map(re.escape, self._special)) + ")", text):
            if piece in self._special:
                tokens.append(np.array([self._special[piece]]))
                begins.append(np.array([place]))
                ends.append(np.array([place + len(piece)]))
            else:
                tokens.append(self.encode_many([piece])[0])
                lengths = [len(character.encode()) for character in piece]
                begins.append(place + np.repeat(np.arange(len(piece)), lengths))
                ends.append(begins[-1] + 1)
            place += len(piece)
        return PlacedTokens(
            np.concatenate(tokens, dtype=np.int32),
            np.concatenate(begins, dtype=np.int64),
            np.concatenate(ends, dtype=np.int64),
        )
