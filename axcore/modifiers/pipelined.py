"""`Pipelined`: layers in stages of a pipeline, in the place of layers under a scan."""

from typing import Any

from axcore.config import config, find_config, replace_config
from axcore.errors import ConfigError
from axcore.layers import Pipeline, ScannedLayers
from axcore.modifiers.serving import check_nothing_derived
from axcore.plugins import Hardware


@config
class Pipelined:
    """Puts a `Pipeline` in the place of every `ScannedLayers`; the mesh's axis `pipeline` says
    how many stages there are.

    Args:
        num_micro_batches: Parts that a batch passes through the stages in.
        num_rounds: How often each part passes through every stage.
    """

    num_micro_batches: int = 8
    num_rounds: int = 1

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Returns `cfg` with its layers in a pipeline.

        Raises:
            ConfigError: It holds no scanned layers, or some of a class derived from them.
        """
        if not find_config(cfg, ScannedLayers):
            raise ConfigError(
                f"{type(cfg).__qualname__} holds no ScannedLayers to make a pipeline of",
                where="Pipelined",
                hint="put the layers that are alike into a ScannedLayers",
            )
        check_nothing_derived(cfg, ScannedLayers, Pipeline)
        stack = Pipeline.Config(
            num_micro_batches=self.num_micro_batches, num_rounds=self.num_rounds
        )
        return replace_config(cfg, ScannedLayers, stack)
