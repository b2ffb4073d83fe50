"""Learning-rate schedules: from the step to a rate."""

import jax.numpy as jnp
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

    With steps s from 0, warm-up w and total n: `(s + 1) / w` of the peak where s < w, so that no
    step is lost on a rate of 0; then `f + (1 - f) (1 + cos(pi (s + 1 - w) / (n - w))) / 2` of it,
    which is the final fraction f at the last step.

    Source: Loshchilov and Hutter 2016, arXiv:1608.03983, eq. 5, without restarts.
    """

    @config
    class Config(Schedule.Config):
        """Describes a `WarmupCosine`.

        Args:
            peak: Highest rate.
            warmup_steps: Steps of the rise.
            final_fraction: Rate of the last step and after, as a fraction of the peak.
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

    def __call__(self, step: Array | int) -> Array:
        """Returns the rate of a step, counted from 0."""
        cfg = self.config
        done = jnp.asarray(step, jnp.float32) + 1
        rise = done / max(1, cfg.warmup_steps)
        fallen = jnp.clip((done - cfg.warmup_steps) / (cfg.total_steps - cfg.warmup_steps), 0, 1)
        fall = cfg.final_fraction + (1 - cfg.final_fraction) * (1 + jnp.cos(jnp.pi * fallen)) / 2
        rate: Array = cfg.peak * jnp.where(done <= cfg.warmup_steps, rise, fall)
        return rate
