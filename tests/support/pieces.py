"""A SentencePiece model of a few pieces, which falls back to bytes."""

import io
from pathlib import Path
from typing import Any


def train_pieces(path: Path, **settings: Any) -> Path:
    """Writes the model; settings are the library's."""
    import sentencepiece

    model = io.BytesIO()
    usual = {
        "sentence_iterator": iter(["the text of a model", "another text, of two words"] * 20),
        "vocab_size": 300,
        "byte_fallback": True,
        "model_type": "bpe",
        "minloglevel": 2,
        "hard_vocab_limit": False,
    }
    sentencepiece.SentencePieceTrainer.train(model_writer=model, **{**usual, **settings})
    path.write_bytes(model.getvalue())
    return path
