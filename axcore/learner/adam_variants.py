"""Optimizers that change one part of Adam: its step size, its momentum, or its order."""

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from axcore.config import Fraction, NonNegativeFloat, PositiveFloat, Resumable, config
from axcore.learner.optimizers import Optimizer, Rate, map_specs, weight_decay_mask
from axcore.module import ParamSpec

if TYPE_CHECKING:
    import optax


class LAMB(Optimizer):
    """AdamW whose update of each layer has the norm of the layer's weights, for large batches.

    Copies in stacked layers have ratios of their own.

    Source: You et al. 2019, arXiv:1904.00962, algorithm 2, with the identity as its phi.
    """

    @config
    class Config(Optimizer.Config):
        """Describes a `LAMB`.

        Args:
            b1: Decay of the mean of gradients.
            b2: Decay of the mean of squared gradients.
            epsilon: Added to the root of the second.
            weight_decay: Factor on parameters that decay, times the learning rate and the ratio of
                norms.
        """

        b1: Fraction = 0.9
        b2: Fraction = 0.999
        epsilon: PositiveFloat = 1e-6
        weight_decay: Resumable[NonNegativeFloat] = 0.01

    def transformation(self, learning_rate: Rate, specs: Any) -> "optax.GradientTransformation":
        """Return `optax.lamb`, with one ratio for each copy in stacked layers."""
        import optax

        cfg = self.config
        of_layer = optax.scale_by_trust_ratio()

        def scaled(spec: ParamSpec, update: Any, param: Any) -> Any:
            def fn(update: Any, param: Any) -> Any:
                return of_layer.update(update, of_layer.init(param), param)[0]

            # By itself optax would take a stack for one layer.
            for _ in range(spec.num_stacked):
                fn = jax.vmap(fn)
            return fn(update, param)

        return optax.chain(
            optax.scale_by_adam(b1=cfg.b1, b2=cfg.b2, eps=cfg.epsilon),
            optax.add_decayed_weights(cfg.weight_decay, weight_decay_mask(specs)),
            optax.stateless(lambda updates, params: map_specs(scaled, specs, updates, params)),
            optax.scale_by_learning_rate(learning_rate),
        )


class AdEMAMix(Optimizer):
    """AdamW with a second, slow mean of gradients, which remembers thousands of steps.

    Source: Pagliardini et al. 2024, arXiv:2409.03137, algorithm 1 and its schedulers.
    """

    @config
    class Config(Optimizer.Config):
        """Describes an `AdEMAMix`.

        Args:
            b1: Decay of the fast mean of gradients.
            b2: Decay of the mean of squared gradients.
            b3: Decay of the slow mean of gradients; 0.999 for runs of few thousand steps.
            alpha: Weight of the slow mean, where the fast one has 1.
            warmup_steps: Updates over which `alpha` rises from 0 and `b3` from `b1`; as many as the
                run has steps in the paper. With 0 both are constant.
            epsilon: Added to the root of the mean of squared gradients.
            weight_decay: Factor on parameters that decay, times the learning rate.
        """

        b1: Fraction = 0.9
        b2: Fraction = 0.999
        b3: Fraction = 0.9999
        alpha: NonNegativeFloat = 5.0
        warmup_steps: int = 0
        epsilon: PositiveFloat = 1e-8
        weight_decay: Resumable[NonNegativeFloat] = 0.1

    def transformation(self, learning_rate: Rate, specs: Any) -> "optax.GradientTransformation":
        """Return `optax.contrib.ademamix`."""
        from optax import contrib

        cfg = self.config
        is_constant = cfg.warmup_steps <= 0
        return contrib.ademamix(
            learning_rate,
            b1=cfg.b1,
            b2=cfg.b2,
            b3=cfg.b3 if is_constant else self._slow_decay,
            alpha=cfg.alpha if is_constant else lambda step: cfg.alpha * self._share(step),
            eps=cfg.epsilon,
            weight_decay=cfg.weight_decay,
            mask=weight_decay_mask(specs),
        )

    def _share(self, step: Any) -> Any:
        """Return how much of the warm-up is done with the update after so many."""
        return jnp.minimum((step + 1) / self.config.warmup_steps, 1.0)

    def _slow_decay(self, step: Any) -> Any:
        # Linear in the half-life of the mean, about 1 / log(decay), since
        # most of a line between two decays is as fast as the first.
        share, first, last = self._share(step), math.log(self.config.b1), math.log(self.config.b3)
        return jnp.exp(first * last / ((1 - share) * last + share * first))


class ADOPT(Optimizer):
    """Adam that divides by the moment of before, and takes its mean afterwards.

    So it converges with every `b2`. Its first update only measures, and changes nothing but by
    weight decay.

    Source: Taniguchi et al. 2024, arXiv:2411.02853, algorithm 2, with updates clipped to the fourth
    root of their number.
    """

    @config
    class Config(Optimizer.Config):
        """Describes an `ADOPT`.

        Args:
            b1: Decay of the mean of divided gradients.
            b2: Decay of the mean of squared gradients.
            epsilon: Least divisor.
            weight_decay: Factor on parameters that decay, times the learning rate.
        """

        b1: Fraction = 0.9
        b2: Fraction = 0.9999
        epsilon: PositiveFloat = 1e-6
        weight_decay: Resumable[NonNegativeFloat] = 0.1

    def transformation(self, learning_rate: Rate, specs: Any) -> "optax.GradientTransformation":
        """Return `optax.contrib.adopt` with weight decay."""
        import optax
        from optax import contrib

        cfg = self.config
        return optax.chain(
            contrib.scale_by_adopt(b1=cfg.b1, b2=cfg.b2, eps=cfg.epsilon),
            optax.add_decayed_weights(cfg.weight_decay, weight_decay_mask(specs)),
            optax.scale_by_learning_rate(learning_rate),
        )
