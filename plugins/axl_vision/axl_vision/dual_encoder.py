"""`DualEncoder`: a picture and a text become vectors that are close where the two belong together.

Letters: B rows, T tokens of a text, D size of the vectors that are compared.
"""

import math
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from axcore.config import REQUIRED, PositiveInt, config
from axcore.interop import CheckpointInfo
from axcore.layers import Embedding, LastToken, LearnedPosition, Linear, whole_rows
from axcore.models import Decoder, flops_per_token
from axcore.module import ModelFlops, Module, Param, entry
from axcore.tasks import Pairs
from axl_vision.encoder import ImageEncoder, Pixels, image_flops

Vectors = Float[Array, "batch dim"]


class TextEncoder(Module):
    """A stack of layers over tokens, and one vector of them."""

    @config
    class Config(Module.Config["TextEncoder"]):
        """The config of a `TextEncoder`.

        Args:
            vocab_size: Number of tokens.
            dim: Size of a token.
            decoder: The layers, with an embedding that knows positions.
            pool: Makes one vector of the tokens.
        """

        vocab_size: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        decoder: Decoder.Config = Decoder.Config(
            embedding=LearnedPosition.Config(embedding=Embedding.Config())
        )
        pool: Module.Config = LastToken.Config()

    def setup(self, cfg: Config) -> None:
        """Build the layers."""
        self.decoder = cfg.decoder.build(vocab_size=cfg.vocab_size, dim=cfg.dim)
        self.pool = cfg.pool.build(dim=cfg.dim)

    def forward(
        self, tokens: Int[Array, "batch time"], is_real: Bool[Array, "batch time"] | None = None
    ) -> Vectors:
        """Return one vector for each text.

        Args:
            tokens: Of the texts.
            is_real: Which of them are not padding; None where all count.
        """
        return self.pool(self.decoder(tokens, whole_rows(tokens, is_real)), is_real)


class DualEncoder(Module):
    """Encodes pictures and texts apart, and compares them by the angle between their vectors.

    Source: Radford et al. 2021, arXiv:2103.00020, section 2.3; with a bias: Zhai et al. 2023,
    arXiv:2303.15343, section 3.
    """

    @config
    class Config(Module.Config["DualEncoder"]):
        """The config of a `DualEncoder`.

        Args:
            image: From a picture to a vector.
            text: From tokens to a vector.
            projection_dim: D; None compares the encoders' own vectors, which then have one size.
            linear: Used for both projections where `projection_dim` is given.
            text_linear: Projects the text's vector alone, as SigLIP does, where `projection_dim` is
                None.
            scale: First value of the factor on products.
            bias: First value of what is added to them; None adds nothing.
            reads_padding: Whether padding of a text is read as its last tokens.
            published: The pretrained checkpoint that this model was read from.
        """

        image: ImageEncoder.Config = REQUIRED
        text: TextEncoder.Config = REQUIRED
        projection_dim: PositiveInt | None = None
        linear: Module.Config = Linear.Config()
        text_linear: Module.Config | None = None
        scale: float = 1 / 0.07
        bias: float | None = None
        reads_padding: bool = False
        published: CheckpointInfo | None = None

    def setup(self, cfg: Config) -> None:
        """Build the encoders and the projections; declare scale and bias."""
        self.image = cfg.image.build()
        self.text = cfg.text.build()
        if cfg.projection_dim is not None:
            out = {"out_dim": cfg.projection_dim, "axes": ("embed", None)}
            self.image_projection = cfg.linear.build(in_dim=cfg.image.dim, **out)
            self.text_projection = cfg.linear.build(in_dim=cfg.text.dim, **out)
        elif cfg.text_linear is not None:
            self.text_projection = cfg.text_linear.build(
                in_dim=cfg.text.dim, out_dim=cfg.image.dim, axes=("embed", None)
            )
        # The logarithm, so that no update makes the scale negative.
        self.log_scale = Param((), axes=(), init=math.log(cfg.scale), cast=False, decay=False)
        if cfg.bias is not None:
            self.bias = Param((), axes=(), init=cfg.bias, cast=False, decay=False)

    def forward(
        self,
        image: Pixels,
        text: Int[Array, "batch time"],
        text_mask: Bool[Array, "batch time"] | None = None,
    ) -> Pairs:
        """Return the vectors of pictures and texts, of length 1, and how they are compared."""
        return Pairs(
            self.image_vectors(image),
            self.text_vectors(text, text_mask),
            jnp.exp(self.log_scale),
            None if self.config.bias is None else self.bias,
        )

    @entry
    def image_vectors(self, image: Pixels) -> Vectors:
        """Return a vector of length 1 for each picture."""
        x = self.image(image)
        return _of_length_one(x if self.config.projection_dim is None else self.image_projection(x))

    @entry
    def text_vectors(
        self, text: Int[Array, "batch time"], text_mask: Bool[Array, "batch time"] | None = None
    ) -> Vectors:
        """Return a vector of length 1 for each text."""
        cfg = self.config
        x = self.text(text, None if cfg.reads_padding else text_mask)
        is_projected = cfg.projection_dim is not None or cfg.text_linear is not None
        return _of_length_one(self.text_projection(x) if is_projected else x)

    def flops_per_unit(self, batch: Any) -> ModelFlops | None:
        """Return the model FLOPs of a picture and its text, forward and backward."""
        if "text" not in batch.arrays:
            return None  # of other names, it is not known which array has the tokens
        length = batch.arrays["text"].shape[1]
        of_image = image_flops(self.image, self.image.num_tokens)
        # Half of all pairs of tokens are counted, as of causal attention.
        of_text = flops_per_token(self.text, length) * length
        return ModelFlops(of_image.per_unit + of_text, of_image.formula)


def _of_length_one(x: Vectors) -> Vectors:
    x32 = x.astype(jnp.float32)
    # The smallest normal number: a vector of zeros stays one, with no NaN in its gradient.
    squared = jnp.sum(x32 * x32, axis=-1, keepdims=True)
    return x32 / jnp.sqrt(jnp.maximum(squared, jnp.finfo(jnp.float32).tiny))
