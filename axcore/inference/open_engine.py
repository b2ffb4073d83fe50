"""`open_engine`: an engine where weights lie on one place of a mesh's data axis, else replicas."""

from typing import Any

from jax.sharding import Mesh

from axcore.data import Tokenizer
from axcore.inference.cached_model import mesh_of
from axcore.inference.config import EngineConfig
from axcore.inference.engine import Engine
from axcore.inference.replica_parts import REPLICAS
from axcore.inference.replicas import Replicas
from axcore.inference.speculation import Draft
from axcore.module import Module

AnyEngine = Engine | Replicas


def open_engine(
    model: Module,
    state: Any,
    tokenizer: Tokenizer,
    cfg: EngineConfig = EngineConfig(),  # noqa: B008 - a frozen value
    *,
    mesh: Mesh | None = None,
    draft: Draft | None = None,
) -> AnyEngine:
    """Returns an engine on a mesh, or replicas where its data axis is longer than 1.

    Args:
        model: See `Engine`.
        state: See `Engine`.
        tokenizer: See `Engine`.
        cfg: Of each engine.
        mesh: By default the one that the state lies on.
        draft: See `Engine`.

    Raises:
        ConfigError: The config does not fit the model, or itself.
        ShardingError: The model does not divide over the mesh.
    """
    found = mesh_of(state) if mesh is None else mesh
    if found is not None and found.shape.get(REPLICAS, 1) > 1:
        return Replicas(model, state, tokenizer, cfg, mesh=found, draft=draft)
    return Engine(model, state, tokenizer, cfg, mesh=found, draft=draft)
