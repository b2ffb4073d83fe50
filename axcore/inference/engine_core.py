"""`EngineParts`: what an engine is made of, built from a model and a config."""

from typing import Any

import attrs
from jax.sharding import Mesh

from axcore.config import evolve
from axcore.data import Tokenizer
from axcore.errors import ConfigError
from axcore.inference.config import CallShapes, EngineConfig, call_shapes
from axcore.inference.kv_cache import served_model, serving_room
from axcore.inference.model_runner import StepRunner
from axcore.inference.programs import Programs
from axcore.inference.request import Accepted, DrawKind
from axcore.inference.sampler import allowed_tokens
from axcore.inference.schedule import Limits
from axcore.inference.scheduler import Scheduler
from axcore.inference.speculation import Draft, DraftModel
from axcore.layers import KVCacheConfig
from axcore.ops import current_policy


@attrs.frozen(kw_only=True, eq=False)
class EngineParts:
    """What an engine is made of.

    Args:
        config: The engine's, with the number of its pages.
        room: That the model's caches have.
        shapes: Those that programs are made for.
        kinds: What programs can draw, the cheapest first.
        programs: What runs on the device.
        runner: Runs the steps.
        accepted: What requests can be answered.
    """

    config: EngineConfig
    room: KVCacheConfig
    shapes: CallShapes
    kinds: tuple[DrawKind, ...]
    programs: Programs
    runner: StepRunner
    accepted: Accepted

    @classmethod
    def of(
        cls,
        model: Any,
        state: Any,
        tokenizer: Tokenizer,
        cfg: EngineConfig,
        *,
        mesh: Mesh | None,
        draft: Draft | None,
    ) -> "EngineParts":
        """Returns the parts of an engine; see `Engine`.

        Raises:
            ConfigError: The config does not fit the model, or itself.
        """
        check_draft(cfg, draft, tokenizer)
        shapes = call_shapes(cfg, current_policy().hardware)
        served, weights, room = served_model(
            model, state, cfg, serving_room(cfg), mesh=mesh, draft=draft
        )
        check_speculation(cfg, keeps_pages_only=served.keeps_pages_only, draft=draft)
        limits = schedule_limits(cfg, room, shapes, keeps_pages_only=served.keeps_pages_only)
        kinds = draw_kinds(cfg)
        programs = Programs(
            served,
            weights,
            pages_per_row=-(-limits.max_length // limits.page_size),
            max_length=limits.max_length,
            allowed=allowed_tokens(model.config.vocab_size, tokenizer),
        )
        runner = StepRunner(
            programs,
            Scheduler(limits),
            shapes,
            end_ids=tuple(tokenizer.end_ids),
            kinds=kinds,
            guesses=cfg.speculation is not None,
        )
        accepted = Accepted(
            num_tokens=programs.vocab_size,
            num_text_tokens=tokenizer.vocab_size,
            max_length=limits.max_length,
            page_size=limits.page_size,
            num_pages=limits.num_pages,
            kinds=kinds,
            draws_one_by_one=not cfg.fixed_shapes,
        )
        return cls(
            config=evolve(cfg, num_pages=limits.num_pages),
            room=room,
            shapes=shapes,
            kinds=kinds,
            programs=programs,
            runner=runner,
            accepted=accepted,
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


def check_draft(cfg: EngineConfig, draft: Draft | None, tokenizer: Tokenizer) -> None:
    """Refuses a draft model that nobody asked for, a missing one, and one of other tokens.

    Raises:
        ConfigError: Saying why.
    """
    is_wanted = isinstance(cfg.speculation, DraftModel)
    if is_wanted and draft is None:
        raise ConfigError(
            "tokens are to be guessed by a draft model, and there is none",
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


def check_speculation(
    cfg: EngineConfig, *, keeps_pages_only: bool, draft: Draft | None = None
) -> None:
    """Refuses guesses where a wrong one could not be taken back.

    Raises:
        ConfigError: Saying why.
    """
    if cfg.speculation is None:
        return
    cfg.speculation.check()
    reason = None
    if cfg.fixed_shapes:
        reason = "calls of fixed shapes draw a fixed number of tokens"
    elif not keeps_pages_only:
        where = "the model" if draft is None else "the model or of its draft"
        reason = f"a layer of {where} keeps a state, or a row of its own, which has no way back"
    if reason is not None:
        raise ConfigError(
            f"tokens cannot be guessed ahead: {reason}",
            where="speculation",
            hint="leave speculation None, or keep keys and values in pages",
        )
