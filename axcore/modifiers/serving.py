"""`for_serving`: from the config of a model that trains to that of the same model with caches."""

from typing import Any, TypeVar

from axcore.config import map_config, replace_config
from axcore.layers import Pipeline, ScannedLayers, ServingRoom, Stack

C = TypeVar("C")


def for_serving(cfg: C, room: ServingRoom) -> C:
    """Returns a model's config with layers unrolled and room for what each keeps of its tokens.

    Every config that has a method `for_serving` says itself what takes its place. A layer that
    mixes tokens has a slot `kv_cache` or `state_cache`, or refuses to be called with
    `TokenInfo.num_cached`. Experts whose room is limited drop no token here.

    Args:
        cfg: Of a model, as it is trained.
        room: How much there is room for.
    """
    for stack in (ScannedLayers, Pipeline):
        cfg = replace_config(cfg, stack, Stack.Config(), missing_ok=True)
    served: C = map_config(cfg, lambda node: _served(node, room))
    return served


def _served(node: Any, room: ServingRoom) -> Any:
    change = getattr(node, "for_serving", None)
    return node if change is None else change(room)
