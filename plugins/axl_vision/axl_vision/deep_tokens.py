"""`DeepImageTokens`: soft tokens of pictures, and what inner layers of the encoder saw of them.

A soft token is as long as several tokens of the language model. The first of them is in the row in
the place of a token; each further one is added to the row behind one of the decoder's first layers.
These get them by the channel `DEEP_TOKENS`, and are layers like all others.

Letters: B pictures or rows, T patches or tokens, N soft tokens of a picture, S those of a row, I
pictures in the table, K how many vectors there are of a soft token in addition to the first.

Source: Meng et al. 2024, arXiv:2406.04334, section 3.2.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from axcore.config import REQUIRED, PositiveInt, config, evolve, find_config, replace_config
from axcore.errors import ConfigError
from axcore.interop import arranged, layers_of
from axcore.layers import (
    ENCODER_CACHE,
    FIRST_SOFT_TOKEN,
    SOFT_TOKENS,
    KVCacheConfig,
    ScannedLayers,
    Sequence,
    SoftTokenEmbedding,
    SoftTokenTable,
    TokenInfo,
)
from axcore.models import MultimodalLM, flops_per_token
from axcore.module import Module, Normal, Param, entry
from axl_vision.encoder import Pixels
from axl_vision.grid_tokens import GridTokens, check_size

SEEN = "encoder_layers_seen"
"""The channel in which layers of an encoder send what they saw: a tuple of `[B, T, width]`."""

DEEP_TOKENS = "deep_tokens"
"""The channel of what is added behind the next layers of a decoder, `[B, T, K, dim]`."""


class SendTokens(Module):
    """A layer that changes nothing: it sends in `SEEN` what it gets. The parent fills `dim`."""

    @config
    class Config(Module.Config["SendTokens"]):
        """The config of a `SendTokens`."""

        dim: PositiveInt = REQUIRED

    def forward(self, x: Float[Array, "B T dim"], info: TokenInfo) -> Float[Array, "B T dim"]:
        """Return the tokens."""
        self.set_shared(SEEN, (*self.get_shared(SEEN, ()), x))
        return x


class DeepImageTokens(GridTokens):
    """A vision transformer whose layers see all of a picture, and mergers of its tokens.

    There is a merger of the last layer's tokens, and one more of each `SendTokens` in the stack.
    Positions are learned for a square of patches, and interpolated to those of a picture. The
    parent fills `dim`.

    Source: Bai et al. 2025, arXiv:2511.21631, section 2.
    """

    @config
    class Config(GridTokens.Config):
        """The config of a `DeepImageTokens`.

        Args:
            positions_side: Patches of a side of the square that positions were learned for.
        """

        positions_side: PositiveInt = 48

        @property
        def num_deep(self) -> int:
            """K."""
            return sum(isinstance(one, SendTokens.Config) for one in layers_of(self.stack))

    config: Config

    def setup(self, cfg: GridTokens.Config) -> None:
        """Build the parts, and declare the positions.

        Raises:
            ConfigError: Soft tokens do not divide the picture.
        """
        own = self.config
        check_size(cfg, cfg.patch_size * cfg.merge_size, "they are whole")
        super().setup(cfg)
        # A norm of all patches of a soft token at once: as if these were one wide patch.
        wide = cfg.width * cfg.merge_size**2
        self.deep = tuple(
            cfg.merger.build(in_dim=wide, out_dim=cfg.dim, num_patches=1)
            for _ in range(own.num_deep)
        )
        shape = (own.positions_side**2, cfg.width)
        self.positions = Param(shape, axes=(None, "embed"), init=Normal(), decay=False)
        # They are added and not multiplied, so the count of FLOPs leaves them out.
        self.inactive_params = shape[0] * shape[1]

    @property
    def flops_per_input(self) -> float:
        """Model FLOPs of a picture, forward and backward."""
        count = self.num_tokens * self.config.merge_size**2
        mergers = sum(flops_per_token(one, 0) for one in (self.merger, *self.deep))
        # A token sees all others, where a causal one sees half of them on average.
        return (flops_per_token(self, 2 * count) - mergers) * count + mergers * self.num_tokens

    def placed(self, x: Float[Array, "B T width"]) -> Float[Array, "B T width"]:
        """Return the patches with their positions."""
        cfg = self.config
        table = self.positions.astype(jnp.float32)
        square = table.reshape(cfg.positions_side, cfg.positions_side, cfg.width)
        sides = (one * cfg.merge_size for one in cfg.grid)
        down, across = (bilinear_weights(cfg.positions_side, one) for one in sides)
        # Accelerators would multiply in fewer bits, by default.
        precision = jax.lax.Precision.HIGHEST
        of_patches = jnp.einsum("hg,wk,gkd->hwd", down, across, square, precision=precision)
        return x + self.in_blocks(of_patches).astype(x.dtype)[None]

    def forward(self, image: Pixels) -> Float[Array, "B N sizes"]:
        """Return the soft tokens of each picture, from left to right and from top to bottom."""
        with self.with_shared(SEEN, ()):
            last = self.encoded(image)
            seen: tuple[Array, ...] = self.get_shared(SEEN)
        squares = [one.reshape(one.shape[0], self.num_tokens, -1) for one in seen]
        deep = [merger(one) for merger, one in zip(self.deep, squares, strict=True)]
        # Blocks are single soft tokens, so that they are row by row already.
        return jnp.concatenate([self.merger(last), *deep], axis=-1)


def bilinear_weights(old: int, new: int) -> NDArray[np.float32]:
    """Return what each new place takes of each old one, `[new, old]`; the ends stay the ends."""
    centres = np.arange(new)[:, None] * (old - 1) / max(new - 1, 1)
    return np.maximum(1 - np.abs(np.arange(old)[None] - centres), 0).astype(np.float32)


class DeepSoftTokens(Module):
    """An embedding with soft tokens of several vectors, those behind the first for later layers.

    The embedding in it gets the first ones. Where the model serves, the others of a picture are in
    a table next to its own: whatever a text shares or reads in pieces, a token has them by its
    number. Slot protocol: the parent fills `vocab_size` and `dim`.

    Source: Meng et al. 2024, arXiv:2406.04334, section 3.2.
    """

    @config
    class Config(Module.Config["DeepSoftTokens"]):
        """The config of a `DeepSoftTokens`.

        Args:
            vocab_size: Number of tokens.
            dim: Size of a vector.
            num_deep: K.
            embedding: A `SoftTokenEmbedding`.
            table: I and N, of a model that serves; None where the model around it sends
                `SOFT_TOKENS`.
        """

        vocab_size: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        num_deep: PositiveInt = REQUIRED
        embedding: Module.Config = REQUIRED
        table: tuple[PositiveInt, PositiveInt] | None = None

        def for_serving(self, cache_size: KVCacheConfig) -> "DeepSoftTokens.Config":
            """Return itself with room for the pictures that the embedding has room for."""
            inner: Any = find_config(self.embedding, SoftTokenTable)[0].node
            return evolve(self, table=(inner.num_inputs, inner.num_tokens))

    def setup(self, cfg: Config) -> None:
        """Build the embedding, and declare the table."""
        self.embedding: Any = cfg.embedding.build(vocab_size=cfg.vocab_size, dim=cfg.dim)
        if cfg.table is not None:
            self.table = Param(
                (*cfg.table, cfg.num_deep * cfg.dim),
                axes=(ENCODER_CACHE, None, "embed"),
                init=0.0,
                is_buffer=True,
                dtype=self.dtypes.compute,
            )

    @property
    def weight(self) -> Float[Array, "vocab dim"]:
        """The token table, for a tied head."""
        table: Float[Array, "vocab dim"] = self.embedding.weight
        return table

    def forward(self, tokens: Int[Array, "B T"], info: TokenInfo) -> Float[Array, "B T dim"]:
        """Return the vectors of tokens, and send what is added to them later."""
        cfg = self.config
        places = tokens - FIRST_SOFT_TOKEN
        deep = None
        if cfg.table is not None:
            vectors = self.table.reshape(-1, self.table.shape[-1])
            deep = jnp.take(vectors, places % len(vectors), axis=0)
        elif (soft := self.get_shared(SOFT_TOKENS)) is not None:
            self.set_shared(SOFT_TOKENS, soft[..., : cfg.dim])
            # Clipped for the other tokens, whose vectors are not taken.
            at = jnp.clip(places, 0, soft.shape[1] - 1)[..., None]
            deep = jnp.take_along_axis(soft[..., cfg.dim :], at, axis=1)
        if deep is not None:
            deep = jnp.where(places[..., None] >= 0, deep, 0)
            self.set_shared(DEEP_TOKENS, deep.reshape(*tokens.shape, cfg.num_deep, cfg.dim))
        vectors_of: Float[Array, "B T dim"] = self.embedding(tokens, info)
        return vectors_of

    @entry
    def store(self, soft: Float[Array, "n N sizes"], slots: Int[Array, " n"]) -> None:
        """Keep the soft tokens of pictures; see `SoftTokenTable`."""
        dim = self.config.dim
        self.embedding.store(soft[..., :dim], slots)
        self.update("table", self.table.at[slots].set(soft[..., dim:].astype(self.table.dtype)))


class AddDeepTokens(Module):
    """A layer that adds the next vectors of `DEEP_TOKENS`. The parent fills `dim`."""

    @config
    class Config(Module.Config["AddDeepTokens"]):
        """The config of an `AddDeepTokens`."""

        dim: PositiveInt = REQUIRED

    def forward(self, x: Float[Array, "B T dim"], info: TokenInfo) -> Float[Array, "B T dim"]:
        """Return the sum, and send the vectors that are left."""
        deep: Float[Array, "B T K dim"] | None = self.get_shared(DEEP_TOKENS)
        if deep is None:
            return x
        # Of the same shape, as a scan needs it.
        rest = jnp.concatenate([deep[:, :, 1:], jnp.zeros_like(deep[:, :, :1])], axis=2)
        self.set_shared(DEEP_TOKENS, rest)
        return x + deep[:, :, 0].astype(x.dtype)


def with_deep_tokens(cfg: MultimodalLM.Config) -> MultimodalLM.Config:
    """Return a model whose first layers are each followed by vectors of a `DeepImageTokens`.

    Args:
        cfg: The model with that encoder, whose decoder knows of one vector of a soft token.

    Raises:
        ConfigError: The encoder sends nothing, or the decoder has fewer layers.
    """
    encoder: Any = cfg.encoder
    count, decoder = encoder.num_deep, cfg.decoder
    layers = layers_of(decoder.stack)  # type: ignore[attr-defined]
    if not 1 <= count <= len(layers):
        raise ConfigError(
            f"the encoder sends tokens behind {count} of its layers, and the decoder has "
            f"{len(layers)} layers to add them to",
            where="encoder.stack",
            hint="a SendTokens behind one layer of the encoder, or several",
        )
    first = ScannedLayers.Config(
        num_layers=count, layer=Sequence.Config(layers=(layers[0], AddDeepTokens.Config()))
    )
    if any(one != layers[0] for one in layers[:count]):
        pairs = [(one, AddDeepTokens.Config()) for one in layers[:count]]
        first = arranged([one for pair in pairs for one in pair])
    rest = (arranged(layers[count:]),) if layers[count:] else ()
    decoder = replace_config(
        decoder,
        SoftTokenEmbedding,
        lambda old: DeepSoftTokens.Config(embedding=old, num_deep=count),
    )
    return evolve(cfg, decoder=evolve(decoder, stack=Sequence.Config(layers=(first, *rest))))


def without_deep_tokens(cfg: MultimodalLM.Config) -> MultimodalLM.Config:
    """Return the model that `with_deep_tokens` was called with; its layers scanned in order."""
    decoder: Any = replace_config(
        cfg.decoder, DeepSoftTokens, lambda old: old.embedding, missing_ok=True
    )
    layers = layers_of(decoder.stack)
    plain = [one for one in layers if not isinstance(one, AddDeepTokens.Config)]
    return evolve(cfg, decoder=evolve(decoder, stack=arranged(plain)))
