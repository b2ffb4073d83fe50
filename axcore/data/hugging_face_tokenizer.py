"""Any Hugging Face `tokenizer.json`, through the `tokenizers` library."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from axcore.config import REQUIRED, PositiveInt, config
from axcore.data.tokenizer import Tokenizer, round_up_vocab
from axcore.errors import DataError


class HuggingFaceTokenizer(Tokenizer):
    """The vocabulary and the rules of a `tokenizer.json`.

    Truncation and padding that the file asks for are switched off: packing loses no token and pads
    by itself. Special tokens are never read out of the text: a document that writes `</s>` holds
    those four characters, not the end of a document.
    """

    @config
    class Config(Tokenizer.Config):
        """Which file, and which of its tokens frame a document.

        Attributes:
            path: The `tokenizer.json`, relative to the working directory.
            eos_token: The token that ends a document, as it is written in the file.
            bos_token: The token that begins a document; without one, a document's first token is
                never predicted.
            pad_token: What fills rows up; without one, `eos_token` does.
            vocab_multiple: `vocab_size` is a multiple of this.
        """

        path: str = REQUIRED
        eos_token: str | None = None
        bos_token: str | None = None
        pad_token: str | None = None
        vocab_multiple: PositiveInt = 1

    file_fields = ("path",)

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self._tokenizer = _load(cfg.path)
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        if cfg.eos_token is None:
            raise DataError(
                "The tokenizer needs the name of the token that ends a document.",
                where=cfg.path,
                hint=f"Set eos_token; {self._special_tokens()}.",
            )
        self.eos_id = self._id_of(cfg.eos_token, "eos_token")
        self.bos_id = None if cfg.bos_token is None else self._id_of(cfg.bos_token, "bos_token")
        self.pad_id = (
            self.eos_id if cfg.pad_token is None else self._id_of(cfg.pad_token, "pad_token")
        )
        self.vocab_size = round_up_vocab(max(vocabulary.values()) + 1, cfg.vocab_multiple)

    def encode_many(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """Returns the tokens of each text, without those that the file would put around it."""
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encoded]

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the text, as the file's decoder writes it."""
        numbers = [int(token) for token in tokens]
        text: str = self._tokenizer.decode(numbers, skip_special_tokens=True)
        return text

    def _id_of(self, token: str, field: str) -> int:
        number: int | None = self._tokenizer.token_to_id(token)
        if number is None:
            raise DataError(
                f"{field} is {token!r}, which is not in the tokenizer's vocabulary.",
                where=self.config.path,
                hint=f"Set {field} to a token of the file; {self._special_tokens()}.",
            )
        return number

    def _special_tokens(self) -> str:
        added = self._tokenizer.get_added_tokens_decoder().values()
        special = [repr(token.content) for token in added if token.special]
        if not special:
            return "it has no special tokens"
        return "its special tokens are " + ", ".join(special[:20])


def _load(path: str) -> Any:
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataError(
            f"The tokenizer file {path!r} does not exist; looked for {file.absolute()}.",
            hint="Set the tokenizer's path to a Hugging Face tokenizer.json.",
        )
    import tokenizers  # here, because byte-level runs have no use for it

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise DataError(
            f"The tokenizer file {path!r} is no tokenizer.json that can be read: {error}.",
            where=str(file.absolute()),
            hint="Save it again from the library that made it.",
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer
