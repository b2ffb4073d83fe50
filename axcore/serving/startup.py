"""`start_engine`: an engine for a model, with programs compiled by which it can answer."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from axcore.config import evolve
from axcore.config.json_files import read_json
from axcore.data import Tokenizer
from axcore.data.tokenizers.hugging_face_tokenizer import with_chat_template
from axcore.distributed import process_count
from axcore.errors import ConfigError
from axcore.inference import AnyEngine, Draft
from axcore.inference.adapters import Adapter
from axcore.inference.embedding import TextEmbedder
from axcore.ops import use_policy
from axcore.runs import OpenedModel, engine_for
from axcore.serving.adapters import AdapterFolder, add_adapters, with_adapter_slots
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
    adapter_folder: AdapterFolder | None = None,
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
        adapter_folder: Where requests may add further ones from; None lets them add none.
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
        with_adapter_slots(
            evolve(cfg.engine, max_length=length), adapters, is_open=adapter_folder is not None
        ),
        mesh=cfg.mesh,
        tokenizer=tokenizer,
        draft=_draft(draft),
    )
    add_adapters(engine, adapters)
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
        adapter_folder=adapter_folder,
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
