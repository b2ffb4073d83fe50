"""Learning-rate schedules: from the step to a rate.

With steps s from 0, warm-up w and total n, every schedule is `(s + 1) / w` of its peak where s < w,
so that no step is lost on a rate of 0. What comes after is each schedule's own.
"""

import itertools
from typing import Annotated, Literal

import jax.numpy as jnp
from jaxtyping import Array

from axcore.config import (
    REQUIRED,
    Configurable,
    NonNegativeFloat,
    PositiveInt,
    config,
)
from axcore.config.values import Range
from axcore.errors import ConfigError

WarmupSteps = Annotated[
    int | float,
    Range(
        "a number of steps, or a share of all that is below 1",
        lambda value: value >= 0 and (isinstance(value, int) or value < 1),
    ),
]
"""A share holds for runs of any length: a try-out of a recipe in few steps warms up in fewer."""


class Schedule(Configurable):
    """A learning rate by step, with a linear warm-up. The learner fills `total_steps`."""

    @config
    class Config(Configurable.Config["Schedule"]):
        """Describes a `Schedule`.

        Args:
            total_steps: Steps of training; filled by the parent.
            peak: Highest rate.
            warmup_steps: Steps of the rise to it, as a whole number; or as a share of all steps,
                between 0 and 1, of which the nearest number of steps is taken.
        """

        total_steps: PositiveInt = REQUIRED
        peak: NonNegativeFloat = 3e-4
        warmup_steps: WarmupSteps = 100

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        warmup: int | float = cfg.warmup_steps
        # Rounded and not raised to 1, so that a small share of a short run means no warmup.
        self.warmup_steps = warmup if isinstance(warmup, int) else round(warmup * cfg.total_steps)
        if self.warmup_steps >= cfg.total_steps:
            raise ConfigError(
                f"warmup_steps is {cfg.warmup_steps}; it must be below the {cfg.total_steps} steps "
                "of training",
                hint="warmup_steps=0.1 is a share of them, for runs of any length",
            )

    def __call__(self, step: Array | int) -> Array:
        """Return the rate of a step, counted from 0."""
        cfg = self.config
        # The first step has a rate above 0: with 0 it
        # would change nothing and still take its batch.
        done = jnp.asarray(step, jnp.float32) + 1
        # Both branches of the `where` are computed, and
        # without a warm-up this one would divide by 0.
        rise = done / max(1, self.warmup_steps)
        rate: Array = cfg.peak * jnp.where(done <= self.warmup_steps, rise, self.after_warmup(done))
        return rate

    def after_warmup(self, done: Array) -> Array:
        """Return the fraction of the peak for step `done - 1`, which is past the warm-up."""
        raise NotImplementedError

    def _fraction_done(self, done: Array, start: int) -> Array:
        """Return how much of the way from step `start` to the end is done, 0 to 1."""
        # Clipped: a run that continues past `total_steps`
        # keeps the last rate, instead of a negative one.
        return jnp.clip((done - start) / (self.config.total_steps - start), 0, 1)


class ConstantSchedule(Schedule):
    """The peak at every step after the warm-up."""

    @config
    class Config(Schedule.Config):
        """Describes a `ConstantSchedule`."""

        warmup_steps: WarmupSteps = 0

    def after_warmup(self, done: Array) -> Array:
        """Return 1."""
        return jnp.ones_like(done)


class WarmupCosine(Schedule):
    """Falls along a half cosine.

    It is `f + (1 - f) (1 + cos(pi (s + 1 - w) / (n - w))) / 2` of the peak, which is the final
    fraction f at the last step.

    Source: Loshchilov and Hutter 2016, arXiv:1608.03983, eq. 5, without restarts.
    """

    @config
    class Config(Schedule.Config):
        """Describes a `WarmupCosine`.

        Args:
            final_fraction: Rate of the last step and after, as a fraction of the peak.
        """

        final_fraction: NonNegativeFloat = 0.1

    def after_warmup(self, done: Array) -> Array:
        """Return the fraction of the peak."""
        cfg = self.config
        final: float = cfg.final_fraction
        fallen = self._fraction_done(done, self.warmup_steps)
        return final + (1 - final) * (1 + jnp.cos(jnp.pi * fallen)) / 2


