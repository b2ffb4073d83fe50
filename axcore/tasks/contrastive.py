"""`Contrastive`: pairs that belong together, such as a picture and its caption.

Letters: B rows, D size of a vector.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from axcore.config import NonNegativeInt, config
from axcore.errors import ConfigError
from axcore.module import BatchSpec, RowMeasure
from axcore.tasks.retrieval import RANKS, recalls
from axcore.tasks.supervised import ROW_WEIGHTS, check_arrays
from axcore.tasks.task import Task


class Pairs(NamedTuple):
    """What a model with two encoders returns.

    Args:
        first: A vector of each row, `[B, D]`, of length 1.
        second: Another one, of what belongs to it.
        scale: Factor on their products.
        bias: Added to the products; None adds nothing.
    """

    first: Float[Array, "batch dim"]
    second: Float[Array, "batch dim"]
    scale: Float[Array, ""]
    bias: Float[Array, ""] | None = None

    @property
    def logits(self) -> Float[Array, "batch batch"]:
        """The product of each first vector with each second one, scaled."""
        products = self.scale * (self.first.astype(jnp.float32) @ self.second.astype(jnp.float32).T)
        return products if self.bias is None else products + self.bias


class Contrastive(Task):
    """Rows of a batch are distinguished: a row's two vectors are closer than those of two rows.

    All rows of the global batch are compared with each other, also where it is split over devices;
    micro-batches are compared each on their own. The model returns `Pairs`.

    It reports `retrieval`, the share of rows for whose first vector the closest second one is its
    own, or one of an equal row. Evaluations report recall too, over all held-out rows together and
    in both directions: `image_to_text/recall_at_5` is the share of pictures whose text is among the
    five closest of all distinct texts (see `recalls`).
    """

    @config
    class Config(Task.Config):
        """Describes `Contrastive`.

        Args:
            inputs: The arrays that the model's `forward` is called with, in this order.
            second: The array that the second vector is made of; rows in which it is equal are not
                mistaken for each other.
            loss: `softmax`: of each row among all, in both directions, as CLIP has it. `sigmoid`:
                of each pair on its own, as SigLIP has it.
            recall_rows: How many rows of an evaluation are compared for recall at most; 0 measures
                none. Time grows with its square, memory of the devices with it.
        """

        inputs: tuple[str, ...] = ("image", "text", "text_mask")
        second: str = "text"
        loss: Literal["softmax", "sigmoid"] = "softmax"
        recall_rows: NonNegativeInt = 10_000

    config: Config

    def forward(self, batch: Mapping[str, Array]) -> None:
        """Add the loss and `retrieval`.

        Source: Radford et al. 2021, arXiv:2103.00020, figure 3; Zhai et al. 2023,
        arXiv:2303.15343, algorithm 1.
        """
        cfg = self.config
        pairs: Pairs = self.model(*[batch[name] for name in cfg.inputs])
        second = batch[cfg.second]
        weights = batch.get(ROW_WEIGHTS, jnp.ones(len(second), jnp.float32))
        logits, total = pairs.logits, jnp.sum(weights)
        # Rows that fill a batch are nobody's negatives.
        is_real = weights > 0
        loss = _softmax_loss if cfg.loss == "softmax" else _sigmoid_loss
        self.add_loss("contrastive", jnp.sum(loss(logits, is_real) * weights), total)
        closest = jnp.argmax(jnp.where(is_real[None, :], logits, -jnp.inf), axis=1)
        is_same = jnp.all((second[closest] == second).reshape(len(second), -1), axis=1)
        self.add_measure("retrieval", jnp.sum(jnp.where(is_same, weights, 0)), total)
        self.add_summary("logit_scale", pairs.scale)
        if not self.training:
            vectors = (one.astype(jnp.float32) for one in (pairs.first, pairs.second))
            for name, value in zip(_CAPTURES, (*vectors, second, weights), strict=True):
                self.capture(name, value)

    def row_measure(self) -> RowMeasure | None:
        """Return the recall of all held-out rows."""
        most = self.config.recall_rows
        return RowMeasure(captures=_CAPTURES, num_rows=most, measure=self._recall) if most else None

    def _recall(self, rows: Mapping[str, Any]) -> Mapping[str, float]:
        found = recalls(*(rows[name] for name in _CAPTURES))
        return {
            _recall_name(self._directions[way], most): share
            for way, shares in found.items()
            for most, share in shares.items()
        }

    @property
    def _directions(self) -> Mapping[str, str]:
        second = self.config.second
        first = next((name for name in self.config.inputs if name != second), "first")
        return {"forward": f"{first}_to_{second}", "backward": f"{second}_to_{first}"}

    def metric_units(self) -> Mapping[str, str]:
        """Return the units of the loss and of the measures."""
        names = (_recall_name(way, most) for way in self._directions.values() for most in RANKS)
        shares = dict.fromkeys(("retrieval", *names), "of rows")
        return {"loss": "nats a row", **shares}

    def check_batch(self, batch: BatchSpec) -> None:
        """Check that a batch has the arrays of this task, and no others.

        Raises:
            ConfigError: They differ.
        """
        check_arrays(self, self.config.inputs, batch)
        if self.config.second not in self.config.inputs:
            raise ConfigError(
                f"task.second is {self.config.second!r}, which is none of task.inputs",
                where="task.second",
                hint=f"task.second={self.config.inputs[-1]!r}",
            )


_CAPTURES = tuple(f"contrastive_{name}" for name in ("first", "second", "compared", "weights"))
"""What is captured of rows: two vectors, what the second was made of, and what rows weigh."""


def _recall_name(direction: str, most: int) -> str:
    return f"{direction}/recall_at_{most}"


def _softmax_loss(
    logits: Float[Array, "batch batch"], is_real: Bool[Array, " batch"]
) -> Float[Array, " batch"]:
    """Return each row's cross-entropy, the mean of both directions."""
    own = jnp.diagonal(logits)
    # Not minus infinity: in a batch of padding alone a row would have nothing else, and its
    # gradient would be NaN.
    lowest = -1e30
    towards_second = jax.nn.logsumexp(jnp.where(is_real[None, :], logits, lowest), axis=1)
    towards_first = jax.nn.logsumexp(jnp.where(is_real[:, None], logits, lowest), axis=0)
    return jnp.where(is_real, (towards_second + towards_first) / 2 - own, 0)


def _sigmoid_loss(
    logits: Float[Array, "batch batch"], is_real: Bool[Array, " batch"]
) -> Float[Array, " batch"]:
    """Return each row's sum of the losses of its pairs."""
    sign = 2.0 * jnp.eye(len(logits)) - 1.0
    losses = -jax.nn.log_sigmoid(sign * logits)
    return jnp.sum(jnp.where(is_real[None, :] & is_real[:, None], losses, 0), axis=1)
