"""`EngineCore`: what an engine is made of, built from a model and a config."""

from typing import Any

import attrs
from jax.sharding import Mesh

from axcore.config import evolve
from axcore.data import Tokenizer
from axcore.errors import ConfigError
from axcore.inference.cached_model import mesh_of
from axcore.inference.config import BatchBuckets, EngineConfig, batch_buckets
from axcore.inference.kv_cache import build_cached_model, kv_cache_config
from axcore.inference.model_runner import ModelRunner
from axcore.inference.processes import EngineProcesses
from axcore.inference.programs import Programs
from axcore.inference.request import RequestLimits, SamplerKind
from axcore.inference.sampler import allowed_tokens
from axcore.inference.schedule import SchedulerConfig
from axcore.inference.scheduler import Scheduler
from axcore.inference.speculation import Draft, DraftModel
from axcore.layers import KVCacheConfig, num_whole_tokens
from axcore.ops import current_policy


@attrs.frozen(kw_only=True, eq=False)
class EngineCore:
    """What an engine consists of, below the thread that drives it; see `build_engine`.

    Args:
        config: The engine's config, with the number of its pages.
        cache_config: The size of the KV cache.
        buckets: Batch sizes and lengths that programs are compiled for.
        kinds: What programs can sample, the cheapest first.
        programs: The compiled programs, with the weights and the KV cache.
        runner: Runs the scheduler's steps.
        request_limits: The requests that can be answered.
        processes: Those that the mesh spans, if they are several.
    """

    config: EngineConfig
    cache_config: KVCacheConfig
    buckets: BatchBuckets
    kinds: tuple[SamplerKind, ...]
    programs: Programs
    runner: ModelRunner
    request_limits: RequestLimits
    processes: EngineProcesses | None


