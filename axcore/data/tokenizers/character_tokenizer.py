"""Characters by a `vocab.json`, as checkpoints of speech with a head for CTC have them."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from axcore.config import REQUIRED, config
from axcore.config.json_files import read_json
from axcore.data.tokenizers.hugging_face_tokenizer import read_settings
from axcore.data.tokenizers.tokenizer import Tokenizer
from axcore.errors import DataError

VOCABULARY, SETTINGS, SPECIAL = "vocab.json", "tokenizer_config.json", "special_tokens_map.json"
_SPECIAL_TOKEN = re.compile(r"<.+>|\[.+\]")
_SHOWN = 5

Case = Literal["written", "upper", "lower"]


class CharacterTokenizer(Tokenizer):
    """A token for each character, and one between words, as transformers' `Wav2Vec2CTCTokenizer`.

    `pad_id` is the blank of CTC. A character that the vocabulary lacks is an error, where
    transformers has one token for all of them. Special tokens have no text.
    """

    @config
    class Config(Tokenizer.Config):
        """Which file, and what its special tokens are.

        Attributes:
            path: The `vocab.json`: numbers by character.
            word_delimiter: The token between words, which is a space in texts.
            pad_token: The token that fills rows up, and that is the blank.
            bos_token: The token that begins a text, if there is one; it is not put there.
            eos_token: The token that ends a text; the pad token where there is none.
            encodes_as: The case that texts get before they become tokens.
            decodes_as: The case that texts get that were tokens.
        """

        path: str = REQUIRED
        word_delimiter: str = "|"
        pad_token: str = "<pad>"
        bos_token: str = "<s>"
        eos_token: str = "</s>"
        encodes_as: Case = "written"
        decodes_as: Case = "written"

    file_fields = ("path",)

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        numbers = _numbers(cfg.path)
        for name in ("pad_token", "word_delimiter"):
            if getattr(cfg, name) not in numbers:
                raise DataError(
                    f"the vocabulary has no {getattr(cfg, name)!r}",
                    where=f"{name} of {cfg.path}",
                    hint=f"{name} is one of {', '.join([*numbers][:_SHOWN])}, ...",
                )
        self.pad_id = numbers[cfg.pad_token]
        self.separator_id = numbers[cfg.word_delimiter]
        self.bos_id = numbers.get(cfg.bos_token)
        self.eos_id = numbers.get(cfg.eos_token, self.pad_id)
        self.vocab_size = max(numbers.values()) + 1
        self._numbers = {token: number for token, number in numbers.items() if len(token) == 1}
        self._numbers[" "] = self.separator_id
        self._texts = {number: token for token, number in self._numbers.items()}

    def encode_many(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """Return the number of each character.

        Raises:
            ValueError: The vocabulary lacks one.
        """
        return [np.array([*map(self._number, self._cased(text))], np.int32) for text in texts]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text."""
        text = "".join(self._texts.get(int(token), "") for token in tokens)
        return _in_case(text, self.config.decodes_as)

    def token_bytes(self, token: int) -> bytes | None:
        """Return the bytes of a character."""
        text = self._texts.get(token)
        return None if text is None else _in_case(text, self.config.decodes_as).encode()

    def added_token(self, name: str) -> int | None:
        """Return the number of a special token that the config names."""
        cfg: Any = self.config
        named = {cfg.pad_token: self.pad_id, cfg.bos_token: self.bos_id, cfg.eos_token: self.eos_id}
        return named.get(name)

    def _cased(self, text: str) -> str:
        return _in_case(text, self.config.encodes_as)

    def _number(self, character: str) -> int:
        number = self._numbers.get(character)
        if number is None:
            other = character.swapcase()
            hint = " (it has the other case: encodes_as)" if other in self._numbers else ""
            raise ValueError(f"the vocabulary has no {character!r}{hint}")
        return number


def _in_case(text: str, case: Case) -> str:
    if case == "written":
        return text
    return text.upper() if case == "upper" else text.lower()


def _numbers(path: str) -> dict[str, int]:
    """Return the tokens of a file.

    Raises:
        DataError: It is another kind of vocabulary.
    """
    found: dict[str, Any] = read_json(path, VOCABULARY, error=DataError)
    if any(isinstance(number, dict) for number in found.values()):
        raise DataError(
            f"the file has a vocabulary for each of {len(found)} languages",
            where=path,
            hint="write that of one language into a file of its own",
        )
    is_numbered = all(type(number) is int and number >= 0 for number in found.values())
    if not found or not is_numbered or len({*found.values()}) != len(found):
        raise DataError(
            "the file does not give each token a number of its own",
            where=path,
            hint='it has the form {"<pad>": 0, "|": 1, "A": 2}',
        )
    longer = [one for one in found if len(one) != 1 and not _SPECIAL_TOKEN.fullmatch(one)]
    if longer:
        raise DataError(
            f"the file has {len(longer)} tokens of several characters, as {longer[0]!r}",
            where=path,
            hint="add a tokenizer.json: transformers' AutoTokenizer makes one when it saves",
        )
    return found


def characters_in(folder: Path) -> CharacterTokenizer.Config:
    """Return the config of the characters in a checkpoint's folder, with its special tokens.

    Raises:
        DataError: Its files cannot be read, or have other spaces than the text between words.
    """
    paths = {name: str(folder / name) for name in (SETTINGS, SPECIAL) if (folder / name).is_file()}
    tokens = read_settings(paths.get(SETTINGS), paths.get(SPECIAL)).tokens
    values: dict[str, Any] = {}
    if SETTINGS in paths:
        values = read_json(paths[SETTINGS], SETTINGS, error=DataError)
    if (space := values.get("replace_word_delimiter_char", " ")) != " ":
        raise DataError(
            f"words are separated by {space!r} in texts, and here by a space",
            where=paths[SETTINGS],
            hint="leave out replace_word_delimiter_char",
        )
    named = {"pad_token": "pad_token", "bos_token": "bos_token", "eos_token": "eos_token"}
    named["word_delimiter"] = "word_delimiter_token"
    found: dict[str, Any] = {own: tokens[hf] for own, hf in named.items() if hf in tokens}
    if values.get("do_lower_case"):  # transformers writes capitals, and reads them as small
        found |= {"encodes_as": "upper", "decodes_as": "lower"}
    return CharacterTokenizer.Config(path=str(folder / VOCABULARY), **found)


def character_settings(tokenizer: CharacterTokenizer) -> dict[str, Any]:
    """Return what a `tokenizer_config.json` says about it; the case of texts as far as it can."""
    cfg: Any = tokenizer.config
    return {
        "tokenizer_class": "Wav2Vec2CTCTokenizer",
        "do_lower_case": (cfg.encodes_as, cfg.decodes_as) == ("upper", "lower"),
        "word_delimiter_token": cfg.word_delimiter,
        "pad_token": cfg.pad_token,
        "bos_token": cfg.bos_token,
        "eos_token": cfg.eos_token,
    }
