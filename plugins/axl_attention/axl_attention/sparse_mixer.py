"""`SparseMixer`: a router that weighs each choice against the experts that score nearly as well.

Letters: B batch, T time, E experts, K choices of a token.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import PositiveFloat, config
from axcore.layers import Router, Routing

Logits = Float[Array, "batch time experts"]


class SparseMixer(Router):
    """Chooses the best experts, and weighs each by a softmax over those that nearly tie with it.

    The first weight is a softmax of the logits within a margin of the largest; for the second one
    the first expert is left out, and so on. A choice without a rival weighs 1, so that weights do
    not add up to 1.

    Source: Liu, Gao et al. 2024, arXiv:2409.12136, sections 2 and 3; Abdin et al. 2024,
    arXiv:2404.14219, section 2.
    Differs: training chooses as reading does, without sampling, and its gradient is that of the
    softmax, as transformers' in evaluation; the losses on the load are `Router`'s.
    """

    @config
    class Config(Router.Config):
        """The config of a `SparseMixer`.

        Args:
            margin: Half of how far an expert may be from the best, as a part of the larger of its
                logit's size and the best's.
        """

        margin: PositiveFloat = 0.01

    def forward(self, x: Float[Array, "batch time dim"]) -> Routing:
        """Return each token's experts and their weights."""
        routing = super().forward(x)
        logits = self.linear(x.astype(self.dtypes.compute)).astype(jnp.float32)
        # Padding has a number past the last expert, and no weight.
        is_real = routing.experts < self.config.num_experts
        chosen = jnp.minimum(routing.experts, self.config.num_experts - 1)
        weights = mixing_weights(logits, chosen, self.config.margin) * self.config.scale
        return Routing(routing.experts, jnp.where(is_real, weights, 0))


def mixing_weights(
    logits_BTE: Logits, experts_BTK: Int[Array, "batch time choices"], margin: float
) -> Float[Array, "batch time choices"]:
    """Return the weight of each choice among the experts that earlier choices left."""
    left_BTE, weights = logits_BTE, []
    for choice in range(experts_BTK.shape[-1]):
        expert_BT1 = experts_BTK[..., choice : choice + 1]
        best_BT1 = jnp.max(jax.lax.stop_gradient(left_BTE), axis=-1, keepdims=True)
        size_BTE = jnp.maximum(jnp.abs(jax.lax.stop_gradient(logits_BTE)), best_BT1)
        is_near = best_BT1 - logits_BTE <= 2 * margin * size_BTE
        # A choice of its own is kept: replayed ones need not be the best.
        is_own = jax.nn.one_hot(experts_BTK[..., choice], logits_BTE.shape[-1], dtype=bool)
        rivals_BTE = jnp.where((is_near & jnp.isfinite(left_BTE)) | is_own, left_BTE, -jnp.inf)
        weights.append(jnp.take_along_axis(jax.nn.softmax(rivals_BTE), expert_BT1, axis=-1))
        left_BTE = jnp.where(is_own, -jnp.inf, left_BTE)
    return jnp.concatenate(weights, axis=-1)
