"""`/v1/embeddings` by a dual encoder: vectors of texts and of pictures, to be compared."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from axcore.data import Text
from axcore.errors import ConfigError
from axcore.inference import EncoderInput
from axcore.module import functional
from axcore.serving import ApiModel, Embeddings, read_input
from axl_vision.dual_encoder import DualEncoder
from axl_vision.images import Image, image_feature

_BATCH = 32
"""Texts or pictures of a call. A program is made for one, and for so many."""

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

    picture = _picture(opened)
    dim = cfg.projection_dim or (cfg.text.dim if cfg.text_linear is None else cfg.image.dim)
    of_texts, of_pictures = (
        jax.jit(partial(functional, model, method=f"{kind}_vectors")) for kind in ("text", "image")
    )
    padded = partial(_padded, length=length, pad=tokenizer.pad_id)

    def embed(state: Any, found: Sequence[Tokens | EncoderInput]) -> NDArray[np.float32]:
        vectors = np.zeros((len(found), dim), np.float32)
        are_pictures = np.array([isinstance(one, EncoderInput) for one in found], bool)
        for program, arrays, places in (
            (of_texts, padded, np.flatnonzero(~are_pictures)),
            (of_pictures, _stacked, np.flatnonzero(are_pictures)),
        ):
            for begin in range(0, len(places), _BATCH):
                some = places[begin : begin + _BATCH]
                rows = 1 if len(some) == 1 else _BATCH
                made = program(state, *arrays([found[n] for n in some], rows))
                vectors[some] = made[0][: len(some)]
        return vectors

    size = min(tokenizer.vocab_size, cfg.text.vocab_size)
    return [
        Embeddings(
            encode,
            embed,
            vocab_size=size,
            max_length=length,
            dim=dim,
            part_type=Image.part_type,
            read_part=lambda part: read_input(picture, part, opened.limits),
        )
    ]


def _picture(opened: ApiModel) -> Image:
    """Return the feature that decodes pictures as in training, or as a checkpoint takes them."""
    data = None if opened.trainer is None else opened.trainer.data
    features = getattr(data, "features", {}).values()
    found = next((one for one in features if isinstance(one, Image)), None)
    return found or image_feature(opened.model.config.image).build()


def _padded(
    texts: Sequence[Tokens], rows: int, *, length: int, pad: int
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Return texts padded to one length as in training, and which tokens are theirs."""
    tokens, is_real = np.full((rows, length), pad, np.int32), np.zeros((rows, length), bool)
    for row, text in enumerate(texts):
        tokens[row, : len(text)], is_real[row, : len(text)] = text, True
    return tokens, is_real


def _stacked(pictures: Sequence[EncoderInput], rows: int) -> tuple[NDArray[np.uint8]]:
    """Return the pixels of pictures."""
    pixels = np.zeros((rows, *np.shape(pictures[0].value)), np.uint8)
    for row, picture in enumerate(pictures):
        pixels[row] = picture.value
    return (pixels,)
