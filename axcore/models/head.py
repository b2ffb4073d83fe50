"""Heads of a language model: from hidden vectors to logits, or straight to the loss."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, config
from axcore.module import Initializer, Module, Param, VarianceScaling, entry
from axcore.ops import cross_entropy

Hidden = Float[Array, "batch time dim"]
Table = Float[Array, "vocab dim"]


class Head(Module):
    """A projection of its own. Slot protocol: the parent fills `dim` and `vocab_size`."""

    @config
    class Config(Module.Config):
        """Describes a `Head`.

        Args:
            dim: Size of a hidden vector.
            vocab_size: Number of logits.
            soft_cap: Caps logits smoothly at this value.
            z_loss: Weight of the squared log-partition in the loss, which keeps logits small.
            weight_init: First value of the projection.
        """

        dim: int = REQUIRED
        vocab_size: int = REQUIRED
        soft_cap: float | None = None
        z_loss: float = 0.0
        weight_init: Initializer = VarianceScaling()

    def setup(self, cfg: Config) -> None:
        """Declares the projection."""
        self.weight = Param(
            (cfg.dim, cfg.vocab_size), axes=("embed", "vocab"), init=cfg.weight_init
        )

    def forward(self, x: Hidden, table: Table) -> Float[Array, "batch time vocab"]:
        """Returns float32 logits; the embedding table is not used."""
        return _capped((x @ self.weight).astype(jnp.float32), self.config.soft_cap)

    @entry
    def loss(
        self,
        x: Hidden,
        table: Table,
        targets: Int[Array, "batch time"],
        weights: Float[Array, "batch time"],
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Returns the weighted sum of cross-entropies in nats, and the sum of weights."""
        return cross_entropy(
            x,
            self.weight,
            targets,
            weights,
            z_loss=self.config.z_loss,
            soft_cap=self.config.soft_cap,
        )


class TiedHead(Module):
    """A projection by the embedding table. Slot protocol: as `Head`."""

    @config
    class Config(Module.Config):
        """Describes a `TiedHead`; its fields are those of `Head`."""

        dim: int = REQUIRED
        vocab_size: int = REQUIRED
        soft_cap: float | None = None
        z_loss: float = 0.0

    def forward(self, x: Hidden, table: Table) -> Float[Array, "batch time vocab"]:
        """Returns float32 logits."""
        return _capped((x @ table.T).astype(jnp.float32), self.config.soft_cap)

    @entry
    def loss(
        self,
        x: Hidden,
        table: Table,
        targets: Int[Array, "batch time"],
        weights: Float[Array, "batch time"],
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Returns the weighted sum of cross-entropies in nats, and the sum of weights."""
        return cross_entropy(
            x,
            table,
            targets,
            weights,
            vocabulary_first=True,
            z_loss=self.config.z_loss,
            soft_cap=self.config.soft_cap,
        )


def _capped(logits: Float[Array, "..."], soft_cap: float | None) -> Float[Array, "..."]:
    return logits if soft_cap is None else soft_cap * jnp.tanh(logits / soft_cap)
