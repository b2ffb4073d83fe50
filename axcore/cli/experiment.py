"""Finding an experiment: by name, or in a config file."""

from pathlib import Path
from typing import Any

from axcore.config import apply_overrides, from_json, from_yaml, name_the_known
from axcore.errors import ConfigError
from axcore.plugins import Experiment, Hardware, plugin_host, with_changes

_READERS = {".json": from_json, ".yaml": from_yaml, ".yml": from_yaml}


def load_experiment(
    name: str,
    overrides: tuple[str, ...] = (),
    *,
    changes: tuple[str, ...] = (),
    hardware: Hardware | None = None,
) -> Any:
    """Returns the config of a named experiment or a config file, changed as asked.

    Args:
        name: Of an experiment, or a config file.
        overrides: `PATH=VALUE` texts, applied last.
        changes: Names of modifiers, layer variants, data sources and tokenizers.
        hardware: What modifiers are told to change it for.

    Raises:
        ConfigError: There is no such experiment or file, or a change does not fit. What an
            experiment's own module raises comes out as it is.
        PluginError: There is no change of that name.
    """
    return apply_overrides(with_changes(_load(name), changes, hardware), overrides)


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
