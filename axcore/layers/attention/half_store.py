"""`HalfStore`: keys and values in 16 bits, whatever they are computed in."""

from typing import Literal

from axcore.config import config
from axcore.layers.attention.key_store import KeyStore, key_room


class HalfStore(KeyStore):
    """Keeps keys and values in 16 bits; the op that reads them widens them.

    `float16` keeps a number to within 1/2048 of itself, and makes one beyond 65504 infinite;
    `bfloat16` keeps any to within 1/256. Slot protocol: the parent fills all fields but `dtype`.
    """

    @config
    class Config(KeyStore.Config):
        """Describes a `HalfStore`; the fields of `KeyStore` besides.

        Args:
            dtype: Of what is kept.
        """

        dtype: Literal["float16", "bfloat16"] = "float16"

    def setup(self, cfg: Config) -> None:  # type: ignore[override]
        """Declares the room."""
        self.keys = key_room(cfg, (cfg.head_dim,), cfg.dtype)
        if cfg.value_dim is not None:
            self.values = key_room(cfg, (cfg.value_dim,), cfg.dtype)
