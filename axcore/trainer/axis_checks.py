"""Checks that every axis that a config names is used; misspelt, one would change nothing."""

from typing import Any

import jax

from axcore.config import did_you_mean, name_the_known
from axcore.errors import ShardingError
from axcore.module import BatchSpec, ParamSpec
from axcore.parallel import (
    ACTIVATION_RULES,
    MESH_AXES,
    PARAM_RULES,
    param_shardings,
    unused_mesh_axes,
)
from axcore.trainer.batch_sharding import BatchSharding
from axcore.trainer.state_shardings import optimizer_shardings

_USES = {
    "pipeline": "a stack of stages: replace_config(cfg, ScannedLayers, Pipeline.Config("
    "num_micro_batches=8))",
    "expert": "a rule that splits something over it, such as `batch`, or experts",
    "seq": "activation_rules['time'] = ('seq',)",
}


def check_sharding_rules(cfg: Any, specs: Any, batch: BatchSpec) -> None:
    """Checks the names in a trainer's two tables of rules.

    Raises:
        ShardingError: A rule names a mesh axis that does not exist, or is for a logical axis that
            is no usual one, and that no parameter has; for activations, whose axes layers may
            name as they like, only if it is spelt almost like one that is known.
    """
    leaves = jax.tree.leaves(specs, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
    had = {axis for spec in leaves for axis in spec.axes if axis is not None}
    for field in ("param_rules", "optimizer_rules", "activation_rules"):
        for axis, names in (getattr(cfg, field) or {}).items():
            for name in names:
                if name not in MESH_AXES:
                    raise ShardingError(
                        f"the rule for {axis!r} names the mesh axis {name!r}, which does not exist",
                        where=field,
                        hint=name_the_known(name, MESH_AXES),
                    )
        for axis in () if field == "activation_rules" else getattr(cfg, field) or ():
            if axis not in had and axis not in PARAM_RULES:
                raise ShardingError(
                    f"there is a rule for the logical axis {axis!r}, which no parameter has",
                    where=field,
                    hint=name_the_known(axis, sorted(had)),
                )
    known = sorted({*ACTIVATION_RULES, *had, *batch.axis_sizes()})
    for axis in cfg.activation_rules:
        near = did_you_mean(axis, known, most=1)
        if axis not in known and near is not None:
            raise ShardingError(
                f"there is a rule for the logical axis {axis!r}, which is no usual one",
                where="activation_rules",
                hint=f"{near} a layer's own axis needs a name less like it",
            )


def check_mesh_is_used(cfg: Any, batch: BatchSharding, specs: Any) -> None:
    """Checks that every axis of a mesh splits a parameter or the batch.

    Raises:
        ShardingError: One does not, or a parameter does not divide over the mesh.
    """
    mesh = batch.mesh
    params = param_shardings(specs, cfg.param_rules, mesh)
    optimizer = optimizer_shardings(cfg, specs, mesh)
    for name in unused_mesh_axes((params, optimizer, batch.shardings), mesh):
        use = _USES.get(name, "a rule that splits something over it")
        raise ShardingError(
            f"mesh axis {name} of size {mesh.shape[name]} splits neither a parameter nor the "
            "batch, so that its devices would all do the same work",
            where="mesh",
            hint=f"leave it out of the mesh; or use it by {use}",
        )
