"""Heads of a language model: from hidden vectors to logits, or straight to the loss."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers.linear import matmul_transposed, over_rows
from axcore.module import Initializer, Module, Param, VarianceScaling, entry
from axcore.ops import cross_entropy_sums

LOGITS_AT_ONCE = 512
"""Places of a row whose logits are in memory together where only log-probabilities are wanted."""

Hidden = Float[Array, "batch time dim"]
Table = Float[Array, "vocab dim"]


class Head(Module):
    """What every head does with its projection. Slot protocol: the parent fills the first two.

    A subclass says what the projection is: `projection(table)`, `[vocab, dim]`.
    """

    @config
    class Config(Module.Config["Head"]):
        """Describes a head.

        Args:
            dim: Size of a hidden vector.
            vocab_size: Number of logits.
            soft_cap: Caps logits smoothly at this value.
            z_loss: Weight of the squared log-partition, a regularizer that keeps logits small.
        """

        dim: PositiveInt = REQUIRED
        vocab_size: PositiveInt = REQUIRED
        soft_cap: float | None = None
        z_loss: float = 0.0

    def projection(self, table: Table) -> Table:
        """Return the vector of each token that hidden vectors are compared with."""
        raise NotImplementedError

    def forward(self, x: Hidden, table: Table) -> Float[Array, "batch time vocab"]:
        """Return float32 logits; `table` is the embedding table."""
        return self._logits(x, self.projection(table))

    @entry
    def log_probs(
        self, x: Hidden, table: Table, targets: Int[Array, "batch time"]
    ) -> Float[Array, "batch time"]:
        """Return the float32 log-probability of each target.

        Logits are there for `LOGITS_AT_ONCE` places of each row at a time, and are computed again
        in the backward pass.
        """
        (found,) = self._in_pieces(
            lambda logits, targets: (_log_prob(logits, targets),), x, table, targets
        )
        return found

    @entry
    def log_probs_and_entropies(
        self,
        x: Hidden,
        table: Table,
        targets: Int[Array, "batch time"],
        temperature: float = 1.0,
    ) -> tuple[Float[Array, "batch time"], Float[Array, "batch time"]]:
        """Return the float32 log-probability of each target, and the entropy at its place.

        Both are in nats, of the softmax of logits that are divided by the temperature. Memory is as
        for `log_probs`.
        """

        def of_some(logits: Array, targets: Array) -> tuple[Array, Array]:
            scaled = logits if temperature == 1 else logits / temperature
            log_probs = jax.nn.log_softmax(scaled, axis=-1)
            # 0 times minus infinity is nan, and a masked token has that log-probability.
            terms = jnp.where(log_probs > -jnp.inf, jnp.exp(log_probs) * log_probs, 0)
            return _log_prob(scaled, targets), -jnp.sum(terms, axis=-1)

        log_probs, entropies = self._in_pieces(of_some, x, table, targets)
        return log_probs, entropies

    def _in_pieces(
        self,
        of_some: Callable[[Array, Array], tuple[Array, ...]],
        x: Hidden,
        table: Table,
        targets: Int[Array, "batch time"],
    ) -> tuple[Array, ...]:
        """Return arrays `[batch, time]` of logits and targets, from pieces of the rows."""
        projection = self.projection(table)

        @jax.checkpoint
        def of_piece(x: Hidden, targets: Int[Array, "batch time"]) -> tuple[Array, ...]:
            return of_some(self._logits(x, projection), targets)

        size = LOGITS_AT_ONCE
        found = [
            of_piece(x[:, begin : begin + size], targets[:, begin : begin + size])
            for begin in range(0, x.shape[1], size)
        ]
        return tuple(jnp.concatenate(pieces, axis=1) for pieces in zip(*found, strict=True))

    def _logits(self, x: Hidden, projection: Table) -> Float[Array, "batch time vocab"]:
        logits = over_rows(lambda rows: matmul_transposed(rows, projection), x).astype(jnp.float32)
        cap = self.config.soft_cap
        return logits if cap is None else cap * jnp.tanh(logits / cap)

    @entry
    def loss(
        self,
        x: Hidden,
        table: Table,
        targets: Int[Array, "batch time"],
        weights: Float[Array, "batch time"],
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Return the weighted sum of cross-entropies in nats, and the sum of weights.

        Adds the z-loss as a loss of its own. The kernels know one loss: its gradient comes with
        the sum that is returned, and what is added has none.
        """
        cfg = self.config
        sums = cross_entropy_sums(
            x,
            self.projection(table),
            targets,
            weights,
            vocabulary_first=True,
            z_loss=cfg.z_loss,
            soft_cap=cfg.soft_cap,
        )
        if not cfg.z_loss:
            return sums.loss, sums.weight
        z_loss = jax.lax.stop_gradient(sums.z_loss)
        self.add_regularizer("z", z_loss / cfg.z_loss, sums.weight, scale=cfg.z_loss)
        return sums.loss - z_loss, sums.weight


def _log_prob(
    logits: Float[Array, "batch time vocab"], targets: Int[Array, "batch time"]
) -> Float[Array, "batch time"]:
    # Not a gather: of logits that are sharded by vocabulary, it would need all of them.
    is_target = jax.nn.one_hot(targets, logits.shape[-1], dtype=bool)
    chosen = jnp.sum(jnp.where(is_target, logits, 0), axis=-1)
    return chosen - jax.nn.logsumexp(logits, axis=-1)


class TiedHead(Head):
    """Projects by the embedding table."""

    def setup(self, cfg: Head.Config) -> None:
        """Declare that tokens are multiplied by the table, which is another module's."""
        self.inactive_params = -cfg.vocab_size * cfg.dim

    def projection(self, table: Table) -> Table:
        """Return the embedding table."""
        return table


class UntiedHead(Head):
    """Projects by a matrix of its own."""

    @config
    class Config(Head.Config):
        """Describes an `UntiedHead`.

        Args:
            weight_init: First value of the projection.
        """

        weight_init: Initializer = VarianceScaling()

    def setup(self, cfg: Config) -> None:
        """Declare the projection."""
        self.weight = Param(
            (cfg.vocab_size, cfg.dim),
            axes=("vocab", "embed"),
            inputs=("embed",),
            init=cfg.weight_init,
        )

    def projection(self, table: Table) -> Table:
        """Return the head's own matrix."""
        return self.weight
