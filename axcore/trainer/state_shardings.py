"""How the state of a run is split over a mesh: parameters by one table, the optimizer's by another.

Both are the same table unless a config names one for the optimizer. Then gradients are split as the
optimizer's state is, as soon as they are made, and parameters are put together after the update.
"""

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from axcore.parallel import AnyMesh, param_shardings, shardings_like
from axcore.trainer.step import GradientSplit, TrainState


def state_shardings(cfg: Any, specs: Any, state: TrainState, mesh: AnyMesh) -> TrainState:
    """Returns the sharding of every array of the state.

    Args:
        cfg: The trainer's config.
        specs: Of the model's state.
        state: Shapes and dtypes of the state.
        mesh: What it is split over.

    Raises:
        ShardingError: A parameter does not divide over the mesh.
    """
    replicated = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]
    model = param_shardings(specs, cfg.param_rules, mesh)
    like = optimizer_shardings(cfg, specs, mesh)
    opt_state = shardings_like(state.opt_state, state.model, like, mesh)
    fields: Any = (replicated, model, opt_state, replicated)
    return TrainState(*fields)


def optimizer_shardings(cfg: Any, specs: Any, mesh: AnyMesh) -> Any:
    """Returns how each parameter's gradient and its part of the optimizer's state are split.

    Raises:
        ShardingError: A parameter does not divide over the mesh.
    """
    rules = cfg.param_rules if cfg.optimizer_rules is None else cfg.optimizer_rules
    return param_shardings(specs, rules, mesh)


def gradient_split(cfg: Any, mesh: Mesh) -> GradientSplit | None:
    """Returns what splits gradients; None where they are split as parameters are, by themselves."""
    if cfg.optimizer_rules is None:
        return None

    def constrained(sharding: NamedSharding, gradient: Any) -> Any:
        if gradient is None:
            return None
        return jax.lax.with_sharding_constraint(gradient, sharding)  # type: ignore[no-untyped-call]

    def split(gradients: Any, specs: Any) -> Any:
        return jax.tree.map(constrained, optimizer_shardings(cfg, specs, mesh), gradients)

    return split
