"""`EngineParts`: what an engine is made of, built from a model and a config."""

from typing import Any

import attrs
from jax.sharding import Mesh

from axcore.config import evolve
from axcore.data import Tokenizer
from axcore.inference.call_shapes import CallShapes, call_shapes
from axcore.inference.config import EngineConfig
from axcore.inference.drawing import DrawKind, allowed_tokens
from axcore.inference.engine_checks import Accepted, check_draft, check_speculation
from axcore.inference.engine_room import draw_kinds, schedule_limits, served_model, serving_room
from axcore.inference.programs import Programs
from axcore.inference.scheduler import Scheduler
from axcore.inference.speculation import Draft
from axcore.inference.step_runner import StepRunner
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
