"""Config classes for tests, and hypothesis strategies for trees of them."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import optax
from hypothesis import strategies as st

from axcore.config import REQUIRED, Configurable, config


class Linear(Configurable):
    @config
    class Config(Configurable.Config):
        in_dim: int = REQUIRED
        out_dim: int = REQUIRED
        has_bias: bool = False


class FeedForward(Configurable):
    @config
    class Config(Configurable.Config):
        dim: int = REQUIRED
        hidden_dim: int = REQUIRED
        activation: Literal["silu", "gelu"] = "silu"
        linear: Configurable.Config = Linear.Config()

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.up = cfg.linear.build(in_dim=cfg.dim, out_dim=cfg.hidden_dim)
        self.down = cfg.linear.build(in_dim=cfg.hidden_dim, out_dim=cfg.dim)


class Net(Configurable):
    @config
    class Config(Configurable.Config):
        dim: int = REQUIRED
        rate: float = 0.0
        name: str = "net"
        rules: Mapping[str, tuple[str, ...]] = {"embed": ["data"]}
        layers: tuple[Configurable.Config, ...] = (
            FeedForward.Config(hidden_dim=8),
            FeedForward.Config(hidden_dim=16),
        )
        extra: FeedForward.Config | None = None
        parts: Mapping[str, Configurable.Config] = {}
        fn: Callable[..., Any] | None = None
        anything: Any = None

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.layers = tuple(layer.build(dim=cfg.dim) for layer in cfg.layers)


NET = Net.Config(dim=4)

words = st.text(max_size=12)
names = st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=6)
integers = st.integers() | st.integers(-(2**200), 2**200)
floats = st.floats(allow_nan=False)
scalars = st.none() | st.booleans() | integers | floats | words
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
required_or = st.just(REQUIRED) | st.integers(0, 9)

linears = st.builds(Linear.Config, in_dim=required_or, out_dim=required_or, has_bias=st.booleans())
feed_forwards = st.builds(
    FeedForward.Config,
    dim=required_or,
    hidden_dim=required_or,
    activation=st.sampled_from(["silu", "gelu"]),
    linear=linears,
)
nets = st.builds(
    Net.Config,
    dim=required_or,
    rate=floats,
    name=words,
    rules=st.dictionaries(words, st.lists(words, max_size=2), max_size=3),
    layers=st.lists(feed_forwards | linears, max_size=3),
    extra=st.none() | feed_forwards,
    parts=st.dictionaries(words, feed_forwards, max_size=2),
    fn=st.sampled_from([None, optax.sgd]),
    anything=values,
)
