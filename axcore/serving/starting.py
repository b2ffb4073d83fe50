"""`start_engine`: an engine for a model, with programs compiled by which it can answer."""

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial

import jax

from axcore.config import evolve
from axcore.data.tokenizers.hugging_face_tokenizer import with_chat_template
from axcore.errors import ConfigError
from axcore.inference import Draft, open_engine, serving_mesh
from axcore.inference.adapters import Adapter
from axcore.modifiers import changes_compute_dtype
from axcore.ops import use_policy
from axcore.runs import OpenedModel
from axcore.serving.adapters import add_adapters, with_adapter_room
from axcore.serving.config import ServerConfig
from axcore.serving.placement import Placement
from axcore.serving.seeds import Seeds
from axcore.serving.served_model import ServedModel

_LOG = logging.getLogger(__name__)


def start_engine(
    opened: OpenedModel,
    cfg: ServerConfig,
    *,
    name: str | None = None,
    adapters: Mapping[str, Adapter] = {},
    draft: OpenedModel | None = None,
    chat_template: str | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    when_placed: Callable[[], None] = lambda: None,
) -> ServedModel:
    """Returns a model that answers; its engine is to be closed.

    Its other programs are compiled beside requests; a line of the log says when all are.

    Args:
        opened: What `open_model` returned.
        cfg: How it is served.
        name: What requests call it; by default, what its directory is called.
        adapters: What requests may choose besides, by name.
        draft: A smaller model that guesses tokens, where `cfg.engine.speculation` says so.
        chat_template: A file, or the name of a template that comes with axcore, in the place of the
            tokenizer's own.
        progress: Is called with the programs compiled, all of them, and what the newest is.
        when_placed: Is called when weights lie where they serve, before programs are compiled.

    Raises:
        AxcoreError: The config or an adapter does not fit the model, or the mesh the devices.
    """
    name = name or opened.name
    if name in adapters:
        raise ConfigError(
            f"the model and an adapter have the name {name!r}",
            where="--adapter",
            hint="name the adapter differently, or the model by --name",
        )
    tokenizer = opened.tokenizer
    if chat_template is not None:
        tokenizer = with_chat_template(tokenizer, chat_template, where="--chat-template")
    length = cfg.engine.max_length or opened.length
    engine_cfg = with_adapter_room(evolve(cfg.engine, max_length=length), adapters)
    policy = opened.trainer.compiler.kernel_policy
    with use_policy(policy):
        shape = cfg.mesh or serving_mesh(
            opened.model, engine_cfg, policy.hardware, jax.local_device_count()
        )
        placement = Placement.of(opened.model, shape)
        if engine_cfg.compute is None and changes_compute_dtype(
            opened.model.config, policy.hardware
        ):
            _LOG.info(
                "layers that were trained in 16 bits compute in 32, as XLA is slow in 16 on %s; "
                "--set engine.compute=bfloat16 keeps 16",
                policy.hardware,
            )
        engine = open_engine(
            opened.model,
            opened.state,
            tokenizer,
            engine_cfg,
            mesh=placement.mesh,
            draft=_guessing(draft),
        )
    add_adapters(engine, adapters)
    when_placed()
    engine.warm_up(progress, when_all=partial(_say, time.monotonic()))
    return ServedModel(
        name=name,
        engine=engine,
        tokenizer=tokenizer,
        max_length=length,
        limits=cfg.limits,
        adapters=tuple(adapters),
        step=opened.step,
        placement=placement,
        seeds=Seeds(cfg.seed),
    )


def _guessing(opened: OpenedModel | None) -> Draft | None:
    if opened is None:
        return None
    return Draft(model=opened.model, state=opened.state, tokenizer=opened.tokenizer)


def _say(began: float, failure: Exception | None) -> None:
    if failure is None:
        _LOG.info("all programs are compiled, after %.0f s", time.monotonic() - began)
    else:
        _LOG.error(
            "a program did not compile; requests are answered by those that did: %s", failure
        )
