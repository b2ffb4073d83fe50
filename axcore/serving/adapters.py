"""Adapters that a server is started with: where each is, and whether the model takes it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from axcore.config import diff_config, evolve, format_diff
from axcore.errors import AxcoreError, CheckpointError, ConfigError
from axcore.inference import AnyEngine, EngineConfig
from axcore.inference.adapters import Adapter, adapter_from, read_adapter
from axcore.interop import adapter_format, check_base_is_unchanged, compared, find_adapter_format
from axcore.interop.canonical import base_config
from axcore.runs import Run
from axcore.runs.run_weights import RunArrays

_FLAG = "--adapter"


def named_folders(texts: Sequence[str]) -> dict[str, Path]:
    """Returns the folder of each adapter, by its name, from texts as `NAME=DIR`.

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
    """Returns adapters of a model.

    Args:
        folders: Each holds adapters in a known format, or is a run that trained some.
        cfg: The model's config.
        trust_code: Whether code that came with a run is run to open it.

    Raises:
        ConfigError: One is of another model, or is none; or the model has adapters itself.
        CheckpointError: One cannot be read.
    """
    if folders and base_config(cfg) != cfg:
        raise ConfigError(
            "the model has adapters itself, so that others have no place",
            where=_FLAG,
            hint="serve the model that it was trained from, and this one as one more --adapter",
        )
    return {
        name: _opened(name, folder, cfg, trust_code=trust_code) for name, folder in folders.items()
    }


def with_adapter_room(cfg: EngineConfig, adapters: Mapping[str, Adapter]) -> EngineConfig:
    """Returns an engine's config with room for all adapters.

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
    return evolve(cfg, num_adapters=max(cfg.num_adapters, len(adapters)))


def add_adapters(engine: AnyEngine, adapters: Mapping[str, Adapter]) -> None:
    """Lets requests to an engine choose among adapters.

    Raises:
        AxcoreError: One corrects layers that have no room; it says which adapter that is.
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
            "the run trained no adapters but a whole model",
            where=where,
            hint=f"serve it by itself: axcore serve {folder}",
        )
    adapted, served = (compared(base_config(one)) for one in (own, cfg))
    if changes := diff_config(adapted, served):
        raise ConfigError(
            "the adapters are of another model (-: that one, +: the one that is served)\n"
            + format_diff(changes).rstrip(),
            where=where,
            hint="serve the model that they were trained from",
        )
    check_base_is_unchanged(
        run.opened_config.init_from,
        own,
        where=where,
        hint=f"serve the run by itself: axcore serve {folder}",
    )
    return adapter_from(own, RunArrays.of(run, None))
