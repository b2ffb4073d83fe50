"""Learning-rate schedules: from the step to a rate."""

import jax.numpy as jnp
import optax
from jaxtyping import Array

from axcore.config import REQUIRED, Configurable, config
from axcore.errors import ConfigError


class Schedule(Configurable):
    """A learning rate by step. Slot protocol: the parent fills `total_steps`."""

    @config
    class Config(Configurable.Config):
        """Describes a `Schedule`."""

        total_steps: int = REQUIRED

    def __call__(self, step: Array | int) -> Array:
        """Returns the rate of a step, counted from 0."""
        raise NotImplementedError


class Constant(Schedule):
    """The same rate at every step."""

    @config
    class Config(Schedule.Config):
        """Describes a `Constant` schedule."""

        rate: float = REQUIRED

    def __call__(self, step: Array | int) -> Array:
        """Returns the rate."""
        return jnp.asarray(self.config.rate, jnp.float32)


class WarmupCosine(Schedule):
    """Rises linearly to `peak` over the warm-up, then falls along a half cosine.

    Source: Loshchilov and Hutter 2016, arXiv:1608.03983, eq. 5, without restarts.
    """

    @config
    class Config(Schedule.Config):
        """Describes a `WarmupCosine`.

        Args:
            peak: Highest rate.
            warmup_steps: Steps of the rise.
            final_fraction: Rate at the end, as a fraction of the peak.
        """

        peak: float = 3e-4
        warmup_steps: int = 100
        final_fraction: float = 0.1

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        if not 0 <= cfg.warmup_steps < cfg.total_steps:
            raise ConfigError(
                f"warmup_steps is {cfg.warmup_steps}; it must be below the {cfg.total_steps} steps "
                "of training",
                mend="train for more steps, or warm up for fewer",
            )
        self._schedule = optax.warmup_cosine_decay_schedule(
            init_value=cfg.peak / max(1, cfg.warmup_steps),
            peak_value=cfg.peak,
            warmup_steps=cfg.warmup_steps,
            decay_steps=cfg.total_steps,
            end_value=cfg.peak * cfg.final_fraction,
        )

    def __call__(self, step: Array | int) -> Array:
        """Returns the rate of a step."""
        return jnp.asarray(self._schedule(step), jnp.float32)
