"""`AdapterSlots`: makes room for many adapters in the linear layers of a model that serves."""

from typing import Any

from axcore.config import PositiveInt, config, find_config, update_config
from axcore.config.paths import matches, parse_pattern
from axcore.layers import BatchedLoRALinear, Linear
from axcore.modifiers.quantization import FULL_PRECISION
from axcore.plugins import Hardware

HAVE_NONE = (*FULL_PRECISION, "**.expert.**")
"""What has no room for adapters by default. An expert's rows are of many texts."""


@config
class AdapterSlots:
    """Puts a `BatchedLoRALinear` around every `Linear`, but for those excluded.

    Args:
        num_adapters: How many there is room for at once.
        rank: The largest rank.
        exclude: Globs of the paths of layers that have none.
    """

    num_adapters: PositiveInt = 4
    rank: PositiveInt = 16
    exclude: tuple[str, ...] = HAVE_NONE

    def apply(self, cfg: Any, hardware: Hardware | None = None) -> Any:
        """Return `cfg` with room for adapters."""
        globs = [parse_pattern(glob) for glob in self.exclude]
        return update_config(
            cfg,
            {
                found.path: BatchedLoRALinear.Config(
                    base=found.node, num_adapters=self.num_adapters, rank=self.rank
                )
                for found in find_config(cfg, Linear)
                if type(found.node) is Linear.Config
                if not any(matches(glob, parse_pattern(found.path)) for glob in globs)
            },
        )
