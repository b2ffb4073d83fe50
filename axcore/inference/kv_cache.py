"""The size of an engine's KV cache: how many pages memory holds, and on how many devices.

Its dtype and layout are those of the model's config; see the modifier `kv_cache`.
"""

import math
from typing import Any

import attrs
import jax
from jax.sharding import Mesh

from axcore.distributed import all_gather_object
from axcore.errors import ConfigError, ShardingError
from axcore.hardware.host_memory import host_bytes
from axcore.inference.cached_model import CachedModel, mesh_of
from axcore.inference.config import EngineConfig
from axcore.inference.speculation import AnyCachedModel, Draft, DraftedModel
from axcore.layers import KVCacheConfig, PagedKVCacheConfig
from axcore.modifiers import NAMED_WEIGHTS, AdapterSlots
from axcore.module import Module
from axcore.parallel import MESH_AXES, PARAM_RULES, MeshShape, param_shardings
from axcore.plugins import Hardware

# Programs keep temporaries, and the allocator of a
# device never gives out its last bytes in one piece.
_MEMORY_SHARE = 0.9
"""Part of the free memory that caches may take, without the room in which new weights take the
place of old ones; programs need some, too."""


def kv_cache_config(cfg: EngineConfig) -> KVCacheConfig:
    """Return the cache config of an engine.

    Where the config has no number of pages, there are pages for `max_num_seqs` of the longest
    texts.

    Raises:
        ConfigError: The model's length is not known, or the pages are too few.
    """
    if cfg.max_length is None:
        raise ConfigError(
            "max_length is None: the model does not say how long its texts are",
            where="max_length",
            hint="set it to the length that the model was trained with",
        )
    # A page longer than the longest text would be mostly empty.
    page_size = min(cfg.page_size or cfg.max_length, cfg.max_length)
    wanted = cfg.max_num_seqs * -(-cfg.max_length // page_size)
    num_pages = cfg.num_pages or wanted
    if cfg.fixed_shapes and num_pages < wanted:
        raise ConfigError(
            f"num_pages is {num_pages}; {cfg.max_num_seqs} rows of {cfg.max_length} tokens need "
            f"{wanted}, and with fixed_shapes none may be read again",
            where="num_pages",
            hint="leave num_pages out, or serve fewer rows",
        )
    return KVCacheConfig(
        num_rows=cfg.max_num_seqs,
        # A multiple of 64, so that lengths that hardly differ have one shape.
        capacity=-(-cfg.max_length // 64) * 64,
        max_length=cfg.max_length,
        pages=PagedKVCacheConfig(num_pages=num_pages, page_size=page_size)
        if cfg.page_size
        else None,
        call_tokens=cfg.max_num_batched_tokens,
    )


def build_cached_model(
    model: Module,
    state: Any,
    cfg: EngineConfig,
    cache_config: KVCacheConfig,
    *,
    mesh: Mesh | None = None,
    draft: Draft | None = None,
) -> tuple[AnyCachedModel, Any, KVCacheConfig]:
    """Return a model with caches, its weights, and its cache config: as many pages as fit memory.

    A number of pages in the config is taken as it is. A draft gets as many.

    Raises:
        ConfigError: Memory does not hold one longest text, or not the pages of the config.
    """
    mesh = mesh_of(state) if mesh is None else mesh
    served = cached_model_of(model, cfg, cache_config, mesh=mesh, draft=draft)
    # Weights first, since what they leave decides the number of pages.
    weights = served.weights_of(state, draft and draft.state)
    free = _free_bytes(mesh)
    if mesh is not None and mesh.is_multi_process:
        # The same number of pages in all: those of the process with the least memory.
        found = all_gather_object("free memory of devices", lambda: free)
        known = [one for one in found if one is not None]
        free = min(known) if len(known) == len(found) else None
    held = fit_kv_cache(cfg, cache_config, served, free)
    # Made again only where it got fewer pages; it contains no arrays yet.
    if held != cache_config:
        served = cached_model_of(model, cfg, held, mesh=mesh, draft=draft)
    return served, weights, held


def cached_model_of(
    model: Module,
    cfg: EngineConfig,
    cache_config: KVCacheConfig,
    *,
    mesh: Mesh | None,
    draft: Draft | None,
) -> AnyCachedModel:
    """Return a model with caches, without weights."""
    options: dict[str, Any] = {
        "mesh": mesh,
        "quantization": NAMED_WEIGHTS[cfg.weights] if cfg.weights else None,
        "compute": cfg.compute,
    }
    adapters = (
        AdapterSlots(num_adapters=cfg.num_adapters, rank=cfg.adapter_rank)
        if cfg.num_adapters
        else None
    )
    served = CachedModel(model, None, cache_config, adapters=adapters, **options)
    if draft is None:
        return served
    return DraftedModel(served, CachedModel(draft.model, None, cache_config, **options))


def fit_kv_cache(
    cfg: EngineConfig, cache_config: KVCacheConfig, served: AnyCachedModel, free_bytes: int | None
) -> KVCacheConfig:
    """Return a cache config with no more pages than memory holds.

    Args:
        cfg: Of the engine.
        cache_config: With as many pages as are wanted.
        served: The model with caches of this config.
        free_bytes: What a device has in addition to weights; None where it does not say.

    Raises:
        ConfigError: Memory does not hold one longest text, or not the pages of the config.
    """
    if cache_config.pages is None:
        return cache_config
    if cfg.num_pages is not None:
        # On a host, whose memory nobody reports as free, all of it is the bound:
        # a config that cannot be true is refused, one that is tight is believed.
        free = host_bytes() if free_bytes is None else free_bytes
        check_pages_fit(cache_config.pages, served.cache_bytes, free)
        return cache_config
    if free_bytes is None:
        return cache_config
    # Room that replacing weights needs later must not be taken by pages now.
    spare = max(0, free_bytes - served.conversion.replacement_bytes)
    fixed = served.fixed_cache_bytes
    pages = fit_pages(cache_config, served.cache_bytes - fixed, int(_MEMORY_SHARE * spare) - fixed)
    if cfg.fixed_shapes and pages != cache_config.pages:
        raise ConfigError(
            f"there is memory for {pages.num_pages} pages; fixed_shapes needs "
            f"{cache_config.pages.num_pages}",
            where="max_num_seqs",
            hint="serve fewer rows, or shorter texts",
        )
    return attrs.evolve(cache_config, pages=pages)


def fit_pages(cache_config: KVCacheConfig, cache_bytes: int, free_bytes: int) -> PagedKVCacheConfig:
    """Return the pages of a cache config, or as many as memory holds.

    Args:
        cache_config: With as many pages as are wanted.
        cache_bytes: What the pages of this config take on a device.
        free_bytes: What they may take.

    Raises:
        ConfigError: They do not hold one longest text.
    """
    assert cache_config.pages is not None
    wanted, size = cache_config.pages.num_pages, cache_config.pages.page_size
    number = min(wanted, max(0, int(wanted * free_bytes / max(1, cache_bytes))))
    if number * size < cache_config.max_length:
        raise ConfigError(
            f"there is memory for {number} pages of {size} tokens, and a text may have "
            f"{cache_config.max_length} tokens",
            where="max_length",
            hint="set a smaller max_length, or keep weights or caches in fewer bits",
        )
    return PagedKVCacheConfig(num_pages=number, page_size=size)


def check_pages_fit(pages: PagedKVCacheConfig, cache_bytes: int, free_bytes: int) -> None:
    """Check that memory can hold the pages that a config asks for.

    Args:
        pages: Those.
        cache_bytes: What caches with them take on a device.
        free_bytes: What it has free; of a host, which does not say, all that it has.

    Raises:
        ConfigError: It cannot.
    """
    if cache_bytes <= free_bytes:
        return
    fitting = int(_MEMORY_SHARE * pages.num_pages * free_bytes / cache_bytes)
    # With the number that would fit, as nobody wants to find it by trying.
    raise ConfigError(
        f"num_pages is {pages.num_pages}; caches with so many pages of {pages.page_size} tokens "
        f"take {cache_bytes / 2**30:.3g} GiB, and there are {free_bytes / 2**30:.3g} GiB of memory",
        where="num_pages",
        hint=f"leave num_pages out, or set at most {fitting}",
    )


def _free_bytes(mesh: Mesh | None) -> int | None:
    """Return the free memory of a device; None where it does not say, as CPUs do not."""
    # One device is enough to look at: they are alike, and have the same share.
    device = jax.local_devices()[0] if mesh is None else mesh.local_devices[0]
    stats = device.memory_stats()
    if not stats or "bytes_limit" not in stats:
        return None
    return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))


