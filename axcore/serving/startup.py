"""`start_engine`: an engine for a model, with programs compiled by which it can answer."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from axcore.config import diff_config, evolve, format_diff
from axcore.config.json_files import read_json
from axcore.data import Tokenizer
from axcore.data.tokenizers.hugging_face_tokenizer import with_chat_template
from axcore.distributed import process_count
from axcore.errors import AxcoreError, CheckpointError, ConfigError
from axcore.inference import AnyEngine, Draft, EngineConfig
from axcore.inference.adapters import Adapter, adapter_from, read_adapter
from axcore.inference.embedding import TextEmbedder
from axcore.interop import adapter_format, canonical, check_base_is_unchanged, find_adapter_format
from axcore.interop.canonical import base_config
from axcore.ops import use_policy
from axcore.runs import OpenedModel, Run, engine_for
from axcore.runs.run_weights import RunArrays
from axcore.serving.answers import ParserNames
from axcore.serving.api_error import ApiError
from axcore.serving.config import Limits, ServerConfig
from axcore.serving.embeddings_api import Embeddings
from axcore.serving.endpoint import AnyEndpoint
from axcore.serving.inputs import input_reader
from axcore.serving.request_parser import RequestParser
from axcore.serving.request_settings import Seeds, read_settings
from axcore.serving.scores_api import Rerank, Scores
from axcore.serving.served_model import ServedModel

_LOG = logging.getLogger(__name__)


def start_engine(
    opened: OpenedModel,
    cfg: ServerConfig,
    *,
    names: Sequence[str] = (),
    adapters: Mapping[str, Adapter] = {},
    draft: OpenedModel | None = None,
    chat_template: str | None = None,
    defaults: Mapping[str, Any] = {},
    parsers: ParserNames = ParserNames(),  # noqa: B008 - a frozen value
    progress: Callable[[int, int, str], None] | None = None,
    when_placed: Callable[[], None] = lambda: None,
) -> ServedModel:
    """Return a model that answers; its engine is to be closed.

    Its other programs are compiled while it serves requests; a line of the log says when all are.

    Args:
        opened: What `open_model` returned.
        cfg: How it is served.
        names: What requests call it; by default, what its directory is called.
        adapters: What requests may choose in addition, by name.
        draft: A smaller model that proposes tokens, where `cfg.engine.speculation` says so.
        chat_template: A file, or the name of a template that comes with axcore, in the place of the
            tokenizer's own.
        defaults: Fields of requests, for those that leave them out.
        parsers: Which formats of reasoning and of calls are read out of answers.
        progress: Is called with the programs compiled, all of them, and what the newest is.
        when_placed: Is called when weights are where they serve, before programs are compiled.

    Raises:
        AxcoreError: The config or an adapter does not fit the model, or the mesh the devices.
    """
    name, *aliases = names or (opened.name,)
    if taken := {name, *aliases} & {*adapters}:
        raise ConfigError(
            f"the model and an adapter have the name {min(taken)!r}",
            where="--adapter",
            hint="name the adapter differently, or the model by --name",
        )
    tokenizer = opened.tokenizer
    if chat_template is not None:
        tokenizer = with_chat_template(tokenizer, chat_template, where="--chat-template")
    # Names that there are not are errors now, not at the first request.
    parsers.reasoning_format(None), parsers.tool_format(None)
    # A config's own length wins; the model's is what it was trained for.
    length = cfg.engine.max_length or opened.length
    # Adapters are added to the engine, as they need the converted layers' shapes.
    engine, placement = engine_for(
        opened,
        _with_adapter_room(evolve(cfg.engine, max_length=length), adapters),
        mesh=cfg.mesh,
        tokenizer=tokenizer,
        draft=_draft(draft),
    )
    _add_adapters(engine, adapters)
    # Said when memory is taken: whoever starts the server knows by then whether the model fits.
    when_placed()
    # The server answers after the first programs; the others are compiled while it serves requests.
    engine.warm_up(progress, when_all=partial(_say, time.monotonic()))
    return ServedModel(
        name=name,
        aliases=tuple(aliases),
        engine=engine,
        defaults=defaults,
        endpoints=_endpoints(opened, engine, tokenizer, cfg),
        tokenizer=tokenizer,
        max_length=length,
        limits=cfg.limits,
        adapters=tuple(adapters),
        step=opened.step,
        placement=placement,
        seeds=Seeds(cfg.seed),
        parsers=parsers,
        reader=input_reader(opened.model, opened.trainer.data, tokenizer.chat_template),
    )


_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Fields of a `generation_config.json` that are also those of requests."""


def read_generation_config(name: str | None, model: Path | str) -> dict[str, Any]:
    """Return the sampling settings that a `generation_config.json` recommends.

    Args:
        name: The file; `auto` is that of the model, and None reads none.
        model: The folder of a pretrained checkpoint.

    Raises:
        ConfigError: There is no such file, or a value in it is none that requests can have.
    """
    if name is None:
        return {}
    where = "--generation-config"
    path = Path(model) / "generation_config.json" if name == "auto" else Path(name)
    path = path.expanduser()
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", where=where, hint=f"{where} FILE names one")
    content = read_json(path, "generation config", error=ConfigError)
    found = {one: content[one] for one in _DEFAULTS if content.get(one) is not None}
    if content.get("do_sample") is False:
        found["temperature"] = 0
    try:
        read_settings(RequestParser(found), Limits())
    except ApiError as error:
        raise ConfigError(error.message, where=f"{where} {path}") from error
    return found


