"""Tokenizers as llama.cpp reads them: the metadata of a GGUF file that makes tokens of text.

llama.cpp has its own program for each kind of tokenizer; a tokenizer that none of them reads as it
reads text here is refused by name.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import attrs

from axcore.data.tokenizers.tokenizer import Tokenizer
from axcore.errors import ConfigError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""llama.cpp's types of tokens."""
NO_MERGES = ("▁ ▁",)
"""Merges of a vocabulary that has none, where a file must have some: of a sign that no byte is."""
_ENDS = ("eos", "eot", "eom")


@attrs.frozen(kw_only=True)
class GGUFVocabulary:
    """What llama.cpp has to know of a tokenizer.

    Args:
        model: Its program: `gpt2` for merges of bytes, `llama` for pieces with scores.
        tokens: The text of each token, as that program has it.
        types: The type of each token.
        scores: Of each piece, the best merged first; of `llama` alone.
        values: What the program reads in addition, by keys below `tokenizer.ggml`.
        note: What llama.cpp does not do, for people to know; empty if it does all.
    """

    model: str
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    values: dict[str, Any]
    scores: tuple[float, ...] = ()
    note: str = ""

    def metadata(self, tokenizer: Tokenizer, size: int) -> dict[str, Any]:
        """Return the metadata of a file whose model has so many tokens.

        Raises:
            ConfigError: The model has less tokens than the tokenizer, or a text is of two tokens.
        """
        unused = tuple(f"[PAD{i}]" for i in range(len(self.tokens), size))
        tokens, types = (*self.tokens, *unused), (*self.types, *(UNUSED for _ in unused))
        if len(tokens) > size:
            raise ConfigError(
                f"the tokenizer has {len(tokens)} tokens, and the model {size}",
                where="model.vocab_size",
            )
        twice = [text for text, count in Counter(tokens).items() if count > 1]
        if twice:
            raise unreadable(f"it has {len(twice)} texts for several tokens, {twice[0]!r} for one")
        found = {
            "model": self.model,
            "tokens": list(tokens),
            "token_type": list(types),
            **({"scores": [*self.scores, *(0.0 for _ in unused)]} if self.scores else {}),
            **self.values,
            **_token_ids(tokenizer, types),
            "add_bos_token": tokenizer.bos_id is not None,
            "add_eos_token": False,
        }
        return {f"tokenizer.ggml.{key}": value for key, value in found.items()}


def unreadable(why: str, where: str | None = None) -> ConfigError:
    """Return the error of a tokenizer that llama.cpp cannot follow."""
    return ConfigError(
        f"llama.cpp has nothing that makes the same tokens of text as this tokenizer: {why}",
        where=where or "data.tokenizer",
        hint="write the model for Hugging Face: hf:FOLDER",
    )


def byte_vocabulary() -> GGUFVocabulary:
    """Return the vocabulary of a `ByteTokenizer`: merges of bytes, of which there are none."""
    return GGUFVocabulary(
        model="gpt2",
        tokens=(*byte_signs(), "<bos>", "<eos>", "<pad>"),
        types=(*(NORMAL,) * 256, *(CONTROL,) * 3),
        values={"pre": "gpt-2", "merges": list(NO_MERGES)},
    )


def byte_signs() -> tuple[str, ...]:
    """Return the sign that each byte has in a byte-level vocabulary.

    Printable bytes of Latin-1 are themselves; the others follow from U+0100 on. Source: GPT-2's
    `encoder.json`.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


def _token_ids(tokenizer: Tokenizer, types: Sequence[int]) -> dict[str, int]:
    """Return the numbers of tokens that llama.cpp knows by what they are for."""
    ends = tokenizer.end_ids
    if len(ends) > len(_ENDS):
        raise unreadable(f"{len(ends)} tokens end a text, and a file names {len(_ENDS)}")
    found = dict(zip(_ENDS, ends, strict=False))
    if tokenizer.bos_id is not None:
        found["bos"] = tokenizer.bos_id
    if tokenizer.pad_id not in ends:
        found["padding"] = tokenizer.pad_id
    if UNKNOWN in types:
        found["unknown"] = types.index(UNKNOWN)
    return {f"{name}_token_id": number for name, number in found.items()}
