"""`HalfCaches`: a serving model keeps keys and values in 16 bits."""

from typing import Any, Literal

from axcore.config import config, replace_config
from axcore.layers import HalfStore, KeyStore
from axcore.plugins import Hardware


@config
class HalfCaches:
    """Keeps keys and values of every attention in `dtype`, whatever computes them and keeps them.

    Args:
        dtype: Of what is kept; see `HalfStore`.
    """

    dtype: Literal["float16", "bfloat16"] = "float16"

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Returns `cfg` with narrower stores where a model serves; training is as it was.

        Raises:
            ConfigError: Nothing keeps keys and values as they are.
        """
        return replace_config(cfg, KeyStore, HalfStore.Config(dtype=self.dtype))
