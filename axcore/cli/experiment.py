"""Finding an experiment: by name, or in a config file."""

from pathlib import Path
from typing import Any

from axcore.config import apply_overrides, from_json, from_yaml, name_the_known
from axcore.errors import ConfigError, PluginError
from axcore.plugins import Experiment, Hardware, Modifier, find_change, plugin_host, with_changes

_READERS = {".json": from_json, ".yaml": from_yaml, ".yml": from_yaml}


def load_experiment(
    name: str,
    overrides: tuple[str, ...] = (),
    *,
    changes: tuple[str, ...] = (),
    hardware: Hardware | None = None,
) -> Any:
    """Returns the config of a named experiment or a config file, changed as asked.

    What the user asks for comes last, so that no mesh rule undoes it: layer variants and data
    first, then the mesh rule, then modifiers, then overrides.

    Args:
        name: Of an experiment, or a config file.
        overrides: `PATH=VALUE` texts, applied last.
        changes: `NAME` or `NAME(FIELD=VALUE)` of modifiers, layer variants, data sources and
            tokenizers.
        hardware: Whose mesh rule is applied, and what modifiers are told of; None applies none.

    Raises:
        ConfigError: There is no such experiment or file, or a change does not fit. What an
            experiment's own module raises comes out as it is.
        PluginError: There is no change of that name, or no mesh rule for the hardware.
    """
    return load_for_hardware(name, overrides, changes=changes, hardware=hardware)[0]


def load_for_hardware(
    name: str,
    overrides: tuple[str, ...] = (),
    *,
    changes: tuple[str, ...] = (),
    hardware: Hardware | None = None,
) -> tuple[Any, str]:
    """Returns what `load_experiment` does, and as a diff what the mesh rule changed."""
    modifiers = [one for one in changes if isinstance(find_change(one), Modifier)]
    others = [one for one in changes if one not in modifiers]
    cfg, from_rule = with_changes(_load(name), others), ""
    if hardware is not None:
        cfg, from_rule = _laid_out(cfg, hardware, has_mesh=_set_mesh(overrides))
    return apply_overrides(with_changes(cfg, modifiers, hardware), overrides), from_rule


def _laid_out(cfg: Any, hardware: Hardware, *, has_mesh: bool) -> tuple[Any, str]:
    """Returns what the mesh rule makes of a config; a user who sets the mesh needs no rule."""
    from axcore.trainer import for_hardware

    try:
        return for_hardware(cfg, hardware)
    except PluginError:
        if not has_mesh:
            raise
        return cfg, ""


def _set_mesh(overrides: tuple[str, ...]) -> bool:
    return any(text.partition("=")[0].strip() == "mesh" for text in overrides)


def _load(name: str) -> Any:
    path = Path(name)
    if path.suffix in _READERS:
        return read_config(path)
    records = {record.name: record for record in plugin_host().records(Experiment)}
    if name not in records:
        raise ConfigError(
            f"there is no experiment {name!r}; {name_the_known(name, records)}",
            mend="`axcore experiments` lists them; a config file ends in .json or .yaml",
        )
    return records[name].fn.resolve()()


def read_config(path: Path) -> Any:
    """Returns the config in a JSON or YAML file.

    Raises:
        ConfigError: The file cannot be read, or is no config.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the config file cannot be read: {error}", where=str(path)) from error
    return _READERS[path.suffix](text, set_in=str(path))
