"""Any SentencePiece `tokenizer.model`, through the `sentencepiece` library."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from axcore.config import REQUIRED, PositiveInt, config
from axcore.config.json_files import check_is_fetched
from axcore.data.tokenizers.tokenizer import Tokenizer, round_up_vocab
from axcore.errors import DataError
from axcore.extras import import_extra


class SentencePieceTokenizer(Tokenizer):
    """The pieces of a `tokenizer.model`, and the tokens that it frames documents with.

    What it calls control symbols is never read out of a text; what it calls user-defined is.
    """

    @config
    class Config(Tokenizer.Config):
        """Which file.

        Attributes:
            path: The `tokenizer.model`, relative to the working directory. Its eos ends documents;
                its bos begins them and its pad fills rows up, where it has them.
            vocab_multiple: `vocab_size` is a multiple of this.
        """

        path: str = REQUIRED
        vocab_multiple: PositiveInt = 1

    file_fields = ("path",)

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self._processor = _load(cfg.path)
        self.eos_id = self._processor.eos_id()
        if self.eos_id < 0:
            raise DataError(
                f"The tokenizer file {cfg.path!r} has no token that ends a document.",
                where=cfg.path,
                hint="Train it with an eos_id.",
            )
        self.bos_id = _present(self._processor.bos_id())
        pad_id = _present(self._processor.pad_id())
        self.pad_id = self.eos_id if pad_id is None else pad_id
        self.vocab_size = round_up_vocab(self._processor.get_piece_size(), cfg.vocab_multiple)

    @property
    def model_proto(self) -> bytes:
        """The content of the file."""
        proto: bytes = self._processor.serialized_model_proto()
        return proto

    def encode_many(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """Return the tokens of each text."""
        return [np.array(tokens, np.int32) for tokens in self._processor.encode(list(texts))]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text; numbers above the file's pieces have none."""
        pieces = self._processor.get_piece_size()
        text: str = self._processor.decode([int(one) for one in tokens if 0 <= one < pieces])
        return text

    def token_bytes(self, token: int) -> bytes | None:
        """Return the bytes of a piece; control symbols have none."""
        model = self._processor
        if not 0 <= token < model.get_piece_size():
            return None
        if model.is_control(token) or model.is_unknown(token) or model.is_unused(token):
            return None
        piece: str = model.id_to_piece(token)
        if model.is_byte(token):
            return bytes.fromhex(piece[3:5])
        return piece.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()

    def max_token_bytes(self) -> int | None:
        """Return the bytes of the text of one piece at most.

        None where an unknown text of any length is one piece, as there are no pieces of bytes.
        """
        model = self._processor
        if not any(model.is_byte(piece) for piece in range(model.get_piece_size())):
            return None
        longest = super().max_token_bytes()
        # The file's normalization composes at most three code points.
        return None if longest is None else 3 * longest


def _present(token: int) -> int | None:
    """Return a token, None for the number by which the library says that there is none."""
    return None if token < 0 else token


def _load(path: str) -> Any:
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataError(
            f"The tokenizer file {path!r} does not exist; looked for {file.absolute()}.",
            hint="Set the tokenizer's path to a SentencePiece tokenizer.model.",
        )
    check_is_fetched(file, error=DataError)
    library = import_extra(
        "sentencepiece", used_by="a SentencePiece tokenizer", error=DataError, where=path
    )
    try:
        return library.SentencePieceProcessor(model_file=str(file))
    except Exception as error:  # the library raises nothing narrower
        raise DataError(
            f"The tokenizer file {path!r} cannot be read as a SentencePiece model: {error}.",
            where=str(file.absolute()),
        ) from error