def _endpoints(
    opened: OpenedModel, engine: AnyEngine, tokenizer: Tokenizer, cfg: ServerConfig
) -> tuple[AnyEndpoint, ...]:
    """Return what a model answers in addition to text: embeddings, if it has hidden vectors."""
    # Where there are several processes, the others run what the engine says alone.
    if not hasattr(opened.model, "hidden") or process_count() > 1:
        return ()
    with use_policy(opened.trainer.compiler.kernel_policy):
        embedder = TextEmbedder(
            opened.model, engine.config, max_length=engine.max_length, pooling=cfg.pooling
        )
    embeddings = text_embeddings(embedder, tokenizer)
    return embeddings, Scores(embeddings), Rerank(embeddings)


def text_embeddings(embedder: TextEmbedder, tokenizer: Tokenizer) -> Embeddings:
    """Return the endpoint of a model that writes text; a text becomes tokens as a prompt does."""
    return Embeddings(
        partial(tokenizer.encode_prompt, parses_special=True),
        embedder.embed,
        vocab_size=tokenizer.vocab_size,
        max_length=embedder.max_length,
        dim=embedder.dim,
    )


def _draft(opened: OpenedModel | None) -> Draft | None:
    if opened is None:
        return None
    return Draft(model=opened.model, state=opened.state, tokenizer=opened.tokenizer)


def _say(began: float, failure: Exception | None) -> None:
    if failure is None:
        _LOG.info("all programs are compiled, after %.0f s", time.monotonic() - began)
    else:
        # The server stays up: fewer programs are slower, and no reason to answer nothing.
        _LOG.error(
            "a program did not compile; requests are answered by those that did: %s", failure
        )


_FLAG = "--adapter"


def named_folders(texts: Sequence[str]) -> dict[str, Path]:
    """Return the folder of each adapter, by its name, from texts as `NAME=DIR`.

    Raises:
        ConfigError: A text names none, or two have a name.
        CheckpointError: There is no such directory.
    """
    found: dict[str, Path] = {}
    for text in texts:
        name, _, folder = text.partition("=")
        path = Path(folder).expanduser()
        if not name or not folder:
            raise ConfigError(
                f"{text!r} names no adapter and its directory",
                where=_FLAG,
                hint=f"{_FLAG} NAME=DIR, as {_FLAG} poems=runs/poems",
            )
        if name in found:
            raise ConfigError(
                f"two adapters have the name {name!r}", where=_FLAG, hint="name each differently"
            )
        if not path.is_dir():
            raise CheckpointError(
                "there is no such directory",
                where=f"{_FLAG} {text}",
                hint="name a run of LoRA, or a folder of adapters in PEFT's format",
            )
        found[name] = path
    return found


def open_adapters(
    folders: Mapping[str, Path], cfg: Any, *, trust_code: bool = False
) -> dict[str, Adapter]:
    """Return adapters of a model.

    Args:
        folders: Each holds adapters in a known format, or is a run that trained some.
        cfg: The model's config.
        trust_code: Whether code that came with a run is run to open it.

    Raises:
        ConfigError: One is of another model, or is none; or the model has adapters itself.
        CheckpointError: One cannot be read.
    """
    # A model with adapters of its own has none of the layers that an engine puts its adapters into.
    if folders and base_config(cfg) != cfg:
        raise ConfigError(
            "the model has adapters itself, so that others have no place",
            where=_FLAG,
            hint="serve the model that it was trained from, and this one as one more --adapter",
        )
    return {
        name: _opened(name, folder, cfg, trust_code=trust_code) for name, folder in folders.items()
    }


def _with_adapter_room(cfg: EngineConfig, adapters: Mapping[str, Adapter]) -> EngineConfig:
    """Return an engine's config with room for all adapters.

    Raises:
        ConfigError: One has a larger rank than the config has room for.
    """
    for name, adapter in adapters.items():
        if adapter.rank > cfg.adapter_rank:
            raise ConfigError(
                f"the adapter {name!r} has rank {adapter.rank}, and there is room for "
                f"{cfg.adapter_rank}",
                where=_FLAG,
                hint=f"--set engine.adapter_rank={adapter.rank}",
            )
    # Programs are compiled for a number of slots, so there is at least one for each adapter that
    # is named at the start.
    return evolve(cfg, num_adapters=max(cfg.num_adapters, len(adapters)))


def _add_adapters(engine: AnyEngine, adapters: Mapping[str, Adapter]) -> None:
    """Let requests to an engine choose among adapters.

    Raises:
        AxcoreError: One adapts layers without adapter slots; it says which adapter that is.
    """
    for name, adapter in adapters.items():
        try:
            engine.add_adapter(name, adapter)
        except AxcoreError as error:
            error.add_note(f"while adding the adapter {name!r}")
            raise


def _opened(name: str, folder: Path, cfg: Any, *, trust_code: bool) -> Adapter:
    where = f"{_FLAG} {name}={folder}"
    if find_adapter_format(folder) is not None:
        return read_adapter(folder, cfg)
    run = Run(folder, trust_code=trust_code)
    own = run.opened_config.model
    if adapter_format(own) is None:
        raise ConfigError(
            "the run trained no adapters but a full model",
            where=where,
            hint=f"serve it by itself: axcore serve {folder}",
        )
    adapted, served = (canonical(base_config(one)) for one in (own, cfg))
    if changes := diff_config(adapted, served):
        raise ConfigError(
            "the adapters are of another model (-: that one, +: the one that is served)\n"
            + format_diff(changes).rstrip(),
            where=where,
            hint="serve the model that they were trained from",
        )
    # The config is equal, but weights may have been trained
    # since: factors are differences from the base's numbers.
    check_base_is_unchanged(
        run.opened_config.init_from,
        own,
        where=where,
        hint=f"serve the run by itself: axcore serve {folder}",
    )
    return adapter_from(own, RunArrays.of(run, None))