def build_engine(
    model: Any,
    state: Any,
    tokenizer: Tokenizer,
    cfg: EngineConfig,
    *,
    mesh: Mesh | None,
    draft: Draft | None,
) -> EngineCore:
    """Return the parts of an engine; see `Engine` for the arguments.

    Raises:
        ConfigError: The config does not fit the model, or itself.
    """
    # First what costs nothing: a wrong config must not be found after loading weights.
    _check_draft(cfg, draft, tokenizer)
    buckets = batch_buckets(cfg, current_policy().hardware)
    # Weights are placed before the cache is sized: its pages take what memory they leave.
    served, weights, cache_config = build_cached_model(
        model, state, cfg, kv_cache_config(cfg), mesh=mesh, draft=draft
    )
    _check_speculation(cfg, keeps_pages_only=served.keeps_pages_only, draft=draft)
    limits = scheduler_config(cfg, cache_config, buckets, keeps_pages_only=served.keeps_pages_only)
    limits = attrs.evolve(limits, whole_input=_whole_input(model.config, limits))
    kinds = sampler_kinds(cfg)
    programs = Programs(
        served,
        weights,
        pages_per_row=-(-limits.max_length // limits.page_size),
        max_length=limits.max_length,
        # Rounded up: the last page of the longest text may be partly empty.
        allowed=allowed_tokens(model.config.vocab_size, tokenizer),
    )
    processes = EngineProcesses.of(mesh_of(weights))
    runner = ModelRunner(
        programs if processes is None else processes.saying(programs),
        Scheduler(limits),
        buckets,
        end_ids=tuple(tokenizer.end_ids),
        kinds=kinds,
        has_drafts=cfg.speculation is not None,
    )
    request_limits = RequestLimits(
        num_tokens=programs.vocab_size,
        num_text_tokens=tokenizer.vocab_size,
        max_length=limits.max_length,
        page_size=limits.page_size,
        num_pages=limits.num_pages,
        kinds=kinds,
        samples_one_by_one=not cfg.fixed_shapes,
        encoder=programs.encoder,
    )
    return EngineCore(
        config=evolve(cfg, num_pages=limits.num_pages),
        cache_config=cache_config,
        buckets=buckets,
        kinds=kinds,
        programs=programs,
        runner=runner,
        request_limits=request_limits,
        processes=processes,
    )


def _whole_input(cfg: Any, limits: SchedulerConfig) -> int:
    """Return how many soft tokens of a model's input one call reads at least; 0 where any may end.

    Raises:
        ConfigError: A call reads fewer.
    """
    count, call_tokens = num_whole_tokens(cfg), limits.chunk_lengths[-1]
    if count >= limits.max_length:  # no text has room for an input
        return 0
    if count > call_tokens:
        raise ConfigError(
            f"the {count} soft tokens of an input see each other, and a call reads {call_tokens} "
            "tokens of a row",
            where="engine.max_num_batched_tokens",
            hint=f"--set engine.max_num_batched_tokens={count}",
        )
    return count


def scheduler_config(
    cfg: EngineConfig, cache_config: KVCacheConfig, buckets: BatchBuckets, *, keeps_pages_only: bool
) -> SchedulerConfig:
    """Return what bounds the schedule of an engine."""
    page_size = cache_config.pages.page_size if cache_config.pages else cache_config.max_length
    return SchedulerConfig(
        num_slots=cfg.max_num_seqs,
        max_length=cache_config.max_length,
        page_size=page_size,
        num_pages=cache_config.pages.num_pages if cache_config.pages else cfg.max_num_seqs,
        num_decode_steps=num_decode_steps(cfg),
        enable_prefix_caching=cfg.enable_prefix_caching and keeps_pages_only,
        fixed_calls=cfg.fixed_shapes,
        **buckets.limits,
    )


def num_decode_steps(cfg: EngineConfig) -> int:
    """Return how many tokens of a row one call samples at most."""
    # A draft's tokens and the one after them are read in one call.
    return 1 + cfg.speculation.num_tokens if cfg.speculation else cfg.num_decode_steps


def sampler_kinds(cfg: EngineConfig) -> tuple[SamplerKind, ...]:
    """Return what programs can sample, the cheapest first."""
    # With fixed shapes one program serves all requests, so that
    # a row's numbers do not depend on who else asks for what.
    return cfg.sampler_kinds[-1:] if cfg.fixed_shapes else cfg.sampler_kinds


def _check_draft(cfg: EngineConfig, draft: Draft | None, tokenizer: Tokenizer) -> None:
    """Refuse a draft model that nobody asked for, a missing one, and one of other tokens.

    Raises:
        ConfigError: Saying why.
    """
    is_wanted = isinstance(cfg.speculation, DraftModel)
    if is_wanted and draft is None:
        raise ConfigError(
            "speculation asks for a draft model, and there is none",
            where="speculation",
            hint="give the engine one: Engine(..., draft=Draft(...)), axcore serve --draft DIR",
        )
    if draft is None:
        return
    if not is_wanted:
        raise ConfigError(
            f"there is a draft model, and speculation is {cfg.speculation}",
            where="speculation",
            hint="set it to DraftModel(), or leave the draft out",
        )
    draft.check_tokenizer(tokenizer)


def _check_speculation(
    cfg: EngineConfig, *, keeps_pages_only: bool, draft: Draft | None = None
) -> None:
    """Refuse speculative decoding where a rejected token cannot be removed from a cache.

    Raises:
        ConfigError: Saying why.
    """
    if cfg.speculation is None:
        return
    cfg.speculation.check()
    reason = None
    if cfg.fixed_shapes:
        reason = "calls of fixed shapes decode a fixed number of tokens"
    elif not keeps_pages_only:
        where = "the model" if draft is None else "the model or of its draft"
        reason = f"a layer of {where} keeps a state, or a row of its own, which has no way back"
    if reason is not None:
        raise ConfigError(
            f"this model cannot be served with speculation: {reason}",
            where="speculation",
            hint="leave speculation None, or keep keys and values in pages",
        )
