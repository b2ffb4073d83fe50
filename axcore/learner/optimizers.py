"""Optimizers: configs of optax transformations."""

from collections.abc import Callable
from typing import Any

import optax

from axcore.config import Configurable, config


class AdamW(Configurable):
    """Adam with decoupled weight decay.

    Source: Loshchilov and Hutter 2017, arXiv:1711.05101, algorithm 2.
    """

    @config
    class Config(Configurable.Config):
        """Describes an `AdamW`.

        Args:
            b1: Decay of the mean of gradients.
            b2: Decay of the mean of squared gradients.
            epsilon: Added to the root of the second.
            weight_decay: Factor on parameters that decay, times the learning rate.
        """

        b1: float = 0.9
        b2: float = 0.95
        epsilon: float = 1e-8
        weight_decay: float = 0.1

    def transformation(
        self, learning_rate: Callable[[Any], Any], decays: Any
    ) -> optax.GradientTransformation:
        """Returns the optax transformation.

        Args:
            learning_rate: From step to rate.
            decays: A tree of bools shaped as the parameters: where weight decay applies.
        """
        cfg = self.config
        return optax.adamw(
            learning_rate,
            b1=cfg.b1,
            b2=cfg.b2,
            eps=cfg.epsilon,
            weight_decay=cfg.weight_decay,
            mask=decays,
        )
