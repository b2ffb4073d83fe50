"""`axcore serve`: answer requests over HTTP, as OpenAI's API does."""

import importlib.util
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import click

from axcore.cli import options, processes
from axcore.cli.loading_display import LoadingDisplay
from axcore.cli.target import check_present, use_target
from axcore.errors import ConfigError
from axcore.resilience.compile_cache import use_compile_cache

if TYPE_CHECKING:
    from axcore.plugins import ModelApi
    from axcore.runs import Run
    from axcore.serving import Served, ServedModel, ServerConfig


_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_NEEDED = ("starlette", "uvicorn", "prometheus_client")


@click.command()
@click.argument("model")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="0 takes any that is free.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    help="Name of the model in requests; by default, its directory's name. Repeatable.",
)
@click.option(
    "--step",
    type=int,
    help="Checkpoint to serve; by default the newest, and newer ones once they are saved.",
)
@click.option(
    "--adapter",
    "adapters",
    metavar="NAME=DIR",
    multiple=True,
    help="A LoRA run or a folder in PEFT's format, which requests select by NAME. Repeatable.",
)
@click.option(
    "--adapter-root",
    metavar="DIR",
    help="Let clients with a key add and remove adapters of folders below DIR, while it serves.",
)
@click.option(
    "--draft",
    metavar="DIR",
    help="A smaller model with the same tokenizer for speculative decoding: a run or a checkpoint.",
)
@click.option(
    "--chat-template",
    metavar="NAME|FILE",
    help="Chat template to use instead of the tokenizer's: a file, or a name such as qwq.",
)
@click.option(
    "--reasoning-parser",
    metavar="NAME",
    help="How answers write reasoning, such as think, or none; by default as the chat template.",
)
@click.option(
    "--tool-parser",
    metavar="NAME",
    help="How answers write calls of tools, such as hermes, or none; by default as the template.",
)
@click.option(
    "--api-key-file",
    metavar="FILE",
    help="Keys, one a line; others may be in AXCORE_API_KEYS. Without any, every client is served.",
)
@click.option(
    "--allowed-host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="Another name than --host that requests may use for this server. Repeatable.",
)
@click.option(
    "--cors-origin",
    "cors_origins",
    metavar="ORIGIN",
    multiple=True,
    help="Web pages that may use this server, such as https://example.com, or *. Repeatable.",
)
@click.option(
    "--generation-config",
    metavar="auto|FILE",
    help="A generation_config.json for sampling settings that requests leave out; auto is MODEL's.",
)
@click.option(
    "--proxy", metavar="ADDRESS", help="A proxy whose information about clients is trusted."
)
@options.modify
@options.overrides
@options.target
@options.trust_code
@options.allow_unknown_fields
@processes.options
def serve(
    model: str, host: str, port: int, target: str | None, overrides: tuple[str, ...], **rest: Any
) -> None:
    """Serve MODEL, a run directory or the folder of a pretrained checkpoint.

    --set changes settings, such as engine.max_num_seqs=32 or limits.max_requests=100, and --modify
    the model, such as 'kv_cache(dtype=int8)'; see docs/serving.md. Models of sound and others that
    write no text by an engine are served by their plugin. Started once on each of several hosts, as
    by srun, it splits one model over all of their devices.
    """
    _check_installed()
    with _ends_at(signal.SIGTERM):
        _serve(model, host, port, target=target, overrides=overrides, **rest)


