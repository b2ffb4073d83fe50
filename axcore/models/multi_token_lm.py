"""`MultiTokenLM`: a causal language model that also learns to predict tokens further ahead.

Letters: B rows, T tokens of a row, D size of a vector.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from axcore.config import REQUIRED, PositiveInt, config, field_names
from axcore.layers import Linear, RMSNorm, TransformerLayer
from axcore.layers.tokens import TokenInfo, packed_rows
from axcore.models.causal_lm import CausalLM
from axcore.module import Module


class MultiTokenBlock(Module):
    """One depth of prediction: `layer(projection([norm(Emb(t)); norm(h)]))`.

    Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["MultiTokenBlock"]):
        """The config of a `MultiTokenBlock`.

        Args:
            dim: Size of a token's vector.
            token_norm: Normalises the vectors of the tokens ahead.
            hidden_norm: Normalises what the depth before it returned.
            projection: From both of them to one vector.
            layer: A layer as those of the model.
            norm: The norm before the head.
        """

        dim: PositiveInt = REQUIRED
        token_norm: Module.Config = RMSNorm.Config()
        hidden_norm: Module.Config = RMSNorm.Config()
        projection: Module.Config = Linear.Config()
        layer: Module.Config = TransformerLayer.Config()
        norm: Module.Config = RMSNorm.Config()

        @property
        def is_new_in_fine_tuning(self) -> bool:
            """No checkpoint that is read has it."""
            return True

    def setup(self, cfg: Config) -> None:
        """Build the parts."""
        self.token_norm = cfg.token_norm.build(dim=cfg.dim)
        self.hidden_norm = cfg.hidden_norm.build(dim=cfg.dim)
        self.projection = cfg.projection.build(
            in_dim=2 * cfg.dim, out_dim=cfg.dim, axes=(None, "embed")
        )
        self.layer = cfg.layer.build(dim=cfg.dim)
        self.norm = cfg.norm.build(dim=cfg.dim)

    def forward(
        self, hidden: Float[Array, "B T D"], ahead: Float[Array, "B T D"], info: TokenInfo
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T D"]]:
        """Return what the next depth reads, and what the head reads.

        Args:
            hidden: Of the depth before.
            ahead: The vectors of the tokens that the depth before it predicted.
            info: Of the tokens whose places these are.
        """
        both = jnp.concatenate([self.token_norm(ahead), self.hidden_norm(hidden)], axis=-1)
        x = self.layer(self.projection(both), info)
        return x, self.norm(x)


class MultiTokenLM(CausalLM):
    """A `CausalLM` whose training also predicts the tokens after the next one, one by one.

    Depth `k` reads, at each place, the vector of token `i + k` and what depth `k - 1` made of
    token `i`, and predicts token `i + k + 1` by the model's own head and embedding. Depth 0 is the
    model, its last norm included. The losses are regularizers: metric `loss` is that of the model.
    Nothing but the loss of a batch uses the blocks: logits, log-probabilities and serving are those
    of the model without them.

    Source: DeepSeek-AI 2024, arXiv:2412.19437, section 2.2, equations 21 to 25.
    Differs: what depth 1 reads is normalised by the model's last norm, too.
    """

    @config
    class Config(CausalLM.Config):
        """Describes a `MultiTokenLM`.

        Args:
            depth: Tokens ahead of the next one that are predicted.
            ahead_weight: Weight of the mean of their cross-entropies, the paper's lambda.
            blocks: What is of each depth.
        """

        depth: PositiveInt = 1
        ahead_weight: float = 0.3
        blocks: Module.Config = MultiTokenBlock.Config()

        def for_serving(self, cache_size: Any) -> CausalLM.Config:
            """Return the model alone: nothing that serves uses the blocks."""
            own = field_names(CausalLM.Config())
            return CausalLM.Config(**{name: getattr(self, name) for name in own})

    def setup(self, cfg: Any) -> None:
        """Build the model and a block for each depth."""
        super().setup(cfg)
        self.blocks = tuple(cfg.blocks.build(dim=cfg.dim) for _ in range(cfg.depth))
        # Tokens are multiplied by the head's projection once more for each depth.
        self.inactive_params = -cfg.depth * cfg.vocab_size * cfg.dim

    def forward(self, batch: Mapping[str, Array]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Add the losses of a batch, and return the sum and weight of the next tokens' alone."""
        total, weight, hidden = self.next_token_loss(batch)
        info, table = packed_rows(batch), self.decoder.embedding.weight
        for number, block in enumerate(self.blocks, start=1):
            tokens = _ahead(batch["targets"], number - 1)
            hidden, x = block(hidden, self.decoder.embedding(tokens, info), info)
            weights = jnp.where(
                _is_same_document(info, number), _ahead(batch["loss_weights"], number), 0.0
            )
            ahead, count = self.head.loss(x, table, _ahead(batch["targets"], number), weights)
            scale = self.config.ahead_weight / self.config.depth
            self.add_regularizer(f"token_{number + 1}", ahead, count, scale=scale)
        return total, weight


def _ahead(values: Array, places: int) -> Array:
    """Return what is so many places further in each row; zeros behind its end."""
    if not places:
        return values
    return jnp.pad(values[:, places:], ((0, 0), (0, min(places, values.shape[1]))))


def _is_same_document(info: TokenInfo, places: int) -> Bool[Array, "B T"] | Array:
    """Return whether the token so many places further is of the same document."""
    segments: Int[Array, "B T"] | None = info.segment_ids
    if segments is None:
        # One document a row; behind the end of it weights are zero.
        return jnp.ones(info.positions.shape, bool)
    # Segment 0 is padding, whose weights are zero, and so is what `_ahead` puts behind the end.
    return segments == _ahead(segments, places)
