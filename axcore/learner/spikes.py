"""`SpikeGuard`: finds steps whose loss jumps, so that they change nothing."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from axcore.config import Configurable, PositiveFloat, PositiveInt, config


class LossWindow(NamedTuple):
    """Losses of the last steps that were not skipped, in a ring.

    Args:
        losses: Where step i of those is at place `i % window`.
        num_losses: How many there were.
    """

    losses: Float[Array, " window"]
    num_losses: Int[Array, ""]


class SpikeGuard(Configurable):
    """Finds a spike: a loss more than `sigmas` standard deviations above the mean of its window.

    It finds none until the window is full.
    """

    @config
    class Config(Configurable.Config["SpikeGuard"]):
        """Describes a `SpikeGuard`.

        Args:
            sigmas: Standard deviations above the mean from which a loss is a spike; 6 is cautious.
                None takes no loss for a spike.
            window: Steps that the mean is taken over.
        """

        sigmas: PositiveFloat | None = None
        window: PositiveInt = 100

    def init(self) -> LossWindow:
        """Returns the window before the first step."""
        return LossWindow(jnp.zeros(self.config.window, jnp.float32), jnp.zeros((), jnp.int32))

    def is_spike(self, window: LossWindow, loss: Float[Array, ""]) -> Bool[Array, ""]:
        """Whether a loss is a spike after those of the window."""
        sigmas = self.config.sigmas
        assert sigmas is not None, "a learner asks no guard that takes no loss for a spike"
        limit = jnp.mean(window.losses) + sigmas * jnp.std(window.losses)
        is_full: Array = window.num_losses >= self.config.window
        is_spike: Array = is_full & (loss > limit)
        return is_spike

    def add(self, window: LossWindow, loss: Float[Array, ""]) -> LossWindow:
        """Returns the window with the loss of one more step."""
        place = window.num_losses % self.config.window
        return LossWindow(
            window.losses.at[place].set(loss.astype(jnp.float32)), window.num_losses + 1
        )
