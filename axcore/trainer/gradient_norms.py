"""`GradientNorms`: the norms of a step's gradients by module, and by layer where layers repeat.

A metric has the name `gradient_norm/PATH`, as `gradient_norm/decoder.stack.layer[3]`. The path is
that of a layer, or of a module that is in none.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.module import ParamSpec
from axcore.module.param import Stacked
from axcore.module.rng import format_path
from axcore.trainer.callbacks.metrics import summary_metrics

PREFIX = "gradient_norm/"
_TOP = 2
"""How many names the path of a module that is in no layer has at most."""


class GradientNorms:
    """Measures gradients at some steps; at none where `every_steps` is 0.

    Args:
        specs: Of all that the step's state holds; what is not trained has no gradient.
        every_steps: Steps from one measurement to the next.
    """

    def __init__(self, specs: Any, every_steps: int) -> None:
        self.every_steps = every_steps
        leaves = jax.tree.leaves(specs, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
        trained = [spec for spec in leaves if spec.is_trainable]
        self._groups = [_group_of(spec) for spec in trained] if every_steps else []

    def __call__(self, gradients: Any, step: Array) -> dict[str, Float[Array, "..."]]:
        """Returns the norms of gradients, an array over layers where those are stacked.

        They are zeros at a step that is not measured, which costs nothing.
        """
        if not self.every_steps:
            return {}
        leaves = jax.tree.leaves(gradients)
        is_due = step % self.every_steps == 0
        norms: dict[str, Array] = jax.lax.cond(is_due, self._norms, self._zeros, leaves)
        return norms

    def metrics(self, step: int, norms: Mapping[str, Any]) -> dict[str, float]:
        """Returns the metrics of a step's norms; none of a step that is not measured."""
        if not self.every_steps or step % self.every_steps:
            return {}
        return summary_metrics(norms)

    def _norms(self, leaves: list[Array]) -> dict[str, Array]:
        squares: dict[str, Array] = {}
        for (name, num_stacked), leaf in zip(self._groups, leaves, strict=True):
            wide = leaf.astype(jnp.float32)
            found = jnp.sum(wide * wide, axis=tuple(range(num_stacked, leaf.ndim)))
            squares[name] = found + squares[name] if name in squares else found
        return {name: jnp.sqrt(found) for name, found in squares.items()}

    def _zeros(self, leaves: list[Array]) -> dict[str, Array]:
        return {
            name: jnp.zeros(leaf.shape[:num_stacked])
            for (name, num_stacked), leaf in zip(self._groups, leaves, strict=True)
        }


def _group_of(spec: ParamSpec) -> tuple[str, int]:
    """Returns the metric that a gradient counts for, and over how many dimensions of stacks."""
    within = _steps_of_layer(spec.path) or min(_TOP, len(spec.path) - 1)
    layer = spec.path[:within]
    name = format_path(tuple(step for step in layer if not isinstance(step, Stacked)))
    return PREFIX + name, sum(len(step.shape) for step in layer if isinstance(step, Stacked))


def _steps_of_layer(path: tuple[str | int | Stacked, ...]) -> int:
    """Returns how many steps of a path lead to a layer; 0 where there is none.

    A layer is what the first number of the path counts. Where layers alternate, the number in the
    period comes right after; what a layer itself holds many of, as experts, is a part of it.
    """
    places = [place for place, step in enumerate(path) if not isinstance(step, str)]
    end = 0
    for place in places:
        if end and place > end + 1:
            break
        end = place + 1
    return end
