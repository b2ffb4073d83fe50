"""An experiment as a command line asks for it: with changes, overrides and hardware."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from axcore.config import apply_overrides
from axcore.experiments.named import experiment
from axcore.modifiers import with_changes
from axcore.plugins import Hardware

if TYPE_CHECKING:
    from axcore.trainer import ResolvedConfig


def load_experiment(
    name: str, overrides: Sequence[str] = (), *, changes: Sequence[str] = ()
) -> Any:
    """Returns the config of a named experiment or a config file, changed as asked.

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
    """Returns a named experiment or a config file, changed as asked and resolved for hardware.

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
    """Returns the config as asked for, resolved where there is a target. Starts no device.

    Raises:
        As `load_experiment`, and as `axcore.trainer.resolve`.
    """
    if target is None:
        return load_experiment(experiment, overrides, changes=changes)
    hardware = Hardware.parse(target)
    return load_resolved(experiment, overrides, changes=changes, hardware=hardware).config
