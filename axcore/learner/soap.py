"""SOAP: Adam in the eigenbasis of Shampoo's factors.

Shapes: a gradient is `(*S, M, N)`, with stacked layers S; its factors are `(*S, M, M)` on the left
and `(*S, N, N)` on the right, and so are the bases, whose columns are eigenvectors.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from axcore.config import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, Resumable, config
from axcore.learner.optimizers import Optimizer, Rate, map_specs, weight_decay_mask
from axcore.module import ParamSpec

if TYPE_CHECKING:
    import optax


class SOAPState(NamedTuple):
    """The state of a `SOAP`; all except the count are trees like the parameters.

    Each tree has the form of the parameters, so that it is sharded as they are where shapes allow.
    A side without a basis has None.

    Args:
        num_updates: Updates so far.
        mean: Mean of gradients.
        second: Mean of squared gradients in the basis.
        left: Mean of `G @ G.T`.
        right: Mean of `G.T @ G`.
        left_basis: Eigenvectors of `left`.
        right_basis: Eigenvectors of `right`.
    """

    num_updates: Int[Array, ""]
    mean: Any
    second: Any
    left: Any
    right: Any
    left_basis: Any
    right_basis: Any


class SOAP(Optimizer):
    """Adam in the eigenbasis of Shampoo's factors, for matrices; Adam for all else.

    Copies in stacked layers have bases of their own. The first update only measures bases, and
    changes nothing but by weight decay.

    Source: Vyas et al. 2024, arXiv:2409.11321, algorithms 3 and 4. Differs: Adam's bias correction,
    and eigenvectors in order of their eigenvalues, as in the authors' code.
    """

    # Bases that are rounded are not orthogonal any more.
    needs_exact_state = True

    @config
    class Config(Optimizer.Config):
        """Describes a `SOAP`.

        Args:
            b1: Decay of the mean of gradients.
            b2: Decay of the mean of squared gradients, and of Shampoo's factors.
            frequency: Updates between two refreshes of the bases; a refresh is one product and one
                QR decomposition of each factor.
            max_dim: Larger dimensions have no basis: a matrix with one of them is rotated on the
                other side only.
            epsilon: Added to the root of the mean of squared gradients.
            weight_decay: Factor on parameters that decay, times the learning rate.
        """

        b1: Fraction = 0.95
        b2: Fraction = 0.95
        frequency: PositiveInt = 10
        max_dim: PositiveInt = 10_000
        epsilon: PositiveFloat = 1e-8
        weight_decay: Resumable[NonNegativeFloat] = 0.1

    def transformation(self, learning_rate: Rate, specs: Any) -> "optax.GradientTransformation":
        """Return the rotated Adam with weight decay."""
        import optax

        cfg = self.config
        return optax.chain(
            self._rotated_adam(specs),
            optax.add_decayed_weights(cfg.weight_decay, weight_decay_mask(specs)),
            optax.scale_by_learning_rate(learning_rate),
        )

    def _rotated_adam(self, specs: Any) -> "optax.GradientTransformation":
        import optax

        tree: Any = jax.tree.structure(specs, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))

        def init(params: Any) -> SOAPState:
            def factors(dim: int) -> Any:
                return map_specs(lambda spec, p: self._factor(spec, p, dim), specs, params)

            def bases(dim: int) -> Any:
                # Any basis does for the first update, which replaces it.
                return jax.tree.map(jnp.zeros_like, factors(dim))

            zeros = [jax.tree.map(lambda p: jnp.zeros(p.shape, _dtype(p)), params) for _ in "mv"]
            mean, second = zeros
            sides = factors(-2), factors(-1), bases(-2), bases(-1)
            return SOAPState(jnp.zeros((), jnp.int32), mean, second, *sides)

        def update(gradients: Any, state: SOAPState, params: Any = None) -> tuple[Any, SOAPState]:
            columns = [tree.flatten_up_to(one) for one in (gradients, *state[1:])]
            rows = [self._update(state.num_updates, *row) for row in zip(*columns, strict=True)]
            updates, *new = (tree.unflatten(column) for column in zip(*rows, strict=True))
            return updates, SOAPState(state.num_updates + 1, *new)

        return optax.GradientTransformation(init, update)

    def _factor(self, spec: ParamSpec, param: Array, dim: int) -> Array | None:
        """Return the factor of a side before the first update; None if that has no basis."""
        if not spec.is_matrix or not 1 < param.shape[dim] <= self.config.max_dim:
            return None
        return jnp.zeros((*param.shape[:-2], param.shape[dim], param.shape[dim]), _dtype(param))

    def _update(
        self,
        count: Int[Array, ""],
        gradient: Array,
        mean: Array,
        second: Array,
        left: Array | None,
        right: Array | None,
        left_basis: Array | None,
        right_basis: Array | None,
    ) -> tuple[Any, ...]:
        """Return one parameter's update, and its new part of the state, in order."""
        b1, b2 = self.config.b1, self.config.b2
        gradient = gradient.astype(mean.dtype)
        is_first = count == 0
        # The first update is not counted, hence the number of those before this one.
        number = jnp.maximum(count, 1).astype(mean.dtype)

        rotated = _rotate(gradient, left_basis, right_basis)
        # In the basis of its own gradient the first one would be diagonal,
        # and Adam would divide what is rounding elsewhere by itself.
        mean = jnp.where(is_first, mean, b1 * mean + (1 - b1) * gradient)
        second = jnp.where(is_first, second, b2 * second + (1 - b2) * rotated**2)
        root = jnp.sqrt(second / (1 - b2**number)) + self.config.epsilon
        step = _rotate(mean, left_basis, right_basis) / (1 - b1**number) / root
        update = _rotate(step, _transposed(left_basis), _transposed(right_basis))

        if left is not None:
            left = b2 * left + (1 - b2) * _dot(gradient, gradient.mT)
        if right is not None:
            right = b2 * right + (1 - b2) * _dot(gradient.mT, gradient)
        # After the update, whose gradient the basis must not know.
        second, left_basis, right_basis = jax.lax.switch(
            jnp.where(is_first, 1, jnp.where(count % self.config.frequency == 0, 2, 0)),
            [
                lambda second, *_: (second, left_basis, right_basis),
                lambda second, *factors: (second, *map(_eigenvectors, factors)),
                lambda second, *factors: _refreshed(second, factors, (left_basis, right_basis)),
            ],
            second,
            left,
            right,
        )
        return update, mean, second, left, right, left_basis, right_basis


