"""Small modules for tests: each shows one thing that modules can do."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from axcore.config import REQUIRED, config
from axcore.module import Initializer, Module, Param, StackedModule, entry


@config
class Ramp(Initializer):
    """Fixed values without a pattern; unlike random ones they compile at once."""

    scale: float = 0.3

    def sample(self, key: Array, shape: tuple[int, ...], fans: tuple[int, int]) -> Array:
        size = math.prod(shape)
        return self.scale * jnp.sin(1.7 * jnp.arange(1.0, 1.0 + size)).reshape(shape)


class Linear(Module):
    """A weight. The parent fills the sizes."""

    @config
    class Config(Module.Config):
        in_dim: int = REQUIRED
        out_dim: int = REQUIRED
        init: Initializer = Ramp()

    def setup(self, cfg: Config) -> None:
        self.weight = Param((cfg.in_dim, cfg.out_dim), axes=("embed", "mlp"), init=cfg.init)

    def forward(self, x: Array) -> Array:
        return x @ self.weight

    @entry
    def transposed(self, x: Array) -> Array:
        return x @ self.weight.T


class RunningMean(Module):
    """Subtracts a running mean of what it has seen in training: a statistic, and its update."""

    @config
    class Config(Module.Config):
        dim: int = REQUIRED
        momentum: float = 0.9

    def setup(self, cfg: Config) -> None:
        self.mean = Param((cfg.dim,), axes=("embed",), init=0.0, is_buffer=True)

    def forward(self, x: Array) -> Array:
        if self.training:
            momentum = self.config.momentum
            seen = jnp.mean(x, axis=tuple(range(x.ndim - 1)))
            self.update("mean", momentum * self.mean + (1 - momentum) * seen)
        return x - jnp.expand_dims(self.mean, tuple(range(x.ndim - 1)))


class Layer(Module):
    """Two projections, a running mean, noise, a loss, a summary and a capture."""

    @config
    class Config(Module.Config):
        dim: int = REQUIRED
        linear: Module.Config = Linear.Config()
        norm: Module.Config = RunningMean.Config()
        noise: float = 0.0

    def setup(self, cfg: Config) -> None:
        self.up = cfg.linear.build(in_dim=cfg.dim, out_dim=2 * cfg.dim)
        self.down = cfg.linear.build(in_dim=2 * cfg.dim, out_dim=cfg.dim)
        self.norm = cfg.norm.build(dim=cfg.dim)

    def forward(self, x: Array) -> Array:
        hidden = jnp.tanh(self.up(self.norm(x)))
        if self.config.noise:
            hidden = hidden + self.config.noise * jax.random.normal(self.rng("noise"), hidden.shape)
        self.capture("hidden", hidden)
        self.add_loss("size", jnp.sum(hidden**2), hidden.size, scale=0.5)
        self.add_summary("largest", jnp.max(hidden))
        return x + self.down(hidden)


class Scanned(Module):
    """Layers under a scan."""

    @config
    class Config(Module.Config):
        dim: int = REQUIRED
        num_layers: int = 3
        layer: Module.Config = Layer.Config()

    def setup(self, cfg: Config) -> None:
        self.layer = StackedModule(cfg.layer.build(dim=cfg.dim), cfg.num_layers)

    def forward(self, x: Array) -> Array:
        return self.layer.scan(x)


class Unrolled(Module):
    """The same layers one by one."""

    @config
    class Config(Scanned.Config):
        pass

    def setup(self, cfg: Config) -> None:
        self.layer = tuple(cfg.layer.build(dim=cfg.dim) for _ in range(cfg.num_layers))

    def forward(self, x: Array) -> Array:
        for layer in self.layer:
            x = layer(x)
        return x


class Parallel(Module):
    """Copies that run at once, each on its own item; returns the mean of their results."""

    @config
    class Config(Scanned.Config):
        pass

    def setup(self, cfg: Config) -> None:
        self.layer = StackedModule(cfg.layer.build(dim=cfg.dim), cfg.num_layers)

    def forward(self, x: Array) -> Array:
        every = jnp.broadcast_to(x, (self.config.num_layers, *x.shape))
        return jnp.mean(self.layer.vmap(every), axis=0)


def stacked(state: dict[str, Any], num_layers: int) -> dict[str, Any]:
    """Returns an unrolled stack's state as a scanned one's."""
    layers = [state["layer"][str(i)] for i in range(num_layers)]
    return {**state, "layer": jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)}
