"""LoRA adapters of a server: those that it starts with, and those that requests add and remove."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from axcore.config import diff_config, evolve, format_diff
from axcore.errors import AxcoreError, CheckpointError, ConfigError, EngineError
from axcore.inference import AnyEngine, EngineConfig
from axcore.inference.adapters import Adapter, adapter_from, read_adapter
from axcore.interop import adapter_format, canonical, check_base_is_unchanged, find_adapter_format
from axcore.interop.canonical import base_config
from axcore.runs import Run
from axcore.runs.run_weights import RunArrays
from axcore.serving.api_error import ApiError, invalid
from axcore.serving.request_handler import compute
from axcore.serving.request_parser import RequestParser
from axcore.serving.served_model import ServedModel

_FLAG = "--adapter"

_ADDED = 4
"""Adapters that requests may add, where the config does not say for how many there are slots."""


@attrs.define(eq=False)
class AdapterFolder:
    """Where requests may add adapters from: they name folders below one, and no other.

    Args:
        root: The folder.
        cfg: The model's config.

    Raises:
        CheckpointError: There is no such directory.
    """

    root: Path
    cfg: Any
    _lock: asyncio.Lock = attrs.field(init=False, factory=asyncio.Lock)

    def __attrs_post_init__(self) -> None:
        self.root = Path(self.root).expanduser().resolve()
        if not self.root.is_dir():
            raise CheckpointError(
                f"there is no directory {self.root}",
                where="--adapter-root",
                hint="name the folder that has folders of adapters below it",
            )
        _check_has_no_adapters(self.cfg)

    async def add(self, served: ServedModel, name: str, path: str, *, replaces: bool) -> None:
        """Let requests choose an adapter, or another one by the same name.

        Raises:
            ApiError: The name is taken, or the folder has no adapter of this model.
        """
        # A client that leaves does not end it: the engine must not have what the server lacks.
        await asyncio.shield(self._added(served, name, path, replaces=replaces))

    async def _added(self, served: ServedModel, name: str, path: str, *, replaces: bool) -> None:
        # One after the other: two requests must not both find the name free, or the last slot.
        async with self._lock:
            if name in (served.name, *served.aliases):
                raise invalid(f"{name!r:.80} is the model's own name", "lora_name")
            if name in served.adapters and not replaces:
                message = f"{name!r:.80} is loaded already; load_inplace: true replaces it"
                raise invalid(message, "lora_name", code="adapter_exists")
            folder = self._below(path)
            try:
                # In a thread: other requests are answered while it is read. No code that came
                # with a run is trusted here, whatever the server was started with.
                await asyncio.to_thread(self._add, served.engine, name, folder)
            except EngineError:
                raise
            except AxcoreError as error:
                # Without `where`, which has paths of the server.
                hint = f"; {error.hint}" if error.hint else ""
                raise invalid(f"{error.what}{hint}", "lora_path") from error
            if name not in served.adapters:
                served.adapters = (*served.adapters, name)

    async def remove(self, served: ServedModel, name: str) -> None:
        """Refuse new requests with an adapter; those that run end with it.

        Raises:
            ApiError: There is none of that name.
        """
        await asyncio.shield(self._removed(served, name))

    async def _removed(self, served: ServedModel, name: str) -> None:
        async with self._lock:
            if name not in served.adapters:
                known = ", ".join(map(repr, served.adapters)) or "none"
                message = f"There is no adapter {name!r:.80}; this server has {known}."
                raise ApiError(404, message, param="lora_name", code="adapter_not_found")
            # First here: a request that names it must not reach an engine that has it no longer.
            served.adapters = tuple(one for one in served.adapters if one != name)
            await asyncio.to_thread(served.engine.remove_adapter, name)

    def _below(self, path: str) -> Path:
        """Return the folder that a request means, if it is below the root.

        Raises:
            ApiError: It is elsewhere, or is not a directory.
        """
        # Resolved, so that neither `..` nor a link leads out.
        try:
            found = (self.root / path).resolve()
            is_below = found.is_relative_to(self.root) and found.is_dir()
        except (OSError, ValueError, RuntimeError):  # too long, a zero byte, links in a circle
            is_below = False
        if not is_below:
            message = f"there is no folder {path!r:.200} below the server's --adapter-root"
            raise invalid(message, "lora_path")
        return found

    def _add(self, engine: AnyEngine, name: str, folder: Path) -> None:
        adapters = open_adapters({name: folder}, self.cfg)
        with_adapter_slots(engine.config, adapters)  # refuses a rank that there is no room for
        add_adapters(engine, adapters)


async def load_adapter(request: HttpRequest) -> Response:
    """Add an adapter, as vLLM's `/v1/load_lora_adapter` does."""

    async def added(served: ServedModel, fields: RequestParser) -> dict[str, Any]:
        name, path = _required(fields, "lora_name"), _required(fields, "lora_path")
        replaces = fields.boolean("load_inplace")
        fields.ignore("lora_int_id", "adapters are known by name")
        fields.finish()
        assert served.adapter_folder is not None  # or there would be no such path
        await served.adapter_folder.add(served, name, path, replaces=replaces)
        return {"adapter": name, "adapters": list(served.adapters)}

    return await compute(request, added)


async def unload_adapter(request: HttpRequest) -> Response:
    """Remove an adapter, as vLLM's `/v1/unload_lora_adapter` does."""

    async def removed(served: ServedModel, fields: RequestParser) -> dict[str, Any]:
        name = _required(fields, "lora_name")
        fields.ignore("lora_int_id", "adapters are known by name")
        fields.finish()
        assert served.adapter_folder is not None  # or there would be no such path
        await served.adapter_folder.remove(served, name)
        return {"adapter": name, "adapters": list(served.adapters)}

    return await compute(request, removed)


def _required(fields: RequestParser, name: str) -> str:
    found = fields.text(name)
    if not found:
        raise invalid(f"{name} is missing", name)
    return found


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
    if folders:
        _check_has_no_adapters(cfg)
    return {
        name: _opened(name, folder, cfg, trust_code=trust_code) for name, folder in folders.items()
    }


def _check_has_no_adapters(cfg: Any) -> None:
    """Check that a model has the layers that an engine puts adapters into.

    Raises:
        ConfigError: It has adapters itself.
    """
    if base_config(cfg) != cfg:
        raise ConfigError(
            "the model has adapters itself, so that others have no place",
            where=_FLAG,
            hint="serve the model that it was trained from, and this one as one more --adapter",
        )


def with_adapter_slots(
    cfg: EngineConfig, adapters: Mapping[str, Adapter], *, is_open: bool = False
) -> EngineConfig:
    """Return an engine's config with slots for all adapters.

    Args:
        cfg: The engine's config.
        adapters: Those that it starts with.
        is_open: Whether requests may add more.

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
    least = len(adapters) + (_ADDED if is_open and not cfg.num_adapters else 0)
    return evolve(cfg, num_adapters=max(cfg.num_adapters, least))


def add_adapters(engine: AnyEngine, adapters: Mapping[str, Adapter]) -> None:
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
        try:
            return read_adapter(folder, cfg)
        except AxcoreError:
            raise
        # Settings are of others: a text in the place of a list, or a pattern that is none.
        except (TypeError, ValueError, AttributeError, LookupError, re.error) as error:
            raise CheckpointError(
                f"the folder's settings are not as PEFT writes them: {error}",
                where=where,
                hint="compare adapter_config.json with one that save_pretrained wrote",
            ) from error
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
