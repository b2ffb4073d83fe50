"""How a batch and its arrays are laid out over devices and time; no number changes."""

from collections.abc import Mapping
from typing import Any

from axcore.config import REQUIRED, config, evolve
from axcore.plugins import Hardware


@config
class MeshShape:
    """Arranges the devices in another mesh.

    Args:
        mesh: Size by mesh axis; one may be -1 and takes the devices that are left.
    """

    mesh: Mapping[str, int] = REQUIRED

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Returns a trainer's config with this mesh."""
        return evolve(cfg, mesh=self.mesh)


@config
class Accumulate:
    """Runs every batch in more parts, one after the other: less memory, the same result.

    Args:
        factor: How many parts each part of now becomes.
    """

    factor: int = 2

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Returns a trainer's config with `factor` times as many micro-batches."""
        return evolve(cfg, num_micro_batches=cfg.num_micro_batches * self.factor)
