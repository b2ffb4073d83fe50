"""Which experts each token goes to, from its scores: pure functions.

Letters: B batch, T time, E experts, G groups of experts, K choices of a token.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import config
from axcore.errors import ConfigError

Scores = Float[Array, "batch time experts"]


class Routing(NamedTuple):
    """Where tokens go.

    Args:
        experts: The chosen experts of each token, the best first.
        weights: What each one's output is multiplied by, in float32.
    """

    experts: Int[Array, "batch time choices"]
    weights: Float[Array, "batch time choices"]


@config
class GroupLimit:
    """Lets a token choose among the experts of its best groups only, so that it visits few devices.

    Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.2.2 (a group is rated by its best
    expert); DeepSeek-AI 2024, arXiv:2412.19437, section 2.1.2 (by the sum of its best two).

    Args:
        num_groups: Experts are in this many groups of equal size, in order.
        num_kept: Groups that a token may choose from.
        rated_by: How many of a group's best experts its rating is the sum of.
    """

    num_groups: int
    num_kept: int
    rated_by: int = 2

    def check(self, num_experts: int, top_k: int) -> None:
        """Checks that the numbers are compatible.

        Raises:
            ConfigError: They do not.
        """
        if self.num_groups < 1 or num_experts % self.num_groups:
            raise ConfigError(
                f"{num_experts} experts do not divide into {self.num_groups} groups",
                where="groups.num_groups",
            )
        size = num_experts // self.num_groups
        if not 1 <= self.num_kept <= self.num_groups or self.num_kept * size < top_k:
            raise ConfigError(
                f"{self.num_kept} of {self.num_groups} groups with {size} experts each are kept, "
                f"for {top_k} choices",
                where="groups.num_kept",
                hint=f"num_kept from {-(-top_k // size)} to {self.num_groups}",
            )
        if not 1 <= self.rated_by <= size:
            raise ConfigError(
                f"a group is rated by {self.rated_by} experts and has {size}",
                where="groups.rated_by",
            )

    def limited(self, scores_BTE: Scores) -> Scores:
        """Returns scores with minus infinity outside of each token's best groups."""
        scores_BTGS = scores_BTE.reshape(*scores_BTE.shape[:2], self.num_groups, -1)
        best_BTGR, _ = jax.lax.top_k(scores_BTGS, self.rated_by)
        _, kept_BTK = jax.lax.top_k(jnp.sum(best_BTGR, axis=-1), self.num_kept)
        is_kept_BTG = jnp.any(jax.nn.one_hot(kept_BTK, self.num_groups, dtype=bool), axis=-2)
        limited = jnp.where(is_kept_BTG[..., None], scores_BTGS, -jnp.inf)
        return limited.reshape(scores_BTE.shape)


def chosen(scores_BTE: Scores, rating_BTE: Scores, top_k: int) -> Routing:
    """Returns the `top_k` experts of highest rating, weighted by their scores.

    Of equal ratings the expert of lower number is chosen.
    """
    _, experts_BTK = jax.lax.top_k(jax.lax.stop_gradient(rating_BTE), top_k)
    return Routing(experts_BTK, jnp.take_along_axis(scores_BTE, experts_BTK, axis=-1))


def normalised(weights_BTK: Float[Array, "batch time choices"]) -> Array:
    """Returns the weights divided by each token's sum of them."""
    total = jnp.sum(weights_BTK, axis=-1, keepdims=True)
    tiny = jnp.finfo(weights_BTK.dtype).tiny  # type: ignore[no-untyped-call]
    return weights_BTK / jnp.maximum(total, tiny)


def counts(
    experts: Int[Array, "*batch choices"], num_experts: int
) -> Float[Array, "*batch experts"]:
    """Returns how many of the choices fell on each expert; numbers past the last are none."""
    return jnp.sum(jax.nn.one_hot(experts, num_experts, dtype=jnp.float32), axis=-2)
