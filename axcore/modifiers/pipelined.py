"""`Pipelined`: layers in stages of a pipeline, in the place of layers under a scan."""

from typing import Any

from axcore.config import config, find_config, replace_config
from axcore.errors import ConfigError
from axcore.plugins import Hardware, Ref

_SCANNED = Ref("axcore.layers:Repeat")
_PIPELINE = Ref("axcore.layers:Pipeline")


@config
class Pipelined:
    """Puts a `Pipeline` in the place of every `Repeat`; the mesh's axis `pipeline` says how many
    stages there are.

    Args:
        num_micro_batches: Parts that a batch passes through the stages in.
        num_rounds: How often each part passes through every stage.
    """

    num_micro_batches: int = 8
    num_rounds: int = 1

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Returns `cfg` with its layers in a pipeline.

        Raises:
            ConfigError: It holds no scanned layers.
        """
        scanned = _SCANNED.resolve()
        if not find_config(cfg, scanned):
            raise ConfigError(
                f"{type(cfg).__qualname__} holds no Repeat to make a pipeline of",
                where="Pipelined",
                mend="put the layers that are alike into a Repeat",
            )
        stack = _PIPELINE.resolve().Config(
            num_micro_batches=self.num_micro_batches, num_rounds=self.num_rounds
        )
        return replace_config(cfg, scanned, stack)