_WEIGHT_SHARE = 0.5
"""Part of a device's memory that weights may take; the rest is for caches and programs."""


def serving_mesh(
    model: Module, cfg: EngineConfig, hardware: Hardware, num_devices: int
) -> MeshShape:
    """Return sizes by mesh axis: as few devices as hold the weights in half of their memory.

    Each token waits for collectives where a model is split, so it is no further than it must be.
    Where memory is not known, as that of hosts, one device has all; where not even all devices
    hold the weights so, the most are taken that the model divides over.

    Args:
        model: As it is trained.
        cfg: Of the engine: what it keeps weights in.
        hardware: What serves.
        num_devices: How many of its devices there are.
    """
    # Host memory is shared by all devices of a CPU, so to split weights over them gains nothing.
    if hardware.memory_bytes is None:
        return {"model": 1}
    # Divisors only, so that the replicas that are left are of one size.
    divisors = (count for count in range(1, num_devices + 1) if num_devices % count == 0)
    counts = [count for count in divisors if _divides(model, count)]
    held = _WEIGHT_SHARE * hardware.memory_bytes / hardware.devices_per_chip
    nbytes = weight_bytes(model, cfg)
    # Not even all devices hold it: the most that divide;
    # the engine's own check says what is missing.
    return {"model": next((one for one in counts if nbytes / one <= held), counts[-1])}


def weight_bytes(model: Module, cfg: EngineConfig) -> int:
    """Return what the weights of an engine take, on all devices that they are split over."""
    served = cached_model_of(model, cfg, kv_cache_config(cfg), mesh=None, draft=None)
    leaves = jax.tree.leaves(served.conversion.abstract)
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def _divides(model: Module, count: int) -> bool:
    sizes = tuple(count if axis == "model" else 1 for axis in MESH_AXES)
    mesh = jax.sharding.AbstractMesh(sizes, MESH_AXES)
    try:
        param_shardings(model.param_specs(), PARAM_RULES, mesh)
    except ShardingError:
        return False
    return True
