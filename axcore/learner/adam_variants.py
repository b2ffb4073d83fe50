"""Optimizers that change one part of Adam: its step size, its momentum, its order or its result."""

import math
from typing import TYPE_CHECKING, Annotated, Any

import jax
import jax.numpy as jnp

from axcore.config import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    Resumable,
    config,
)
from axcore.config.values import Range
from axcore.learner.optimizers import (
    AveragedState,
    Optimizer,
    Rate,
    map_specs,
    weight_decay_mask,
)
from axcore.module import ParamSpec

if TYPE_CHECKING:
    import optax


Decay = Annotated[float, Range("more than 0 and less than 1", lambda value: 0 < value < 1)]


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

        b1: Decay = 0.9
        b2: Fraction = 0.999
        b3: Decay = 0.9999
        alpha: NonNegativeFloat = 5.0
        warmup_steps: NonNegativeInt = 0
        epsilon: PositiveFloat = 1e-8
        weight_decay: Resumable[NonNegativeFloat] = 0.1

    def transformation(self, learning_rate: Rate, specs: Any) -> "optax.GradientTransformation":
        """Return `optax.contrib.ademamix`."""
        from optax import contrib

        cfg = self.config
        is_constant = cfg.warmup_steps == 0
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


class ScheduleFreeAdamW(Optimizer):
    """AdamW that averages its steps in place of a schedule that decays.

    The model in training has the parameters at which gradients are taken; evaluation, and all that
    reads a run's weights, uses the average. It wants a constant rate after a warm-up.

    Source: Defazio et al. 2024, arXiv:2405.15682, algorithm 1.
    """

    # The average changes by less and less each update.
    needs_exact_state = True
    keeps_average = True

    @config
    class Config(Optimizer.Config):
        """Describes a `ScheduleFreeAdamW`.

        Args:
            b1: Weight of the average where gradients are taken, against the last step.
            b2: Decay of the mean of squared gradients.
            epsilon: Added to the root of the mean of squared gradients.
            weight_decay: Factor on parameters that decay, times the learning rate.
            rate_power: A step counts in the average by this power of the largest rate so far.
        """

        b1: Decay = 0.9
        b2: Fraction = 0.999
        epsilon: PositiveFloat = 1e-8
        weight_decay: Resumable[NonNegativeFloat] = 0.1
        rate_power: NonNegativeFloat = 2.0

    def transformation(self, learning_rate: Rate, specs: Any) -> "optax.GradientTransformation":
        """Return `optax.contrib.schedule_free_adamw`, whose state also has the average."""
        import optax
        from optax import contrib

        cfg = self.config
        # As in `schedule_free_adamw`, which has no mask for its weight decay.
        steps = optax.chain(
            optax.scale_by_rms(
                decay=cfg.b2, eps=cfg.epsilon, eps_in_sqrt=False, bias_correction=True
            ),
            optax.add_decayed_weights(cfg.weight_decay, weight_decay_mask(specs)),
            optax.scale_by_learning_rate(learning_rate),
        )
        free = contrib.schedule_free(
            steps, learning_rate, b1=cfg.b1, weight_lr_power=cfg.rate_power
        )

        def init(params: Any) -> AveragedState:
            # A copy: the step donates its state, and a buffer cannot be donated twice.
            return AveragedState(jax.tree.map(jnp.array, params), free.init(params))

        def update(gradients: Any, state: AveragedState, params: Any) -> tuple[Any, AveragedState]:
            updates, inner = free.update(gradients, state.inner, params)
            # Stored, though it follows from two other arrays: whoever
            # reads a checkpoint's weights needs no formula for them.
            average = contrib.schedule_free_eval_params(inner, optax.apply_updates(params, updates))
            return updates, AveragedState(average, inner)

        return optax.GradientTransformation(init, update)