class WarmupLinear(Schedule):
    """Falls on a straight line to the final fraction at the last step."""

    @config
    class Config(Schedule.Config):
        """Describes a `WarmupLinear`.

        Args:
            final_fraction: Rate of the last step and after, as a fraction of the peak.
        """

        final_fraction: NonNegativeFloat = 0.1

    def after_warmup(self, done: Array) -> Array:
        """Return the fraction of the peak."""
        final: float = self.config.final_fraction
        return 1 - (1 - final) * self._fraction_done(done, self.warmup_steps)


class WarmupInverseSqrt(Schedule):
    """Falls as `sqrt(max(1, w) / (s + 1))` of the peak, whatever the number of steps.

    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 3.
    """

    def after_warmup(self, done: Array) -> Array:
        """Return the fraction of the peak."""
        return jnp.sqrt(max(1, self.warmup_steps) / done)


class WarmupStableDecay(Schedule):
    """WSD: stays at the peak, and falls over the last steps of training.

    With x from 0 to 1 over the decay and final fraction f, it is `1 - (1 - f) x` of the peak, or
    `1 - (1 - f) sqrt(x)`.

    Source: Hu et al. 2024, arXiv:2404.06395, eq. 1; Haegele et al. 2024, arXiv:2405.18392, eq. 1.
    """

    @config
    class Config(Schedule.Config):
        """Describes a `WarmupStableDecay`.

        Args:
            decay_fraction: Steps of the fall, as a fraction of all steps, above 0.
            decay: How it falls: on a line, or steeply at first and then slowly.
            final_fraction: Rate of the last step and after, as a fraction of the peak.
        """

        decay_fraction: float = 0.1
        decay: Literal["linear", "sqrt"] = "linear"
        final_fraction: NonNegativeFloat = 0.0

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        fall = cfg.decay_fraction * cfg.total_steps
        # A tenth of four steps is one of them, so that a recipe can be tried out in as few.
        self.decay_start = cfg.total_steps - max(round(fall), 1 if fall > 0 else 0)
        if not self.warmup_steps <= self.decay_start < cfg.total_steps:
            raise ConfigError(
                f"decay_fraction is {cfg.decay_fraction}, so the rate falls from step "
                f"{self.decay_start} of {cfg.total_steps}; warmup_steps is {self.warmup_steps}",
                hint="the fall starts after the warm-up and takes a step at least; "
                "decay_fraction=0.1 is usual",
            )

    def after_warmup(self, done: Array) -> Array:
        """Return the fraction of the peak."""
        fallen = self._fraction_done(done, self.decay_start)
        fallen = jnp.sqrt(fallen) if self.config.decay == "sqrt" else fallen
        final: float = self.config.final_fraction
        return 1 - (1 - final) * fallen


class WarmupPiecewise(Schedule):
    """Goes through given points: `fractions[i]` of the peak at step `steps[i]`."""

    @config
    class Config(Schedule.Config):
        """Describes a `WarmupPiecewise`.

        Args:
            steps: Where the rate changes, counted from 0; rising, and not in the warm-up.
            fractions: The rate at each, as a fraction of the peak.
            interpolation: Whether the rate jumps at each point and stays, or changes linearly from
                one point to the next. After the last point it stays.
        """

        steps: tuple[int, ...] = REQUIRED
        fractions: tuple[float, ...] = REQUIRED
        interpolation: Literal["constant", "linear"] = "constant"

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        rises = all(a < b for a, b in itertools.pairwise((self.warmup_steps - 1, *cfg.steps)))
        if not (rises and cfg.steps and len(cfg.steps) == len(cfg.fractions)):
            raise ConfigError(
                f"steps are {cfg.steps} and fractions {cfg.fractions}",
                hint="give as many fractions as steps, one at least; steps rise, from "
                f"warmup_steps={self.warmup_steps} on",
            )

    def after_warmup(self, done: Array) -> Array:
        """Return the fraction of the peak."""
        cfg = self.config
        steps, fractions = jnp.asarray(cfg.steps, jnp.float32), jnp.asarray((1.0, *cfg.fractions))
        if cfg.interpolation == "linear":
            first = jnp.asarray([self.warmup_steps - 1], jnp.float32)
            # The warm-up ends at the peak at this step,
            # from where the line to the first point begins.
            return jnp.interp(done - 1, jnp.concatenate([first, steps]), fractions)
        # `right`: at the very step of a point its own fraction holds.
        return fractions[jnp.searchsorted(steps, done - 1, side="right")]
