"""How much room an engine has: rows, pages, and what bounds its schedule."""

import itertools
from typing import Any

import attrs
import jax
from jax.sharding import Mesh

from axcore.errors import ConfigError
from axcore.hardware.process_memory import host_bytes
from axcore.inference.cached_model import CachedModel, mesh_of
from axcore.inference.call_shapes import CallShapes
from axcore.inference.config import EngineConfig
from axcore.inference.drafted_model import AnyCachedModel, DraftedModel
from axcore.inference.drawing import DrawKind
from axcore.inference.speculation import Draft
from axcore.inference.step_plan import Limits
from axcore.inference.warm_up import Stage, growing
from axcore.layers import KVCacheConfig, PagedKVCacheConfig
from axcore.modifiers import NAMED_WEIGHTS, AdapterSlots
from axcore.module import Module

MEMORY_SHARE = 0.9
"""Part of the free memory that caches may take, without the room in which new weights take the
place of old ones; programs need some, too."""


def serving_room(cfg: EngineConfig) -> KVCacheConfig:
    """Returns the room of an engine, with pages for `max_rows` of the longest texts where the
    config names no number.

    Raises:
        ConfigError: The model's length is not known, or the pages are too few.
    """
    if cfg.max_length is None:
        raise ConfigError(
            "max_length is None: the model does not say how long its texts are",
            where="max_length",
            hint="set it to the length that the model was trained with",
        )
    page_size = min(cfg.page_size or cfg.max_length, cfg.max_length)
    wanted = cfg.max_rows * -(-cfg.max_length // page_size)
    num_pages = cfg.num_pages or wanted
    if cfg.fixed_shapes and num_pages < wanted:
        raise ConfigError(
            f"num_pages is {num_pages}; {cfg.max_rows} rows of {cfg.max_length} tokens need "
            f"{wanted}, and with fixed_shapes none may be read again",
            where="num_pages",
            hint="leave num_pages out, or serve fewer rows",
        )
    return KVCacheConfig(
        num_rows=cfg.max_rows,
        capacity=-(-cfg.max_length // 64) * 64,
        max_length=cfg.max_length,
        pages=PagedKVCacheConfig(num_pages=num_pages, page_size=page_size)
        if cfg.page_size
        else None,
        call_tokens=cfg.step_tokens,
    )


def served_model(
    model: Module,
    state: Any,
    cfg: EngineConfig,
    room: KVCacheConfig,
    *,
    mesh: Mesh | None = None,
    draft: Draft | None = None,
) -> tuple[AnyCachedModel, Any, KVCacheConfig]:
    """Returns a model with caches, its weights, and its room: fewer pages where memory holds fewer.

    A number of pages in the config is taken as it is. A draft gets as many.

    Raises:
        ConfigError: Memory does not hold one longest text, or not the pages of the config.
    """
    mesh = mesh_of(state) if mesh is None else mesh
    served = with_caches(model, cfg, room, mesh=mesh, draft=draft)
    weights = served.weights_of(state, draft and draft.state)
    held = room_within(cfg, room, served, _free_bytes(mesh))
    if held != room:
        served = with_caches(model, cfg, held, mesh=mesh, draft=draft)
    return served, weights, held


def with_caches(
    model: Module, cfg: EngineConfig, room: KVCacheConfig, *, mesh: Mesh | None, draft: Draft | None
) -> AnyCachedModel:
    """Returns a model with caches, without weights."""
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
    served = CachedModel(model, None, room, adapters=adapters, **options)
    if draft is None:
        return served
    return DraftedModel(served, CachedModel(draft.model, None, room, **options))


def room_within(
    cfg: EngineConfig, room: KVCacheConfig, served: AnyCachedModel, free_bytes: int | None
) -> KVCacheConfig:
    """Returns a room with no more pages than memory holds.

    Args:
        cfg: Of the engine.
        room: With as many pages as are wanted.
        served: The model with caches of this room.
        free_bytes: What a device has beside weights; None where it does not say.

    Raises:
        ConfigError: Memory does not hold one longest text, or not the pages of the config.
    """
    if room.pages is None:
        return room
    if cfg.num_pages is not None:
        free = host_bytes() if free_bytes is None else free_bytes
        check_pages_fit(room.pages, served.cache_bytes, free)
        return room
    if free_bytes is None:
        return room
    spare = max(0, free_bytes - served.conversion.room_bytes)
    pages = pages_within(room, served.cache_bytes, int(MEMORY_SHARE * spare))
    if cfg.fixed_shapes and pages != room.pages:
        raise ConfigError(
            f"memory holds {pages.num_pages} pages; fixed_shapes needs {room.pages.num_pages}",
            where="max_rows",
            hint="serve fewer rows, or shorter texts",
        )
    return attrs.evolve(room, pages=pages)


def pages_within(room: KVCacheConfig, cache_bytes: int, free_bytes: int) -> PagedKVCacheConfig:
    """Returns the pages of a room, or as many as memory holds.

    Args:
        room: With as many pages as are wanted.
        cache_bytes: What caches of this room take on a device.
        free_bytes: What they may take.

    Raises:
        ConfigError: They do not hold one longest text.
    """
    assert room.pages is not None
    wanted, size = room.pages.num_pages, room.pages.page_size
    number = min(wanted, int(wanted * free_bytes / max(1, cache_bytes)))
    if number * size < room.max_length:
        raise ConfigError(
            f"memory holds {number} pages of {size} tokens, and a text may have "
            f"{room.max_length} tokens",
            where="max_length",
            hint="set a smaller max_length, or keep weights or caches in fewer bits",
        )
    return PagedKVCacheConfig(num_pages=number, page_size=size)


def check_pages_fit(pages: PagedKVCacheConfig, cache_bytes: int, free_bytes: int) -> None:
    """Checks that memory can hold the pages that a config asks for.

    Args:
        pages: Those.
        cache_bytes: What caches with them take on a device.
        free_bytes: What it has free; of a host, which does not say, all that it has.

    Raises:
        ConfigError: It cannot.
    """
    if cache_bytes <= free_bytes:
        return
    fitting = int(MEMORY_SHARE * pages.num_pages * free_bytes / cache_bytes)
    raise ConfigError(
        f"num_pages is {pages.num_pages}; caches with so many pages of {pages.page_size} tokens "
        f"take {cache_bytes / 2**30:.3g} GiB, and there are {free_bytes / 2**30:.3g} GiB of memory",
        where="num_pages",
        hint=f"leave num_pages out, or set at most {fitting}",
    )


def schedule_limits(
    cfg: EngineConfig, room: KVCacheConfig, shapes: CallShapes, *, keeps_pages_only: bool
) -> Limits:
    """Returns what bounds the schedule of an engine."""
    page_size = room.pages.page_size if room.pages else room.max_length
    return Limits(
        num_slots=cfg.max_rows,
        max_length=room.max_length,
        page_size=page_size,
        num_pages=room.pages.num_pages if room.pages else cfg.max_rows,
        tokens_per_call=tokens_per_call(cfg),
        shares_prefixes=cfg.shares_prefixes and keeps_pages_only,
        fixed_calls=cfg.fixed_shapes,
        **shapes.limits,
    )


def tokens_per_call(cfg: EngineConfig) -> int:
    """Returns how many tokens of a row one call draws at most."""
    return 1 + cfg.speculation.num_tokens if cfg.speculation else cfg.tokens_per_call


def draw_kinds(cfg: EngineConfig) -> tuple[DrawKind, ...]:
    """Returns what programs can draw, the cheapest first."""
    return cfg.draw_kinds[-1:] if cfg.fixed_shapes else cfg.draw_kinds


def program_keys(
    cfg: EngineConfig, limits: Limits, shapes: CallShapes, kinds: tuple[DrawKind, ...]
) -> list[tuple[Any, ...]]:
    """Returns the keys of all programs that requests can need; see `Programs`.

    Those that take longest to compile come first: then no core waits for the last one.
    """
    keys: list[tuple[Any, ...]] = []
    if limits.tokens_per_call > 1:
        name = "check_guesses" if cfg.speculation else "draw_many"
        keys += [
            (name, size, limits.tokens_per_call, kind)
            for size in shapes.draw_sizes
            for kind in kinds
        ]
    keys.append(("score", shapes.alone_length))
    keys += [
        ("read", size, length)
        for length, sizes in zip(shapes.chunk_lengths, shapes.read_sizes, strict=True)
        for size in sizes
        if not shapes.reads_by_score
    ]
    keys += [("advance", size) for size in shapes.draw_sizes]
    drawing = {*shapes.draw_sizes, *itertools.chain.from_iterable(shapes.read_sizes)}
    keys += [("draw", size, kind) for size in sorted(drawing) for kind in kinds]
    if limits.shares_prefixes:
        keys.append(("copy_page",))
    return [*keys, ("start_history", limits.max_length)]


def stages(
    cfg: EngineConfig, limits: Limits, shapes: CallShapes, kinds: tuple[DrawKind, ...]
) -> list[Stage]:
    """Returns stages in which programs can be compiled; the last one has all."""
    found = [] if cfg.fixed_shapes else growing(shapes, kinds)
    return [
        Stage(fewer, some, tuple(program_keys(cfg, limits, fewer, some)))
        for fewer, some in found or [(shapes, kinds)]
    ]


def _free_bytes(mesh: Mesh | None) -> int | None:
    """Returns the free memory of a device; None where it does not say, as CPUs do not."""
    device = jax.local_devices()[0] if mesh is None else mesh.local_devices[0]
    stats = device.memory_stats()
    if not stats or "bytes_limit" not in stats:
        return None
    return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))
