"""`for_serving`: from the config of a model that trains to that of the same model with caches."""

from typing import Any, TypeVar

from axcore.config import class_tag, evolve, find_config, map_config, replace_config
from axcore.errors import ConfigError
from axcore.layers import KVCacheConfig, Pipeline, ScannedLayers, Stack
from axcore.module import DType, DTypes, Module
from axcore.plugins import Hardware

C = TypeVar("C")

_HALF = ("bfloat16", "float16")


def for_serving(
    cfg: C,
    cache_size: KVCacheConfig,
    hardware: Hardware | None = None,
    *,
    compute: DType | None = None,
) -> C:
    """Return a model's config with layers unrolled, and a cache in each that looks back.

    Every config that has a method `for_serving` says itself what takes its place. A layer that
    mixes tokens has a slot `kv_cache` or `state_cache`, or refuses to be called with
    `TokenInfo.num_cached`. Experts of limited capacity drop no token here.

    Args:
        cfg: Of a model, as it is trained.
        cache_size: The size of the caches.
        hardware: What serves it; None for any.
        compute: What takes the place of 16 bits in `dtypes.compute`; by default what suits the
            hardware, see `served_compute`.

    Raises:
        ConfigError: A class that is derived from a stack would lose what it does itself.
    """
    for stack in (ScannedLayers, Pipeline):
        check_nothing_derived(cfg, stack, Stack)
        cfg = replace_config(cfg, stack, Stack.Config(), missing_ok=True)
    compute = compute or served_compute(hardware)
    served: C = map_config(cfg, lambda node: _served(node, cache_size, compute))
    return served


def check_nothing_derived(cfg: Any, stack: type[Module], instead: type[Module]) -> None:
    """Check that no class derived from a stack is about to lose what it does for another stack.

    Raises:
        ConfigError: Naming the first, and where it is.
    """
    for found in find_config(cfg, lambda node: isinstance(node, stack.Config)):
        if type(found.node) is not stack.Config:
            raise ConfigError(
                f"{class_tag(type(found.node))} is derived from {stack.__name__}, in whose place "
                f"comes {instead.__name__}: what it does itself would be lost",
                where=found.path or "the root",
                hint="hold the stack in a field of a module, as in `stack: Module.Config = "
                'REQUIRED` with `wraps = "stack"`, and derive from Module',
            )


def served_compute(hardware: Hardware | None) -> DType | None:
    """Return the dtype in which layers trained in 16 bits compute; None changes nothing.

    That is float32 on CPUs, where XLA converts 16 bits at each product: a token takes several times
    as long. Kernels that read 16 bits as they are may be faster with one row, not with several.
    """
    return "float32" if hardware is not None and hardware.family == "cpu" else None


def changes_compute_dtype(cfg: Any, hardware: Hardware) -> bool:
    """Return whether layers that were trained in 16 bits compute in another dtype there."""
    is_half = find_config(cfg, lambda node: isinstance(node, DTypes) and node.compute in _HALF)
    return bool(is_half) and served_compute(hardware) is not None


def _served(node: Any, cache_size: KVCacheConfig, compute: DType | None) -> Any:
    if compute and isinstance(node, DTypes) and node.compute in _HALF:
        return evolve(node, compute=compute)
    change = getattr(node, "for_serving", None)
    return node if change is None else change(cache_size)
