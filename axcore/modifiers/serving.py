"""`for_serving`: from the config of a model that trains to that of the same model with caches."""

from typing import TypeVar

from axcore.config import replace_config
from axcore.layers import (
    ContiguousCache,
    NoCache,
    NoStateCache,
    Pipeline,
    ScannedLayers,
    Stack,
    StateCache,
)

C = TypeVar("C")


def for_serving(cfg: C, *, num_rows: int, capacity: int) -> C:
    """Returns a model's config with layers unrolled and room for what each keeps of its tokens.

    A layer that mixes tokens has a slot `kv_cache` or `state_cache`, or refuses to be called with
    `TokenInfo.num_cached`.

    Args:
        cfg: Of a model, as it is trained.
        num_rows: Rows that are served at once.
        capacity: Tokens of a row, its padding in a call among them.
    """
    changes = {
        ScannedLayers: Stack.Config(),
        Pipeline: Stack.Config(),
        NoCache: ContiguousCache.Config(num_rows=num_rows, capacity=capacity),
        NoStateCache: StateCache.Config(num_rows=num_rows),
    }
    for layer, served in changes.items():
        cfg = replace_config(cfg, layer, served, missing_ok=True)
    return cfg
