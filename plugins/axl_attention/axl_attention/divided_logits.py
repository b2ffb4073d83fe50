"""`DividedLogits`: a head whose logits are divided by a number."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveFloat, PositiveInt, config
from axcore.models import UntiedHead
from axcore.module import Module, entry

Hidden = Float[Array, "batch time dim"]
Table = Float[Array, "vocab dim"]


class DividedLogits(Module):
    """Another head's logits over `divisor`; it divides the hidden vectors, which are fewer numbers.

    Source: Yang et al. 2022, arXiv:2203.03466, table 8. Slot protocol: the parent fills `dim` and
    `vocab_size`.
    """

    @config
    class Config(Module.Config["DividedLogits"]):
        """The config of a `DividedLogits`.

        Args:
            dim: Size of a hidden vector.
            vocab_size: Number of logits.
            divisor: What logits are divided by.
            inner: The head.
        """

        dim: PositiveInt = REQUIRED
        vocab_size: PositiveInt = REQUIRED
        divisor: PositiveFloat = 1.0
        inner: Module.Config = UntiedHead.Config()

    def setup(self, cfg: Config) -> None:
        """Build the head."""
        self.inner = cfg.inner.build(dim=cfg.dim, vocab_size=cfg.vocab_size)

    def forward(self, x: Hidden, table: Table) -> Float[Array, "batch time vocab"]:
        """Return float32 logits; `table` is the embedding table."""
        logits: Float[Array, "batch time vocab"] = self.inner(self._divided(x), table)
        return logits

    @entry
    def loss(
        self,
        x: Hidden,
        table: Table,
        targets: Int[Array, "batch time"],
        weights: Float[Array, "batch time"],
    ) -> Any:
        """Return the weighted sum of cross-entropies in nats, and the sum of weights."""
        return self.inner.loss(self._divided(x), table, targets, weights)

    def _divided(self, x: Hidden) -> Hidden:
        return x / jnp.asarray(self.config.divisor, x.dtype)
