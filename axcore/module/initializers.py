"""Initializers: configs that sample a parameter's first value from its key, shape and fans."""

import math
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

from axcore.config import config

Distribution = Literal["normal", "truncated_normal", "uniform"]


@config
class Initializer:
    """Samples an initial value. Subclasses implement `sample`."""

    def sample(self, key: Array, shape: tuple[int, ...], fans: tuple[int, int]) -> Array:
        """Return a float32 array.

        Args:
            key: The parameter's own random key.
            shape: The parameter's shape, without dimensions of stacked layers.
            fans: Number of inputs that each output sums over, and of outputs each input reaches.
        """
        raise NotImplementedError


@config
class ConstantInit(Initializer):
    """Every element is `value`."""

    value: float = 0.0

    def sample(self, key: Array, shape: tuple[int, ...], fans: tuple[int, int]) -> Array:
        """Return a constant array."""
        return jnp.full(shape, self.value, jnp.float32)


@config
class Normal(Initializer):
    """Normal with standard deviation `std`, whatever the fans."""

    std: float = 0.02

    def sample(self, key: Array, shape: tuple[int, ...], fans: tuple[int, int]) -> Array:
        """Return normal samples."""
        return self.std * jax.random.normal(key, shape, jnp.float32)


@config
class VarianceScaling(Initializer):
    """Zero mean and variance `scale / fan`.

    Source: He et al. 2015, arXiv:1502.01852, eq. 10 (fan_in, scale 2); Glorot and Bengio 2010,
    eq. 16 (fan_avg, scale 1).
    """

    scale: float = 1.0
    fan: Literal["fan_in", "fan_out", "fan_avg"] = "fan_in"
    distribution: Distribution = "truncated_normal"

    def sample(self, key: Array, shape: tuple[int, ...], fans: tuple[int, int]) -> Array:
        """Return samples scaled by the fans."""
        fan_in, fan_out = fans
        fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self.fan]
        std = math.sqrt(self.scale / max(1.0, fan))
        if self.distribution == "normal":
            return std * jax.random.normal(key, shape, jnp.float32)
        if self.distribution == "uniform":
            limit = math.sqrt(3.0) * std
            return jax.random.uniform(key, shape, jnp.float32, -limit, limit)
        # A normal truncated at two standard deviations has 0.8796 of the deviation of a full one.
        samples = jax.random.truncated_normal(key, -2.0, 2.0, shape, jnp.float32)
        return std / 0.87962566103423978 * samples
