"""Optimizers: configs of optax transformations.

Each gets the learning rate as a function of the step, and a tree of specs of the parameters that
it trains; `optax.MaskedNode()` is in the place of those that other groups train.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax

from axcore.config import (
    Configurable,
    Fraction,
    NonNegativeFloat,
    PositiveFloat,
    Resumable,
    config,
)
from axcore.errors import ConfigError
from axcore.module import ParamSpec

if TYPE_CHECKING:
    import optax

Rate = Callable[[Any], Any]
"""From the number of updates before to a learning rate."""


class AveragedState(NamedTuple):
    """The state of an optimizer whose gradients are taken elsewhere than where its model is good.

    Args:
        average: Parameters that evaluation uses.
        inner: What else the optimizer keeps.
    """

    average: Any
    inner: Any


class Optimizer(Configurable):
    """Makes an optax transformation.

    Attributes:
        rounded_dtypes: Low-precision dtypes of parameters that it rounds stochastically after an
            update; parameters of other ones that are narrower than float32 it does not train.
        needs_exact_state: Whether it fails with a state that is stored in fewer bits.
        keeps_average: Whether its state is an `AveragedState`, whose average evaluation uses.
    """

    rounded_dtypes: tuple[str, ...] = ()
    needs_exact_state: bool = False
    keeps_average: bool = False

    @config
    class Config(Configurable.Config["Optimizer"]):
        """Describes an `Optimizer`."""

    def transformation(self, learning_rate: Rate, specs: Any) -> "optax.GradientTransformation":
        """Return the optax transformation.

        Args:
            learning_rate: From step to rate.
            specs: A tree of `ParamSpec` shaped as the parameters.
        """
        raise NotImplementedError


class AdamW(Optimizer):
    """Adam with decoupled weight decay.

    Source: Loshchilov and Hutter 2017, arXiv:1711.05101, algorithm 2.
    """

    @config
    class Config(Optimizer.Config):
        """Describes an `AdamW`.

        Args:
            b1: Decay of the mean of gradients.
            b2: Decay of the mean of squared gradients.
            epsilon: Added to the root of the second.
            weight_decay: Factor on parameters that decay, times the learning rate.
        """

        b1: Fraction = 0.9
        # As usual for language models; 0.999 averages over a thousand
        # steps, which is too slow after a change of the data.
        b2: Fraction = 0.95
        epsilon: PositiveFloat = 1e-8
        weight_decay: Resumable[NonNegativeFloat] = 0.1

    def transformation(self, learning_rate: Rate, specs: Any) -> "optax.GradientTransformation":
        """Return `optax.adamw`."""
        # Imported here: a config is read and printed without optax.
        import optax

        cfg = self.config
        return optax.adamw(
            learning_rate,
            b1=cfg.b1,
            b2=cfg.b2,
            eps=cfg.epsilon,
            weight_decay=cfg.weight_decay,
            # Of the specs, which know about stacked dimensions; by shape
            # alone, the biases of scanned layers would look like matrices.
            mask=weight_decay_mask(specs),
        )


class Adafactor(Optimizer):
    """Adam's second moment factored into rows and columns, so its memory is that of vectors.

    Factored moments are small and are replicated on a mesh.

    Source: Shazeer and Stern 2018, arXiv:1804.04235, algorithms 4 and 5.
    """

    @config
    class Config(Optimizer.Config):
        """Describes an `Adafactor`.

        Args:
            min_dim_to_factor: Moments of arrays whose second largest dimension is smaller stay
                whole.
            decay_rate: Exponent of the decay of the second moment, `1 - step ** -decay_rate`.
            scales_by_parameter: Whether the rate is multiplied by the root mean square of each
                parameter.
            clipping_threshold: Updates of a larger root mean square are scaled down to it; None
                never clips.
            momentum: Decay of the mean of updates; None keeps none.
            epsilon: Added to squared gradients.
            weight_decay: Factor on parameters that decay; *not* times the learning rate.
        """

        min_dim_to_factor: int = 128
        decay_rate: float = 0.8
        scales_by_parameter: bool = True
        clipping_threshold: float | None = 1.0
        momentum: float | None = None
        epsilon: PositiveFloat = 1e-30
        weight_decay: float | None = None

    def transformation(self, learning_rate: Rate, specs: Any) -> "optax.GradientTransformation":
        """Return `optax.adafactor`."""
        import optax

        cfg = self.config
        return optax.adafactor(
            learning_rate,
            min_dim_size_to_factor=cfg.min_dim_to_factor,
            decay_rate=cfg.decay_rate,
            multiply_by_parameter_scale=cfg.scales_by_parameter,
            clipping_threshold=cfg.clipping_threshold,
            momentum=cfg.momentum,
            eps=cfg.epsilon,
            weight_decay_rate=cfg.weight_decay,
            weight_decay_mask=weight_decay_mask(specs),
        )


class Lion(Optimizer):
    """Steps along the sign of a momentum, and keeps one moment.

    It wants a rate 3 to 10 times below that of AdamW.

    Source: Chen et al. 2023, arXiv:2302.06675, algorithm 2.
    """

    @config
    class Config(Optimizer.Config):
        """Describes a `Lion`.

        Args:
            b1: Weight of the momentum in the direction of a step.
            b2: Decay of the momentum.
            weight_decay: Factor on parameters that decay, times the learning rate.
        """

        b1: Fraction = 0.9
        b2: Fraction = 0.99
        weight_decay: Resumable[NonNegativeFloat] = 0.1

    def transformation(self, learning_rate: Rate, specs: Any) -> "optax.GradientTransformation":
        """Return `optax.lion`."""
        import optax

        cfg, mask = self.config, weight_decay_mask(specs)
        return optax.lion(
            learning_rate, b1=cfg.b1, b2=cfg.b2, weight_decay=cfg.weight_decay, mask=mask
        )


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if wanted."""

    @config
    class Config(Optimizer.Config):
        """Describes an `SGD`.

        Args:
            momentum: Decay of the sum of gradients; None keeps none.
            is_nesterov: Whether the momentum looks one step ahead.
        """

        momentum: float | None = None
        is_nesterov: bool = False

    def transformation(self, learning_rate: Rate, specs: Any) -> "optax.GradientTransformation":
        """Return `optax.sgd`."""
        import optax

        cfg = self.config
        return optax.sgd(learning_rate, momentum=cfg.momentum, nesterov=cfg.is_nesterov)