def _serve(
    model: str, host: str, port: int, *, target: str | None, overrides: tuple[str, ...], **rest: Any
) -> None:
    """Serve a model until a signal or a fault of its engine ends the server."""
    use_compile_cache()
    place = processes.place_of(rest)
    wanted = use_target(target, num_processes=place.process_count if place else 1)
    processes.join(place, rest)
    from axcore.config import apply_overrides
    from axcore.distributed import process_count
    from axcore.inference import DraftModel, EngineConfig
    from axcore.progress import heard_by
    from axcore.serving import (
        HttpServer,
        ServedModel,
        ServerConfig,
        WeightsWatch,
        find_model_api,
        listen,
        read_api_keys,
        serving_app,
    )

    speculation = None if rest["draft"] is None else DraftModel()
    engine = EngineConfig(speculation=speculation)
    cfg = apply_overrides(ServerConfig(engine=engine), overrides)
    keys = read_api_keys(rest["api_key_file"])
    _check_adapter_root(rest["adapter_root"], has_keys=bool(keys), has_others=place is not None)
    api = find_model_api(model)
    _log_to_stderr()
    is_first = place is None or place.process_index == 0
    with listen(host, port) if is_first else nullcontext() as listener:
        with LoadingDisplay() as display, heard_by(display.hear):
            display.begin("loading", model)
            check_present(wanted)
            if api is None:
                served, run = _start_engine(model, cfg, display, rest)
            else:
                served, run = _start_api(api, model, cfg, display, rest)
        if listener is None:
            assert isinstance(served, ServedModel)  # an API is of one process
            _follow(served)
            return
        with served.engine if isinstance(served, ServedModel) else nullcontext():
            named = (*_LOOPBACK, host, *rest["hosts"])
            hosts = named if host in _LOOPBACK or rest["hosts"] else ()
            app = serving_app(served, keys=keys, hosts=hosts, cors_origins=rest["cors_origins"])
            server = HttpServer(app, served, drain_s=cfg.drain_s, proxies=rest["proxy"])
            _announce(served, _url(listener), has_keys=bool(keys))
            if host not in _LOOPBACK and not keys:
                _warn_of_everybody(host, has_names=bool(hosts))
            watch: AbstractContextManager[Any] = nullcontext()
            if run and process_count() == 1:
                watch = WeightsWatch(run, served, every_s=cfg.watch_s)
            elif run:
                click.echo(
                    "newer checkpoints need a new start: there are several processes", err=True
                )
            with _ends_at(signal.SIGINT), watch:
                server.run(sockets=[listener])
                error = served.error
                last = _end_after(server.left_s, error.exit_code if error else 0)
        last.cancel()
        if error is not None:
            raise error
    click.echo("ended", err=True)


def _start_engine(
    model: str, cfg: "ServerConfig", display: LoadingDisplay, rest: dict[str, Any]
) -> "tuple[Served, Run | None]":
    """Return a model that writes text, and the run that newer checkpoints come from."""
    from axcore.runs import open_model
    from axcore.serving import (
        AdapterFolder,
        ParserNames,
        named_folders,
        open_adapters,
        read_generation_config,
        start_engine,
    )

    folders = named_folders(rest["adapters"])
    defaults = read_generation_config(rest["generation_config"], model)
    names = ("trust_code", "allow_unknown_fields")
    how = {"on_host": True, **{name: rest[name] for name in names}}
    opened = open_model(model, step=rest["step"], changes=rest["changes"], **how)
    own = opened.trainer.config.model
    adapters = open_adapters(folders, own, trust_code=rest["trust_code"])
    root = rest["adapter_root"] and AdapterFolder(rest["adapter_root"], own)
    draft = rest["draft"] and open_model(rest["draft"], **how)
    served = start_engine(
        opened,
        cfg,
        names=rest["names"],
        adapters=adapters,
        adapter_folder=root,
        defaults=defaults,
        draft=draft,
        chat_template=rest["chat_template"],
        parsers=ParserNames(reasoning=rest["reasoning_parser"], tools=rest["tool_parser"]),
        progress=display.advance,
        when_placed=partial(display.begin, "compiling"),
    )
    # Not the models: the engine has weights of its own, in other dtypes or places.
    return served, opened.run


def _check_adapter_root(root: str | None, *, has_keys: bool, has_others: bool) -> None:
    """Raise ConfigError where adapters cannot be added while the server runs."""
    if root is None:
        return
    if not has_keys:
        raise ConfigError(
            "without keys, everybody could add and remove adapters",
            where="--adapter-root",
            hint="--api-key-file FILE, or AXCORE_API_KEYS, gives clients keys",
        )
    if has_others:
        raise ConfigError(
            "several processes serve the model, and they take adapters at the start alone",
            where="--adapter-root",
            hint="--adapter NAME=DIR names each",
        )


