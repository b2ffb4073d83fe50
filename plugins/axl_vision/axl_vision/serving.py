"""`/v1/embeddings` by the text half of a dual encoder, to be compared with vectors of pictures."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from axcore.data import Text
from axcore.errors import ConfigError
from axcore.module import functional
from axcore.serving import ApiModel, Embeddings
from axl_vision.dual_encoder import DualEncoder

_BATCH = 32
"""Texts of a call. A program is made for one, and for so many."""

Tokens = NDArray[np.int32]


def endpoints(opened: ApiModel) -> list[Embeddings]:
    """Return what is answered with a dual encoder.

    Raises:
        ConfigError: The run's data have no text; or it is not known how a pretrained checkpoint
            prepares texts.
    """
    model: DualEncoder = opened.model
    cfg = model.config
    if opened.trainer is not None:
        features = getattr(opened.trainer.data, "features", {}).values()
        texts = [one for one in features if isinstance(one, Text)]
        if not texts:
            raise ConfigError("the run's data have no Text", where="data.features")
        tokenizer, length = texts[0].tokenizer, texts[0].config.length
        has_frame = texts[0].config.has_frame
    elif cfg.reads_padding:
        raise ConfigError(
            "the checkpoint's texts are changed by code of its own before they become tokens",
            where="model.reads_padding",
            hint="serve a run that was trained here, or a CLIP",
        )
    else:
        embedding: Any = cfg.text.decoder.embedding
        assert opened.tokenizer is not None
        tokenizer, length, has_frame = opened.tokenizer, embedding.max_length, True

    def encode(text: str) -> Tokens:
        tokens = tokenizer.encode(text.strip())
        return np.asarray(tokenizer.framed(tokens) if has_frame else tokens, np.int32)

    dim = cfg.projection_dim or (cfg.text.dim if cfg.text_linear is None else cfg.image.dim)
    program = jax.jit(partial(functional, model, method="text_vectors"))
    embed = partial(_vectors, program, length=length, dim=dim, pad=tokenizer.pad_id)
    size = min(tokenizer.vocab_size, cfg.text.vocab_size)
    return [Embeddings(encode, embed, vocab_size=size, max_length=length, dim=dim)]


def _vectors(
    program: Callable[..., Any],
    state: Any,
    texts: Sequence[Tokens],
    *,
    length: int,
    dim: int,
    pad: int,
) -> NDArray[np.float32]:
    """Return the vector of each text, padded to one length as in training."""
    found = np.zeros((len(texts), dim), np.float32)
    for begin in range(0, len(texts), _BATCH):
        some = texts[begin : begin + _BATCH]
        rows = 1 if len(some) == 1 else _BATCH
        tokens, is_real = np.full((rows, length), pad, np.int32), np.zeros((rows, length), bool)
        for row, text in enumerate(some):
            tokens[row, : len(text)], is_real[row, : len(text)] = text, True
        found[begin : begin + _BATCH] = program(state, tokens, is_real)[0][: len(some)]
    return found