def _dtype(param: Array) -> Any:
    return jnp.promote_types(param.dtype, jnp.float32)


def _dot(a: Array, b: Array) -> Array:
    # Accelerators multiply float32 with fewer bits by
    # default, and a rotation back would not undo the other.
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _rotate(x: Array, left: Array | None, right: Array | None) -> Array:
    """Return `left.T @ x @ right`, where None is the identity."""
    x = x if left is None else _dot(left.mT, x)
    return x if right is None else _dot(x, right)


def _transposed(basis: Array | None) -> Array | None:
    return None if basis is None else basis.mT


def _eigenvectors(factor: Array | None) -> Array | None:
    """Return eigenvectors as columns, that of the largest eigenvalue first."""
    return None if factor is None else jnp.flip(jnp.linalg.eigh(factor)[1], axis=-1)


def _refreshed(second: Array, factors: Any, bases: Any) -> tuple[Any, ...]:
    """Return the second moment and the bases after one step of power iteration and QR."""
    new: list[Array | None] = []
    for factor, basis, axis in zip(factors, bases, (-2, -1), strict=True):
        if basis is None:
            new.append(None)
            continue
        power = _dot(factor, basis)
        # QR keeps the directions of the first columns best, so the
        # largest go first; the second moment follows its directions.
        order = jnp.argsort(-jnp.sum(basis * power, axis=-2), axis=-1)
        power = jnp.take_along_axis(power, jnp.expand_dims(order, -2), axis=-1)
        along = jnp.expand_dims(order, -1 if axis == -2 else -2)
        second = jnp.take_along_axis(second, along, axis=axis)
        new.append(jnp.linalg.qr(power)[0])
    return second, *new
