"""`QuantizedStore`: keys and values in 8 bits, each head of each token with a scale of its own.

Letters of shapes: R rows or pages, S tokens of each, K key heads.
"""

from typing import Any, Literal

from jaxtyping import Array

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers.attention.key_store import Keys, Places, Values, key_room, with_new
from axcore.layers.tokens import TokenInfo
from axcore.module import Module
from axcore.ops import Quantization
from axcore.ops.quantized.quantize import quantized


class QuantizedStore(Module):
    """Keeps keys and values in 8 bits; the op that reads them multiplies them by their scales.

    A number of a head whose largest magnitude is `m` is kept to within `m / 254` in int8, and in
    `float8_e4m3fn` to within 1/16 of itself or `m / 2**17`, whichever is more. Each head of each
    token costs 4 bytes more, of its scale. A token's scale depends on nothing but the token, so
    any split of a text into calls keeps the same. Slot protocol: the parent fills all fields but
    `dtype`.
    """

    @config
    class Config(Module.Config["QuantizedStore"]):
        """Describes a `QuantizedStore`.

        Args:
            num_rows: Rows, or pages.
            row_axis: Logical axis of these.
            num_places: Tokens of each.
            num_kv_heads: Number of key and value heads.
            head_dim: Size of a key.
            value_dim: Size of a value; None where keys are the values, too.
            dtype: Of what is kept.
        """

        num_rows: PositiveInt = REQUIRED
        row_axis: str | None = REQUIRED
        num_places: PositiveInt = REQUIRED
        num_kv_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt = REQUIRED
        value_dim: PositiveInt | None = REQUIRED
        dtype: Literal["int8", "float8_e4m3fn"] = "int8"

    def setup(self, cfg: Config) -> None:
        """Declares the room, and that of the scales."""
        self.keys = key_room(cfg, (cfg.head_dim,), cfg.dtype)
        self.key_scales = key_room(cfg, (), "float32")
        if cfg.value_dim is not None:
            self.values = key_room(cfg, (cfg.value_dim,), cfg.dtype)
            self.value_scales = key_room(cfg, (), "float32")

    def forward(
        self, k: Keys, v: Values, places: Places, info: TokenInfo
    ) -> tuple[Any, Any, TokenInfo]:
        """Returns all that is kept, `[R, S, K, size]`, and the info with the scales `[R, S, K]`."""
        keys, scales = self._with_new("key", k, places)
        if self.config.value_dim is None:
            return keys, keys, info._replace(scales=(scales, scales))
        values, value_scales = self._with_new("value", v, places)
        return keys, values, info._replace(scales=(scales, value_scales))

    def _with_new(self, name: str, new: Array, places: Places) -> tuple[Array, Array]:
        how = Quantization(format=self.config.dtype, per="channel")
        narrow = quantized(new, how, (-1,))
        kept = with_new(getattr(self, f"{name}s"), narrow.values, places)
        scales = with_new(getattr(self, f"{name}_scales"), narrow.scale[..., 0], places)
        self.update(f"{name}s", kept)
        self.update(f"{name}_scales", scales)
        return kept, scales
