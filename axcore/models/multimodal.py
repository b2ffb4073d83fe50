"""`MultimodalLM`: a causal language model whose rows may have inputs of another kind, as pictures.

An encoder makes soft tokens of each input, and these are in the row in the place of tokens. What
the decoder is made of does not change.

Letters: B rows, I inputs of a row, N soft tokens of an input.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import attrs
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, config, evolve, find_config, replace_config
from axcore.errors import ConfigError
from axcore.layers.attention.rope import MultimodalRoPE
from axcore.layers.grid_positions import GridPositions
from axcore.layers.linear import Embedding
from axcore.layers.soft_tokens import (
    FIRST_SOFT_TOKEN,
    SOFT_TOKENS,
    SoftTokenEmbedding,
    SoftTokenTable,
    check_soft_tokens,
    num_soft_tokens_of,
)
from axcore.layers.tokens import TokenInfo
from axcore.models.causal_lm import FORMULA, CausalLM, flops_per_token
from axcore.module import ArraySpec, BatchSpec, ModelFlops, Module, entry

ROW_WEIGHTS = "row_weights"
_OF_AXES = (MultimodalRoPE, GridPositions)


class MultimodalLM(CausalLM):
    """A `CausalLM` with an encoder of other inputs. As the root of a tree it takes its own sizes.

    Source: Liu et al. 2023, arXiv:2304.08485, section 4.1.
    """

    @config
    class Config(CausalLM.Config):
        """Describes a `MultimodalLM`.

        Args:
            encoder: From an input to N vectors of size `dim`, which the parent fills. It has
                `num_tokens`, N; `input_spec`, the shape and dtype of one input; and
                `flops_per_input`.
            input_name: The array of a batch that has the inputs of each row, `[B, I, ...]`, or
                `[B, ...]` where a row has one.
        """

        sized_parts: ClassVar[tuple[str, ...]] = ("encoder",)

        encoder: Module.Config = REQUIRED
        input_name: str = "image"

    config: Config

    def setup(self, cfg: CausalLM.Config) -> None:
        """Build encoder, decoder and head.

        Raises:
            ConfigError: The decoder's embedding has a place for another number of soft tokens, or
                positions on several axes are made and not used, or the other way round.
        """
        super().setup(cfg)
        own, decoder = self.config, cast(Any, cfg.decoder)
        encoder: Any = own.encoder.build(dim=cfg.dim)
        placed, made = num_soft_tokens_of(decoder.embedding), encoder.num_tokens
        if placed != made:
            raise ConfigError(
                f"num_tokens is {placed}, and the encoder makes {made} soft tokens of an input",
                where="decoder.embedding.num_tokens",
                hint=f"--set model.decoder.embedding.num_tokens={made}",
            )
        self.encoder = encoder
        has_axes, has_grid = (bool(find_config(decoder, kind)) for kind in _OF_AXES)
        # Either alone builds, and gives soft tokens the positions of a text.
        if has_axes != has_grid:
            raise ConfigError(
                "MultimodalRoPE and GridPositions need each other, and the decoder has "
                f"{'the first' if has_axes else 'the second'} alone",
                where="decoder",
                hint="multimodal(..., grid=(rows, columns)), and MultimodalRoPE in its layers",
            )

    @property
    def input_spec(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of one input."""
        spec: jax.ShapeDtypeStruct = self.encoder.input_spec
        return spec

    @property
    def num_soft_tokens(self) -> int:
        """N."""
        return int(self.encoder.num_tokens)

    @property
    def num_kept_inputs(self) -> int:
        """Inputs whose soft tokens the model keeps; of one that serves."""
        table = find_config(self.decoder.embedding.config, SoftTokenTable)
        return int(table[0].node.num_inputs)

    def forward(self, batch: Mapping[str, Array]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Add the cross-entropy of a batch as a loss, and return its sum and weight.

        Args:
            batch: As a `CausalLM` takes it, and the inputs. `row_weights` `[B]` say what each row
                weighs; without them each weighs 1.
        """
        inputs = batch[self.config.input_name]
        read = {name: one for name, one in batch.items() if name != self.config.input_name}
        weights = read.pop(ROW_WEIGHTS, None)
        if weights is not None:
            read["loss_weights"] = read["loss_weights"] * weights[:, None]
        with self.with_shared(SOFT_TOKENS, self._soft_tokens(inputs)):
            return super().forward(read)

    @entry
    def logits(
        self,
        tokens: Int[Array, "batch time"],
        info: TokenInfo | None = None,
        at: Int[Array, "batch places"] | None = None,
        *,
        inputs: Array | None = None,
    ) -> Float[Array, "batch places vocab"]:
        """Return what that of a `CausalLM` does; `inputs` are those of the rows, if they have any.

        Raises:
            ModuleError: There is no info in training.
        """
        if inputs is None:
            return super().logits(tokens, info, at)
        with self.with_shared(SOFT_TOKENS, self._soft_tokens(inputs)):
            return super().logits(tokens, info, at)

    def _soft_tokens(self, inputs: Array) -> Float[Array, "B soft dim"]:
        """Return the soft tokens of each row, those of its inputs one after the other."""
        flat = inputs.reshape(-1, *self.input_spec.shape)
        soft = self.encoder(flat)
        check_soft_tokens(soft, self.num_soft_tokens)
        return soft.reshape(inputs.shape[0], -1, soft.shape[-1])

    @entry
    def store_inputs(self, inputs: Array, slots: Int[Array, " n"]) -> None:
        """Encode inputs, and keep their soft tokens; of a model that serves.

        Args:
            inputs: `[n, ...]`.
            slots: Where they are kept.
        """
        self.decoder.embedding.store(self.encoder(inputs), slots)

    def check_batch(self, batch: BatchSpec) -> None:
        """Check that a batch is of tokens and inputs, and that they belong together.

        Raises:
            ConfigError: They do not, or the batch has arrays that would be passed over.
        """
        name, arrays = self.config.input_name, dict(batch.arrays)
        spec = self.input_spec
        found = arrays.pop(name, None)
        if found is None:
            raise ConfigError(
                f"a batch has no {name!r}; it has {', '.join(batch.arrays)}",
                where="data",
                hint=f"name the feature of the encoder's inputs {name!r}, or set model.input_name",
            )
        per_row = found.shape[1:]
        is_one = per_row == spec.shape
        if (not is_one and per_row[1:] != spec.shape) or jnp.dtype(found.dtype) != spec.dtype:
            raise ConfigError(
                f"a row's {name!r} is {_shown(per_row, found.dtype)}, and the encoder takes "
                f"{_shown(spec.shape, spec.dtype)}",
                where="data",
                hint="make both of one size: the feature's, or the encoder's",
            )
        arrays.pop(ROW_WEIGHTS, None)
        count = (1 if is_one else per_row[0]) * self.num_soft_tokens
        super().check_batch(attrs.evolve(batch, arrays=_checked(arrays, count)))

    def flops_per_unit(self, batch: BatchSpec) -> ModelFlops:
        """Return the model FLOPs of a row: of its tokens, and of its inputs."""
        seq_len, inputs = batch.axis_sizes()["time"], batch.arrays[self.config.input_name].shape
        count = math.prod(inputs[1:]) // math.prod(self.input_spec.shape)
        # Both sums are over modules, so what is the encoder's can be taken off.
        own = flops_per_token(self, seq_len) - flops_per_token(self.encoder, seq_len)
        return ModelFlops(
            seq_len * own + count * self.encoder.flops_per_input,
            f"T ({FORMULA}) + what the encoder's formula gives for each input",
        )


def _checked(arrays: dict[str, ArraySpec], count: int) -> dict[str, ArraySpec]:
    """Return arrays whose tokens are those of the vocabulary.

    Raises:
        ConfigError: The data put another number of soft tokens into a row.
    """
    tokens = arrays.get("tokens")
    if tokens is None or tokens.num_values is None or tokens.num_values <= FIRST_SOFT_TOKEN:
        return arrays
    placed = tokens.num_values - FIRST_SOFT_TOKEN
    if placed != count:
        raise ConfigError(
            f"rows have up to {placed} soft tokens, and the encoder makes {count} of a row's "
            "inputs",
            where="data.features",
            hint="set num_soft_tokens of the feature to what the encoder makes of one input",
        )
    # What the tokenizer has is known of targets, which are never soft.
    values = arrays["targets"].num_values if "targets" in arrays else None
    return {**arrays, "tokens": attrs.evolve(tokens, num_values=values)}


def _shown(shape: tuple[int, ...], dtype: Any) -> str:
    return f"{'x'.join(map(str, shape))} {jnp.dtype(dtype).name}"


def language_model_of(cfg: MultimodalLM.Config) -> CausalLM.Config:
    """Return the config of the language model alone, which reads no other inputs."""
    decoder: Any = cfg.decoder
    for around in (SoftTokenEmbedding, GridPositions):
        decoder = replace_config(decoder, around, lambda old: old.embedding, missing_ok=True)
    return CausalLM.Config(
        vocab_size=cfg.vocab_size,
        dim=cfg.dim,
        decoder=decoder,
        head=cfg.head,
        dtypes=cfg.dtypes,
        published=cfg.published,
    )


def with_language_model(cfg: MultimodalLM.Config, model: CausalLM.Config) -> MultimodalLM.Config:
    """Return a config with another language model."""
    decoder: Any = cfg.decoder
    made = multimodal(
        model,
        cfg.encoder,
        num_soft_tokens=num_soft_tokens_of(decoder.embedding),
        input_name=cfg.input_name,
        grid=grid_of(cfg),
    )
    return evolve(made, dtypes=cfg.dtypes, published=cfg.published)


def grid_of(cfg: MultimodalLM.Config) -> tuple[int, int] | None:
    """Return the rows and columns of an input's soft tokens, where positions know them."""
    found: Any = find_config(cfg.decoder, GridPositions)
    return tuple(found[0].node.grid) if found else None


def multimodal(
    model: CausalLM.Config,
    encoder: Any,
    *,
    num_soft_tokens: int,
    input_name: str = "image",
    grid: tuple[int, int] | None = None,
) -> MultimodalLM.Config:
    """Return a language model that reads inputs of another kind.

    Args:
        model: The language model.
        encoder: Of an input.
        num_soft_tokens: N, soft tokens of an input.
        input_name: The array of a batch that has the inputs.
        grid: Rows and columns of an input's soft tokens, for attention with `MultimodalRoPE`; None
            where positions count tokens.

    Raises:
        ConfigError: The model has no `Embedding`.
    """

    def with_soft_tokens(old: Any) -> Any:
        soft = SoftTokenEmbedding.Config(embedding=old, num_tokens=num_soft_tokens)
        return soft if grid is None else GridPositions.Config(embedding=soft, grid=grid)

    placed = replace_config(model, Embedding, with_soft_tokens, at="decoder.**")
    return MultimodalLM.Config(
        vocab_size=model.vocab_size,
        dim=model.dim,
        decoder=placed.decoder,
        head=model.head,
        encoder=encoder,
        input_name=input_name,
        dtypes=model.dtypes,
    )
