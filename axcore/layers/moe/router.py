"""`Router`: which experts each token goes to, and what keeps them evenly loaded.

Letters: B batch, T time, E experts, G groups of experts, K choices of a token.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ConfigError
from axcore.layers.linear import Linear, as_row
from axcore.layers.routes import RECORDED_ROUTES, REPLAYED_ROUTES, Routes
from axcore.layers.tokens import TOKEN_MASK
from axcore.module import DTypes, Module, Param

Tokens = Float[Array, "batch time"]
"""1 for a token that counts, 0 for padding."""


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
    """Let a token choose among the experts of its best groups only, so that it visits few devices.

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
        """Check that the numbers are compatible.

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
        """Return scores with minus infinity outside of each token's best groups."""
        scores_BTGS = scores_BTE.reshape(*scores_BTE.shape[:2], self.num_groups, -1)
        best_BTGR, _ = jax.lax.top_k(scores_BTGS, self.rated_by)
        _, kept_BTK = jax.lax.top_k(jnp.sum(best_BTGR, axis=-1), self.num_kept)
        # As a mask, not by indices: a gather of groups would need a scatter to give experts their
        # numbers back.
        is_kept_BTG = jnp.any(jax.nn.one_hot(kept_BTK, self.num_groups, dtype=bool), axis=-2)
        limited = jnp.where(is_kept_BTG[..., None], scores_BTGS, -jnp.inf)
        return limited.reshape(scores_BTE.shape)


def chosen(scores_BTE: Scores, rating_BTE: Scores, top_k: int) -> Routing:
    """Return the `top_k` experts of highest rating, weighted by their scores.

    Of equal ratings the expert of lower number is chosen.
    """
    # Ratings may have a bias, which only chooses: weights and gradients are of the scores.
    _, experts_BTK = jax.lax.top_k(jax.lax.stop_gradient(rating_BTE), top_k)
    return weighted(scores_BTE, experts_BTK)


def weighted(scores_BTE: Scores, experts_BTK: Int[Array, "batch time choices"]) -> Routing:
    """Return chosen experts, weighted by their scores."""
    return Routing(experts_BTK, jnp.take_along_axis(scores_BTE, experts_BTK, axis=-1))


def normalised(weights_BTK: Float[Array, "batch time choices"]) -> Array:
    """Return the weights divided by each token's sum of them."""
    # Sigmoid scores of all choices may underflow to 0.
    total = jnp.sum(weights_BTK, axis=-1, keepdims=True)
    tiny = jnp.finfo(weights_BTK.dtype).tiny  # type: ignore[no-untyped-call]
    return weights_BTK / jnp.maximum(total, tiny)


def counts(
    experts: Int[Array, "*batch choices"], num_experts: int
) -> Float[Array, "*batch experts"]:
    """Return how many of the choices fell on each expert; numbers past the last are none."""
    return jnp.sum(jax.nn.one_hot(experts, num_experts, dtype=jnp.float32), axis=-2)


