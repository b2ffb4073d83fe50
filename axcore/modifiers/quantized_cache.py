"""`QuantizedCaches`: a serving model keeps keys and values in 8 bits."""

from typing import Any, Literal

from axcore.config import config, replace_config
from axcore.layers import KeyStore, QuantizedStore
from axcore.plugins import Hardware


@config
class QuantizedCaches:
    """Keeps keys and values of every attention in `dtype`, whatever cache holds them.

    Args:
        dtype: Of what is kept.
    """

    dtype: Literal["int8", "float8_e4m3fn"] = "int8"

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Returns `cfg` with other stores where a model serves; training is as it was.

        Raises:
            ConfigError: Nothing keeps keys and values as they are.
        """
        return replace_config(cfg, KeyStore, QuantizedStore.Config(dtype=self.dtype))
