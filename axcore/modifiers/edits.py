"""Edits of any config tree, as modifiers: what `axcore.config` does by function, here by value."""

from collections.abc import Mapping
from typing import Any

from axcore.config import (
    REQUIRED,
    config,
    config_class,
    evolve,
    is_config,
    replace_config,
    update_config,
)
from axcore.modifiers.named import apply_modifier, with_changes
from axcore.plugins import Hardware


@config
class UpdateConfig:
    """Set values by path or glob.

    Args:
        changes: `{"model.decoder.stack.num_layers": 12, "**.dropout.rate": 0.1}`.
    """

    changes: Mapping[str, Any] = REQUIRED

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return `cfg` with the values set.

        Raises:
            ConfigError: A path or glob matches nothing, or a value does not fit.
        """
        return update_config(cfg, self.changes)


@config
class ReplaceConfig:
    """Put another config in the place of every one of a class.

    Args:
        target: The class whose configs go, as text: `axcore.layers:FeedForward`.
        new: What comes, a config or the text of a class; what it leaves open is taken from the
            config that goes.
        values: Fields of `new`.
        at: Glob that the path of what goes must match.
    """

    target: str = REQUIRED
    new: Any = REQUIRED
    values: Mapping[str, Any] = {}
    at: str = "**"

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return `cfg` with the configs replaced.

        Raises:
            ConfigError: A text names no class of configs, or there is nothing to replace.
        """
        new = self.new if is_config(self.new) else config_class(self.new)()
        return replace_config(
            cfg, config_class(self.target), evolve(new, **self.values), at=self.at
        )


@config
class Named:
    """Make a change that goes by a name, as `--modify` does.

    Args:
        change: `sliding_window` or `remat(policy=minimal)`.
    """

    change: str = REQUIRED

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return `cfg` with the change made.

        Raises:
            PluginError: Nobody brings a change of that name.
            ConfigError: The text is none, or there is nothing to change.
        """
        return with_changes(cfg, (self.change,), hardware)


@config
class Chain:
    """Apply modifiers in order.

    Args:
        modifiers: Each must change something.
    """

    modifiers: tuple[Any, ...] = REQUIRED

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return `cfg` changed by all of them.

        Raises:
            ConfigError: One changes nothing.
        """
        for index, modifier in enumerate(self.modifiers):
            cfg = apply_modifier(cfg, modifier, hardware, where=f"Chain.modifiers[{index}]")
        return cfg


@config
class Kernels:
    """Pin kernels, and let portable ones serve where those for the hardware cannot.

    Args:
        pins: Kernel by op; a pin that the config has already for another op stays.
        allow: Names of portable kernels, in addition to those that are allowed already.
    """

    pins: Mapping[str, str] = {}
    allow: tuple[str, ...] = ()

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return a trainer's config with these pins and names."""
        return update_config(
            cfg,
            {
                "kernels.pins": {**cfg.kernels.pins, **self.pins},
                "kernels.allow": tuple(dict.fromkeys((*cfg.kernels.allow, *self.allow))),
            },
        )
