"""Experiments by name, configs from files, and both as a command line asks for them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from axcore.config import apply_overrides, from_dict, suggest_names
from axcore.config.json_files import MAX_CHARACTERS, check_length
from axcore.config.serialise import load_json, overlay
from axcore.config.yaml_text import load_yaml
from axcore.errors import ConfigError
from axcore.modifiers import with_changes
from axcore.plugins import Experiment, Hardware, plugin_host

if TYPE_CHECKING:
    from axcore.trainer import ResolvedConfig, Trainer


_READERS = {".json": load_json, ".yaml": load_yaml, ".yml": load_yaml}


def experiment(name: str) -> "Trainer.Config":
    """Return the config of a named experiment, or the one in a JSON or YAML file.

    A file may contain a `base`, the name of an experiment or of a file next to it, and what
    differs.

    Raises:
        ConfigError: There is no such experiment or file, or it is wrong. What an experiment's own
            module raises comes out as it is.
    """
    return _experiment(name, ())


def _experiment(name: str, above: tuple[Path, ...]) -> "Trainer.Config":
    """Return an experiment; `above` are the files that it is the base of."""
    path = Path(name)
    cfg: Trainer.Config
    if path.suffix in _READERS:
        data = read_data(path)
        if not (isinstance(data, dict) and "base" in data):
            cfg = from_dict(data, set_in=str(path))
            return cfg
        base = data.pop("base")
        if not isinstance(base, str):
            raise ConfigError(
                f"base is {base!r:.60}; expected the name of an experiment, or a file",
                where="base",
                set_in=str(path),
                hint="`axcore experiments` lists the names",
            )
        if path.resolve() in above:
            raise ConfigError("the file is its own base", where="base", set_in=str(path))
        if Path(base).suffix in _READERS:
            base = str(path.parent / base)
        return overlay(_experiment(base, (*above, path.resolve())), data, set_in=str(path))
    records = {record.name: record for record in plugin_host().records(Experiment)}
    if name not in records:
        raise ConfigError(
            f"there is no experiment {name!r}; {suggest_names(name, records)}",
            hint="`axcore experiments` lists them; a config file ends in .json or .yaml",
        )
    return config_of(records[name])


def config_of(record: Experiment) -> "Trainer.Config":
    """Return the config of an experiment's record.

    Raises:
        PluginError: Its function returns something else. What it raises comes out as it is.
    """
    from axcore.trainer import Trainer

    cfg: Trainer.Config = record.call("fn", returns=Trainer.Config, expected="a Trainer.Config")
    return cfg


def read_config(path: Path) -> Any:
    """Return the config in a JSON or YAML file.

    Raises:
        ConfigError: The file cannot be read, or is not a config.
    """
    return from_dict(read_data(path), set_in=str(path))


def read_data(path: Path) -> Any:
    """Return the values in a JSON or YAML file.

    Raises:
        ConfigError: The file cannot be read, or is of another kind.
    """
    if path.suffix not in _READERS:
        raise ConfigError(
            f"the file's name ends with {path.suffix!r}",
            where=str(path),
            hint=f"give it a name that ends with one of {', '.join(_READERS)}",
        )
    try:
        text = _read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the config file cannot be read: {error}", where=str(path)) from error
    return _READERS[path.suffix](text, str(path))


def _read_text(path: Path) -> str:
    """Return a file's text; of one that is too long, no more than says so."""
    if path.exists() and not path.is_file():
        raise OSError("it is not a regular file")
    with path.open("rb") as file:
        data = file.read(MAX_CHARACTERS + 1)
    check_length(data, str(path))
    return data.decode("utf-8-sig")


def load_experiment(
    name: str, overrides: Sequence[str] = (), *, changes: Sequence[str] = ()
) -> Any:
    """Return the config of a named experiment or a config file, changed as asked.

    Args:
        name: Of an experiment, or a config file.
        overrides: `PATH=VALUE` texts, applied last.
        changes: `NAME` or `NAME(FIELD=VALUE)` of layer variants, data sources and tokenizers.

    Raises:
        ConfigError: There is no such experiment or file, or a change does not fit; a modifier is
            for some hardware. What an experiment's own module raises comes out as it is.
        PluginError: There is no change of that name.
    """
    from axcore.trainer import with_base_model

    base = with_base_model(experiment(name), overrides)
    return apply_overrides(with_changes(base, changes), overrides)


def load_resolved(
    name: str, overrides: Sequence[str] = (), *, changes: Sequence[str] = (), hardware: Hardware
) -> "ResolvedConfig":
    """Return a named experiment or a config file, changed as asked and resolved for hardware.

    Raises:
        As `load_experiment`, and as `axcore.trainer.resolve`.
    """
    from axcore.trainer import resolve

    return resolve(experiment(name), hardware, modify=changes, overrides=overrides)


def load_config(
    experiment: str,
    overrides: tuple[str, ...],
    target: str | None,
    *,
    changes: tuple[str, ...] = (),
) -> Any:
    """Return the config as asked for, resolved where there is a target. Starts no device.

    Raises:
        As `load_experiment`, and as `axcore.trainer.resolve`.
    """
    if target is None:
        return load_experiment(experiment, overrides, changes=changes)
    hardware = Hardware.parse(target)
    return load_resolved(experiment, overrides, changes=changes, hardware=hardware).config
