"""`ReferenceTask`: a task that compares the model with what it was when training began."""

from collections.abc import Mapping
from typing import Any

import attrs
import jax
import jax.numpy as jnp

from axcore.module import Module, ParamSpec, functional
from axcore.module.context import current_context
from axcore.tasks.frozen_model import frozen_models
from axcore.tasks.task import Task

REFERENCE = "reference"
"""Where the frozen copy is in the state."""


class ReferenceTask(Task):
    """Keeps a frozen copy of the parameters that are trained; the model shares all others with it.

    With adapters that is a copy of the adapters alone.
    """

    def kept_specs(self, specs: dict[str, Any]) -> dict[str, Any]:
        """Returns the specs of the copy."""

        def kept(spec: ParamSpec) -> ParamSpec:
            return attrs.evolve(spec, path=(REFERENCE, *spec.path), is_frozen=True)

        return {**super().kept_specs(specs), REFERENCE: _trained(specs, specs, kept)}

    def kept_state(self, state: dict[str, Any], specs: dict[str, Any]) -> dict[str, Any]:
        """Returns the copy."""
        return {**super().kept_state(state, specs), REFERENCE: _trained(specs, state, jnp.copy)}

    def reference(self, method: str, *args: Any) -> Any:
        """Returns what a method of the model returns with the first parameters; no gradient.

        It draws the random numbers that the model's own first call draws: dropout and stochastic
        rounding are the same in both, so that a model that was not trained yet equals its
        reference.
        """
        context = current_context("calling the reference")
        state = dict(context.state)
        copy = state.pop(REFERENCE)
        for name in frozen_models(self):
            del state[name]
        whole = jax.lax.stop_gradient(_over(state, copy))
        model: Module = self.model
        key = context.key() if context.has_key else None
        result, _ = functional(model, whole, *args, method=method, rng=key, training=self.training)
        return jax.lax.stop_gradient(result)


def _trained(specs: Mapping[str, Any], tree: Mapping[str, Any], of: Any) -> dict[str, Any]:
    """Returns the leaves of a tree that are trained, by a function; empty dicts are left out."""
    found: dict[str, Any] = {}
    for name, spec in specs.items():
        if isinstance(spec, ParamSpec):
            if spec.is_trainable:
                found[name] = of(tree[name])
        elif below := _trained(spec, tree[name], of):
            found[name] = below
    return found


def _over(state: Mapping[str, Any], some: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a state with some of its leaves in the place of its own."""
    return {
        name: (_over(leaf, some[name]) if isinstance(leaf, Mapping) else some[name])
        if name in some
        else leaf
        for name, leaf in state.items()
    }
