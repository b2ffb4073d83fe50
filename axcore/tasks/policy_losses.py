"""The choices that policy gradients are made of: advantages, ratios, clips and penalties.

Letters: B rows, T tokens of a row.
"""

from collections.abc import Mapping
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from axcore.config import NonNegativeFloat, PositiveFloat, config

Tokens = Float[Array, "batch time"]

_SMALLEST_STD = 1e-4
"""Is added to a standard deviation before rewards are divided by it, as TRL does."""


@config
class Advantage:
    """How the rewards of a group become advantages.

    Args:
        baseline: What is subtracted: the mean of the group, or of the group's other completions.
        scale: What is divided by: the standard deviation of the group, of the full batch, or
            nothing.
    """

    baseline: Literal["mean", "leave_one_out"] = "mean"
    scale: Literal["group", "batch", "none"] = "group"


def advantages(cfg: Advantage, batch: Mapping[str, Array]) -> Float[Array, " batch"]:
    """Return the advantage of each completion.

    Args:
        cfg: How they are made.
        batch: `rewards`, `group_mean`, `group_std`, `group_size` and `batch_std`, `[batch]` each.
    """
    found_B = batch["rewards"] - batch["group_mean"]
    if cfg.baseline == "leave_one_out":
        # r - (S - r) / (G - 1), with S the sum of the group's rewards.
        size_B = batch["group_size"]
        found_B = found_B * size_B / jnp.maximum(size_B - 1, 1)
    if cfg.scale != "none":
        found_B = found_B / (batch[f"{cfg.scale}_std"] + _SMALLEST_STD)
    return jax.lax.stop_gradient(found_B)


def group_statistics(
    rewards: np.ndarray, weights: np.ndarray, groups: np.ndarray
) -> dict[str, np.ndarray]:
    """Return mean, deviation and size of each row's group, and the batch's deviation, on the host.

    Deviations divide by the number less one, as TRL's do.

    Args:
        rewards: Of each row.
        weights: 0 for rows that do not count.
        groups: Which group each row is of; -1 for rows of padding.
    """
    found = {name: np.zeros(len(rewards), np.float32) for name in ("mean", "std", "size")}
    for group in set(groups.tolist()) - {-1}:
        rows = (groups == group) & (weights > 0)
        values = rewards[rows].astype(np.float64)
        if len(values):
            found["mean"][rows], found["std"][rows] = values.mean(), _deviation(values)
            found["size"][rows] = len(values)
    counted = rewards[weights > 0].astype(np.float64)
    batch_std = np.full(len(rewards), _deviation(counted), np.float32)
    return {**{f"group_{name}": array for name, array in found.items()}, "batch_std": batch_std}


def _deviation(values: np.ndarray) -> float:
    # Of equal rewards exactly 0: a rounding error, divided by itself, would be an advantage of 1.
    if len(values) < 2 or np.all(values == values[0]):
        return 0.0
    return float(values.std(ddof=1))


def masked(values: Tokens, mask: Tokens) -> Tokens:
    """Return values with 0 where nothing counts.

    A token there may have a log-probability of minus infinity, and the difference of two such
    is nan.
    """
    return jnp.where(mask > 0, values, 0)


@config
class Clip:
    """How far the policy may go from the one that sampled.

    Args:
        low: The ratio of probabilities is clipped below at 1 - low.
        high: And above at 1 + high.
        level: What has a ratio: each `token`; or each completion, the geometric mean of its tokens'
            ratios (`sequence`) or their `product`.
    """

    low: PositiveFloat = 0.2
    high: PositiveFloat = 0.2
    level: Literal["token", "sequence", "product"] = "token"


def clipped_losses(log_ratio: Tokens, advantage: Tokens, clip: Clip) -> tuple[Tokens, Tokens]:
    """Return the loss of each token, and whether the clip decided it.

    Args:
        log_ratio: Log of each token's ratio.
        advantage: Each token's advantage.
        clip: The clip.

    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 7.
    """
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - clip.low, 1 + clip.high)
    free, bounded = ratio * advantage, clipped * advantage
    return -jnp.minimum(free, bounded), (bounded < free).astype(jnp.float32)


def at_level(
    values: Tokens, mask: Tokens, level: Literal["token", "sequence", "product"]
) -> Tokens:
    """Return the log-ratios of tokens, or at each token that of its completion.

    Source: Zheng et al. 2025, arXiv:2507.18071, eq. 7, for the mean over a completion's tokens.
    """
    if level == "token":
        return values
    found_B1 = jnp.sum(values * mask, axis=1, keepdims=True)
    if level == "sequence":
        found_B1 = found_B1 / jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1)
    return jnp.broadcast_to(found_B1, values.shape)


@config
class KLPenalty:
    """What it costs to go away from the model before training.

    Args:
        coefficient: Weight of the divergence; 0 keeps no copy of the model.
        form: Its estimate from a token's log-ratio r = log p_policy - log p_reference: `k1` is r,
            `k2` r^2 / 2, and `k3` exp(-r) - 1 + r.
        is_weighted_by_ratio: Of a penalty that is a loss, and does not come off rewards: whether
            each estimate is multiplied by the clip's ratio, unclipped.
            Then the gradient of `k1` and `k3` is, in the mean, that of the divergence. Without, as
            in GRPO's paper, that of `k3` is another divergence's, that of `k1` has a mean of 0
            before the first update, and `k2` is right there.

    Source: Schulman 2020, "Approximating KL divergence"; DeepSeek-AI 2025, arXiv:2512.02556,
        section 3.1, for the ratio.
    """

    coefficient: NonNegativeFloat = 0.0
    form: Literal["k1", "k2", "k3"] = "k3"
    is_weighted_by_ratio: bool = True


def kl_estimates(log_ratio: Tokens, form: Literal["k1", "k2", "k3"]) -> Tokens:
    """Return the divergence from the reference at each token, by its log-ratio."""
    if form == "k1":
        return log_ratio
    if form == "k2":
        return log_ratio**2 / 2
    return jnp.expm1(-log_ratio) + log_ratio


@config
class SamplerCorrection:
    """How losses are weighted by the trainer's probability of a token over the sampler's.

    That ratio is 1 but for rounding where both compute alike. It matters where the sampler has
    other weights, fewer bits or filters.

    Args:
        max_ratio: The largest weight; None weights nothing.
        level: What has a ratio: each `token`, or each completion the `product` of its tokens'.
        above: Whether a larger ratio counts as `max_ratio`, or its token or completion for nothing.

    Source: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
        training"; Liu et al. 2025, "When speed kills stability", for what counts for nothing.
    """

    max_ratio: PositiveFloat | None = 2.0
    level: Literal["token", "product"] = "token"
    above: Literal["cap", "drop"] = "cap"


def sampler_weights(cfg: SamplerCorrection, log_ratio: Tokens, mask: Tokens) -> Tokens:
    """Return what the loss of each token is multiplied by; no gradient.

    Args:
        cfg: How.
        log_ratio: Log-probability of each token by the policy that sampled, as the trainer
            computes it, less that which the sampler computed.
        mask: 1 for tokens that count.
    """
    if cfg.max_ratio is None:
        return jnp.ones_like(log_ratio)
    ratio = jnp.exp(jax.lax.stop_gradient(at_level(log_ratio, mask, cfg.level)))
    if cfg.above == "drop":
        return jnp.where(ratio > cfg.max_ratio, 0, ratio)
    return jnp.minimum(ratio, cfg.max_ratio)