class Router(Module):
    """Score experts by a linear map of the token, and choose the best.

    Three ways keep the load even, apart or together: a loss on the load (`balance_loss`), a bias on
    the ratings that moves against the load (`bias_rate`), and limits to groups (`groups`). Padding
    goes to no expert: its choices have the number `num_experts`, and nothing counts it.

    Source: Shazeer et al. 2017, arXiv:1701.06538 (top-k); Fedus et al. 2021, arXiv:2101.03961,
    eq. 4 to 6 (the balance loss); Zoph et al. 2022, arXiv:2202.08906, eq. 5 (the z-loss); Wang et
    al. 2024, arXiv:2408.15664, algorithm 1 (the bias).
    Differs: the balance loss is taken for each row by itself, as in arXiv:2412.19437, eq. 17 to 20,
    so that it is the same however a batch is split; `balance_over="batch"` takes it over all rows
    that are in memory at once.

    Slot protocol: the parent fills `dim`, `num_experts` and `top_k`.
    """

    @config
    class Config(Module.Config["Router"]):
        """The config of a `Router`. It computes in float32 by default.

        Args:
            dim: Size of a token's vector.
            num_experts: Number of experts.
            top_k: Experts that each token goes to.
            score: What makes scores of logits.
            is_normalized: Whether the weights of a token's choices are divided by their sum.
            scale: Factor on the weights.
            groups: Limits a token to the experts of a few groups.
            balance_loss: Coefficient of the loss on uneven load; 1 per layer is its least value.
            balance_over: What the load is taken over in that loss.
            z_loss: Coefficient of the squared log-partition, which keeps logits small.
            bias_rate: How far a step moves each expert's bias; 0 has none.
            linear: From token to logits.
        """

        dtypes: DTypes = DTypes(compute="float32")
        dim: PositiveInt = REQUIRED
        num_experts: PositiveInt = REQUIRED
        top_k: PositiveInt = REQUIRED
        score: Literal["softmax", "sigmoid"] = "softmax"
        is_normalized: bool = True
        scale: float = 1.0
        groups: GroupLimit | None = None
        balance_loss: float = 0.01
        balance_over: Literal["row", "batch"] = "row"
        z_loss: float = 0.0
        bias_rate: float = 0.0
        linear: Module.Config = Linear.Config()

    @property
    def num_choices(self) -> tuple[int, int]:
        """How many experts there are, and how many of them a token goes to."""
        return self.config.num_experts, self.config.top_k

    def setup(self, cfg: Config) -> None:
        """Check the numbers; build the linear map and declare the bias."""
        if not 1 <= cfg.top_k <= cfg.num_experts:
            raise ConfigError(
                f"top_k is {cfg.top_k}, with {cfg.num_experts} experts",
                where="top_k",
                hint=f"choose 1 to {cfg.num_experts}",
            )
        for name in ("balance_loss", "z_loss", "bias_rate"):
            if getattr(cfg, name) < 0:
                raise ConfigError(f"{name} is {getattr(cfg, name)}; expected 0 or more", where=name)
        if cfg.groups is not None:
            cfg.groups.check(cfg.num_experts, cfg.top_k)
        self.linear = cfg.linear.build(
            in_dim=cfg.dim, out_dim=cfg.num_experts, axes=("embed", None)
        )
        if cfg.bias_rate:
            self.bias = Param((cfg.num_experts,), axes=(None,), init=0.0, is_buffer=True)

    def forward(self, x: Float[Array, "batch time dim"]) -> Routing:
        """Return each token's experts and their weights."""
        cfg = self.config
        # In 16 bits different experts may score alike, and the one of lower number would be chosen.
        logits = self.linear(x.astype(self.dtypes.compute)).astype(jnp.float32)
        scores = jax.nn.softmax(logits) if cfg.score == "softmax" else jax.nn.sigmoid(logits)
        routing = self._routing(scores)
        weights = normalised(routing.weights) if cfg.is_normalized else routing.weights
        is_real = self.get_shared(TOKEN_MASK)
        if is_real is None:
            is_real = jnp.ones(scores.shape[:2], bool)
        # A number past the last expert, and not a weight of 0 alone: padding would take room in
        # experts' blocks.
        experts = jnp.where(is_real[..., None], routing.experts, cfg.num_experts)
        weights = jnp.where(is_real[..., None], weights * cfg.scale, 0)
        self._keep_even(logits, scores, experts, is_real.astype(jnp.float32))
        return Routing(experts, weights)

    def _routing(self, scores: Scores) -> Routing:
        """Return what the scores choose, or the routes of an earlier call chose."""
        cfg = self.config
        replayed: Routes | None = self.get_shared(REPLAYED_ROUTES)
        if replayed is not None:
            rest, experts = replayed.read(cfg.top_k)
            self.set_shared(REPLAYED_ROUTES, rest)
            return weighted(scores, experts)
        rating = scores + as_row(self.bias, 3) if cfg.bias_rate else scores
        if cfg.groups is not None:
            rating = cfg.groups.limited(rating)
        routing = chosen(scores, rating, cfg.top_k)
        recorded: Routes | None = self.get_shared(RECORDED_ROUTES)
        if recorded is not None:
            # Before padding loses its experts: a number past the last may not fit the dtype.
            self.set_shared(RECORDED_ROUTES, recorded.written(routing.experts))
        return routing

    def _keep_even(self, logits: Scores, scores: Scores, experts: Array, real: Tokens) -> None:
        """Add the losses, the next bias and the summaries."""
        cfg = self.config
        load = counts(experts, cfg.num_experts)
        share = jnp.sum(load, axis=(0, 1)) / jnp.maximum(cfg.top_k * jnp.sum(real), 1.0)
        self.add_summary("load", share)
        if cfg.balance_loss:
            total, weight = _balance(load / cfg.top_k, scores, real, cfg.balance_over)
            self.add_regularizer("load_balance", total, weight, scale=cfg.balance_loss)
        if cfg.z_loss:
            squares = jnp.square(jax.nn.logsumexp(logits, axis=-1))
            self.add_regularizer("z", jnp.sum(squares * real), jnp.sum(real), scale=cfg.z_loss)
        if cfg.bias_rate and self.training:
            # A batch of padding alone would otherwise raise every expert's bias.
            step = jnp.where(jnp.any(real), jnp.sign(1.0 / cfg.num_experts - share), 0)
            self.update("bias", (self.bias + cfg.bias_rate * step).astype(self.bias.dtype))


def _balance(load: Scores, scores: Scores, real: Tokens, over: str) -> tuple[Array, Array]:
    """Return the sum over tokens of the balance loss `E f P`, and the number of tokens.

    f is the share of choices that fell on an expert, P its mean probability, each over a row or
    the batch.
    """
    probability = scores / jnp.sum(scores, axis=-1, keepdims=True) * real[..., None]
    axes = (1,) if over == "row" else (0, 1)
    tokens = jnp.sum(real, axis=axes)
    share, mean = (
        jnp.sum(x, axis=axes) / jnp.maximum(tokens[..., None], 1.0) for x in (load, probability)
    )
    # Only P has a gradient, as counts have none: it pushes probability away from experts with a
    # high share.
    loss = load.shape[-1] * jnp.sum(share * mean, axis=-1)
    return jnp.sum(loss * tokens), jnp.sum(real)
