"""`LowPrecisionOptimizer`: stores the state of optimizers in fewer bits."""

from typing import Any, Literal

from axcore.config import config, evolve, find_config, update_config
from axcore.errors import ConfigError
from axcore.learner import LowPrecisionState, Optimizer
from axcore.plugins import Hardware


@config
class LowPrecisionOptimizer:
    """Puts a `LowPrecisionState` around every optimizer, those of groups included.

    Args:
        format: How state is stored: `bfloat16`, or `int8_rows`, which is a quarter of float32.
    """

    format: Literal["bfloat16", "int8_rows"] = "int8_rows"

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Returns `cfg` with every optimizer wrapped.

        Raises:
            ConfigError: It holds no optimizer, or one that is wrapped already.
        """
        there = find_config(cfg, LowPrecisionState)
        found = there or find_config(cfg, Optimizer)
        if there or not found:
            raise ConfigError(
                f"{there[0].path} stores its state in {there[0].node.format} already"
                if there
                else f"{type(cfg).__qualname__} holds no optimizer",
                where="LowPrecisionOptimizer",
                hint="apply it once, to a training config",
            )
        wrapped = LowPrecisionState.Config(format=self.format)
        return update_config(cfg, {one.path: evolve(wrapped, optimizer=one.node) for one in found})