_OF_TEXT = {
    "adapters": "--adapter",
    "adapter_root": "--adapter-root",
    "draft": "--draft",
    "chat_template": "--chat-template",
    "reasoning_parser": "--reasoning-parser",
    "tool_parser": "--tool-parser",
    "generation_config": "--generation-config",
    "changes": "--modify",
}
"""Options that mean something for a model of text alone."""


def _start_api(
    api: "ModelApi", model: str, cfg: "ServerConfig", display: LoadingDisplay, rest: dict[str, Any]
) -> "tuple[Served, Run | None]":
    """Return a model that a plugin serves, and the run that newer checkpoints come from.

    Raises:
        ConfigError: An option is given that is for models of text.
    """
    from axcore.serving import start_model_api

    if given := [flag for name, flag in _OF_TEXT.items() if rest.get(name)]:
        raise ConfigError(
            f"the model writes no text by an engine; it is served by {api.name} of {api.plugin}",
            where=given[0],
            hint=f"leave {given[0]} out",
        )
    return start_model_api(
        api,
        model,
        cfg,
        names=rest["names"],
        step=rest["step"],
        trust_code=rest["trust_code"],
        allow_unknown_fields=rest["allow_unknown_fields"],
        when_placed=partial(display.begin, "compiling"),
    )


def _follow(served: "ServedModel") -> None:
    """Run what process 0 plans until it ends, however this process is asked to."""
    # An engine that starts several processes sends its signals to all of them, and process 0
    # finishes what it has to answer first. Where it is lost, the connection ends.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    from axcore.inference import Engine

    with served.engine as engine:
        assert isinstance(engine, Engine)  # a mesh of several processes makes no replicas
        engine.follow()


@contextmanager
def _ends_at(number: signal.Signals) -> Iterator[None]:
    """Let a signal end the process at once with 0 where no server runs: no answer can be lost.

    While one runs, it has the signal.
    """
    before = signal.signal(number, lambda *_: _end(0))
    try:
        yield
    finally:
        signal.signal(number, before)


def _end_after(seconds: float, code: int) -> threading.Timer:
    """End the process after a time, unless it is cancelled.

    What is closed at the end waits for a restore, or for programs that are being compiled. Both can
    take minutes, and nothing can interrupt them.
    """
    timer = threading.Timer(seconds, _end, (code,))
    timer.daemon = True
    timer.start()
    return timer


def _end(code: int) -> NoReturn:
    os.write(sys.stderr.fileno(), b"\nended, and waited for nothing\n")
    os._exit(code)  # threads that compile would be waited for otherwise


def _warn_of_everybody(host: str, *, has_names: bool) -> None:
    """Says who may ask a server without keys that other machines reach."""
    pages = "" if has_names else ", and so can pages of any site in their browsers"
    click.echo(
        f"without keys, everybody who reaches {host} may ask{pages}; --api-key-file gives keys",
        err=True,
    )


def _announce(served: "Served", url: str, *, has_keys: bool) -> None:
    """Print where the server is, and a command to try."""
    from axcore.serving import ServedModel

    step = "" if served.step is None else f", step {served.step}"
    named = ", ".join(served.model_names)
    if not isinstance(served, ServedModel):
        paths = ", ".join(one.path for one in served.endpoints)
        click.echo(f"{named}{step}: {url}   (POST {paths}; Ctrl-C ends)")
        return
    devices = served.placement and served.placement.describe()
    if devices:
        click.echo(devices, err=True)
    click.echo(f"{named}{step}: {url}   (a page to try it; Ctrl-C ends)")
    body = json.dumps({"prompt": "def ", "max_tokens": 40})
    key = ' -H "authorization: Bearer $KEY"' if has_keys else ""
    sent = f"-H 'content-type: application/json'{key} -d '{body}'"
    click.echo(f"curl {url}v1/completions {sent}")


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    form = logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    form.converter = time.gmtime
    handler.setFormatter(form)
    levels = {
        "axcore.runs": logging.INFO,
        "axcore.serving": logging.INFO,
        "uvicorn": logging.WARNING,
    }
    for name, level in levels.items():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


def _check_installed() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"serving needs {', '.join(missing)}, which is not installed",
            hint='pip install "axcore[serve]"',
        )