class Muon(Optimizer):
    """Momentum orthogonalised by Newton-Schulz iterations, for matrices only.

    Copies in stacked layers are orthogonalised one by one. Train embeddings, heads and vectors with
    another optimizer, by groups.

    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks";
    `match_rms`: Liu et al. 2025, arXiv:2502.16982, eq. 4.
    """

    @config
    class Config(Optimizer.Config):
        """Describes a `Muon`.

        Args:
            beta: Decay of the momentum.
            num_iterations: Newton-Schulz iterations.
            is_nesterov: Whether the momentum looks one step ahead.
            weight_decay: Factor on parameters that decay, times the learning rate.
            match_rms: Root mean square of updates, whatever the shape; with 0.2, rates are those of
                AdamW. None scales by `sqrt(max(1, fan_out / fan_in))` instead.
            preconditioning: What divides the momentum before the iterations.
        """

        beta: Fraction = 0.95
        num_iterations: int = 5
        is_nesterov: bool = True
        weight_decay: Resumable[NonNegativeFloat] = 0.1
        match_rms: float | None = 0.2
        preconditioning: Literal["frobenius", "spectral", "aol", "schatten"] = "frobenius"

    def transformation(self, learning_rate: Rate, specs: Any) -> "optax.GradientTransformation":
        """Return `optax.contrib.muon` with every parameter a matrix.

        Raises:
            ConfigError: A parameter is not a matrix.
        """
        from optax import contrib

        def matrix(spec: ParamSpec) -> Any:
            if not spec.is_matrix:
                raise ConfigError(
                    f"Muon trains matrices; {spec.name} has shape {spec.shape}",
                    where="learner",
                    hint="give Muon a group with matrices_only=True, and the rest to AdamW",
                )
            # The last two dimensions; those before them are of stacked
            # layers, whose copies are orthogonalised one by one.
            return contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)

        cfg = self.config
        return contrib.muon(
            learning_rate,
            ns_steps=cfg.num_iterations,
            beta=cfg.beta,
            nesterov=cfg.is_nesterov,
            weight_decay=cfg.weight_decay,
            weight_decay_mask=weight_decay_mask(specs),
            consistent_rms=cfg.match_rms,
            preconditioning=cfg.preconditioning,
            muon_weight_dimension_numbers=map_specs(matrix, specs),
        )


def weight_decay_mask(specs: Any) -> Any:
    """Return whether each parameter decays, as a tree."""
    return map_specs(lambda spec: spec.decay, specs)


def map_specs(fn: Callable[..., Any], specs: Any, *trees: Any) -> Any:
    """Return a tree of what a function returns for each spec and its part of other trees."""
    return jax.tree.map(fn, specs, *trees, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
