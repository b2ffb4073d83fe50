"""`Kernels`: says which kernels serve, and which may."""

from collections.abc import Mapping
from typing import Any

from axcore.config import config, update_config
from axcore.plugins import Hardware


@config
class Kernels:
    """Pins kernels, and lets portable ones serve where those for the hardware cannot.

    Args:
        pins: Kernel by op; a pin that the config has already for another op stays.
        allow: Names of portable kernels, besides those that are allowed already.
    """

    pins: Mapping[str, str] = {}
    allow: tuple[str, ...] = ()

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Returns a trainer's config with these pins and names."""
        return update_config(
            cfg,
            {
                "kernels.pins": {**cfg.kernels.pins, **self.pins},
                "kernels.allow": tuple(dict.fromkeys((*cfg.kernels.allow, *self.allow))),
            },
        )
