"""Layers with a bug each, and the same layers without it, in the smallest model that shows them."""

import itertools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from axcore.config import config, replace_config
from axcore.layers import DotProductAttention, Dropout, FeedForward, RoPE
from axcore.layers.linear import as_row
from axcore.models import transformer
from axcore.module import Param
from axcore.plugins import LayerVariant, Ref
from axcore.testing import LayerSuite


class Dropping(FeedForward):
    """What is right: a feed-forward with a dropout of its own, and a factor."""

    @config
    class Config(FeedForward.Config):
        dropout: Dropout.Config = Dropout.Config()

    def setup(self, cfg: Config) -> None:
        super().setup(cfg)
        self.dropout = cfg.dropout.build()
        self.factor = self.new_factor(cfg)

    def new_factor(self, cfg: Config) -> Any:
        return Param((cfg.dim,), axes=("norm",), init=1.0)

    def forward(self, x):
        return self.dropout(super().forward(x)) * as_row(self.factor, x.ndim)


class SeesOtherDocuments(DotProductAttention):
    @config
    class Config(DotProductAttention.Config):
        pass

    def forward(self, q, k, v, info, **options):
        if info.num_cached is None:
            info = info._replace(segment_ids=None)
        return super().forward(q, k, v, info, **options)


class SeesTheFuture(DotProductAttention):
    @config
    class Config(DotProductAttention.Config):
        is_causal: bool = False


class SeesPadding(DotProductAttention):
    """The last token of a row, which may be padding, is in the values of all."""

    @config
    class Config(DotProductAttention.Config):
        pass

    def forward(self, q, k, v, info, **options):
        return super().forward(q, k, v + v[:, -1:], info, **options)


class CountsFromTheCall(RoPE):
    """Its positions begin again with each call, whatever is in the cache."""

    @config
    class Config(RoPE.Config):
        pass

    def forward(self, q, k, positions):
        here = jnp.broadcast_to(jnp.arange(positions.shape[1]), positions.shape)
        return super().forward(q, k, here)


class LooksBack(FeedForward):
    """Adds the token before, of which a cache keeps nothing."""

    @config
    class Config(FeedForward.Config):
        pass

    def forward(self, x):
        return super().forward(x) + jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]


class MixesRows(FeedForward):
    @config
    class Config(FeedForward.Config):
        pass

    def forward(self, x):
        return super().forward(x - jnp.mean(x, axis=0, keepdims=True))


class FixedKey(Dropping):
    """Every step drops the same."""

    @config
    class Config(Dropping.Config):
        pass

    def forward(self, x):
        y = FeedForward.forward(self, x)
        if self.training and self.config.dropout.rate:
            y = y * jax.random.bernoulli(jax.random.key(0), 0.5, y.shape).astype(y.dtype)
        return y * as_row(self.factor, x.ndim)


class DropsAlways(Dropping):
    """Outside of training, too."""

    @config
    class Config(Dropping.Config):
        pass

    def forward(self, x):
        y = FeedForward.forward(self, x)
        if self.config.dropout.rate:
            y = y * jax.random.bernoulli(self.rng("dropout"), 0.5, y.shape).astype(y.dtype)
        return y * as_row(self.factor, x.ndim)


class DropsNever(Dropping):
    @config
    class Config(Dropping.Config):
        pass

    def forward(self, x):
        return FeedForward.forward(self, x) * as_row(self.factor, x.ndim)


class UnusedParameter(Dropping):
    @config
    class Config(Dropping.Config):
        pass

    def forward(self, x):
        return FeedForward.forward(self, x)


class CutGradient(Dropping):
    @config
    class Config(Dropping.Config):
        pass

    def forward(self, x):
        return jax.lax.stop_gradient(super().forward(x)) + x


class InfiniteGradient(Dropping):
    """The square root of what is zero has no finite slope."""

    @config
    class Config(Dropping.Config):
        pass

    def forward(self, x):
        return super().forward(x) + jnp.sqrt(jnp.abs(x - x))


class ClimbsTheLoss(Dropping):
    """Its backward pass has the wrong sign."""

    @config
    class Config(Dropping.Config):
        pass

    def forward(self, x):
        y = super().forward(x)
        return y + 5000 * (jax.lax.stop_gradient(y) - y)


class NarrowParameter(Dropping):
    """Small steps are lost in it."""

    @config
    class Config(Dropping.Config):
        pass

    def new_factor(self, cfg: Config) -> Any:
        return Param((cfg.dim,), axes=("norm",), init=1.0, dtype="bfloat16")

    def forward(self, x):
        factor = as_row(self.factor, x.ndim).astype(x.dtype)
        return FeedForward.forward(self, x) * factor


class LosesSmallNumbers(Dropping):
    """1000 more and 1000 less is nothing in float32, and everything in bfloat16."""

    @config
    class Config(Dropping.Config):
        pass

    def forward(self, x):
        return super().forward((x + 100) - 100)


class CountsCalls(Dropping):
    """Something is different each time that it is traced."""

    calls: ClassVar = itertools.count()

    @config
    class Config(Dropping.Config):
        pass

    def forward(self, x):
        return super().forward(x) * (1 + 0.1 * next(self.calls))


class DrawsByItself(Dropping):
    """numpy's random numbers, which become constants of the program."""

    @config
    class Config(Dropping.Config):
        pass

    def forward(self, x):
        return super().forward(x) + np.random.standard_normal((1, 1, x.shape[-1])).astype(
            np.float32
        )


class OtherFirstWeights(Dropping):
    """Its first weights do not come from the key."""

    @config
    class Config(Dropping.Config):
        pass

    def new_factor(self, cfg: Config) -> Any:
        return Param((cfg.dim,), axes=("norm",), init=float(np.random.uniform(1, 2)))


class KnowsItsRows(Dropping):
    """As many rows as there are, so strong is it."""

    @config
    class Config(Dropping.Config):
        pass

    def forward(self, x):
        return super().forward(x) * x.shape[0]


class HoldsAFunction(Dropping):
    """A field that no file can hold."""

    @config
    class Config(Dropping.Config):
        function: Any = jnp.tanh


class PlantedLayers(LayerSuite):
    plugin = "axl-planted"
    layer: ClassVar[Any] = Dropping
    replaces: ClassVar[Any] = FeedForward

    @classmethod
    def records(cls):
        ref = Ref("planted_layers:Dropping.Config")
        replaces = Ref("axcore.layers:FeedForward")
        return (LayerVariant(name="planted", config=ref, replaces=replaces, summary="Planted"),)

    def base(self):
        return transformer(vocab_size=40, dim=8, num_layers=1, num_heads=2, hidden_dim=8)

    def model(self, record):
        def planted(old):
            fields = {"hidden_dim": 8} if self.replaces is FeedForward else {}
            return self.layer.Config(**fields)

        return replace_config(self.base(), self.replaces, planted)


class PlantedCores(PlantedLayers):
    replaces = DotProductAttention
    layer = DotProductAttention


class PlantedPositions(PlantedLayers):
    replaces = RoPE
    layer = RoPE
