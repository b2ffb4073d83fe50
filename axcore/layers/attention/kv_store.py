"""The arrays in which a KV cache keeps keys and values, and how they are written.

A cache decides which row and place a token has; the store, in which form it is kept there. Where
that is not the form that keys are computed in, the info that it returns says how to read it.

Letters of shapes: R rows or pages, S tokens of each, K key heads.
"""

from typing import Any, Literal, NamedTuple

from jaxtyping import Array, Int, Num

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers.tokens import TokenInfo
from axcore.module import Module, Param
from axcore.ops import Quantization
from axcore.ops.quantized.quantize import quantized

Keys = Num[Array, "batch time kv_heads head_dim"]
Values = Num[Array, "batch time kv_heads value_dim"]


class Places(NamedTuple):
    """Where a call's tokens are kept; what is out of range is dropped.

    Args:
        rows: Row or page of each token.
        places: Place of each token there.
    """

    rows: Int[Array, "batch #time"]
    places: Int[Array, "batch time"]


class KVStore(Module):
    """Keys and values in the dtype that they are computed in.

    Slot protocol: the parent fills all fields.
    """

    @config
    class Config(Module.Config["KVStore"]):
        """The config of a `KVStore`.

        Args:
            num_rows: Rows, or pages.
            row_axis: Logical axis of these.
            num_places: Tokens of each.
            num_kv_heads: Number of key and value heads.
            head_dim: Size of a key.
            value_dim: Size of a value; None where keys are the values, too.
        """

        num_rows: PositiveInt = REQUIRED
        row_axis: str | None = REQUIRED
        num_places: PositiveInt = REQUIRED
        num_kv_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt = REQUIRED
        value_dim: PositiveInt | None = REQUIRED

    def setup(self, cfg: Config) -> None:
        """Declare the arrays."""
        self.keys = _cache_array(cfg, (cfg.head_dim,), self.dtypes.compute)
        if cfg.value_dim is not None:
            self.values = _cache_array(cfg, (cfg.value_dim,), self.dtypes.compute)

    def forward(
        self, k: Keys, v: Values, places: Places, info: TokenInfo
    ) -> tuple[Any, Any, TokenInfo]:
        """Return all that is kept, `[R, S, K, size]`, the new ones among it, and the info."""
        keys = _write(self.keys, k, places)
        self.update("keys", keys)
        if self.config.value_dim is None:
            return keys, keys, info
        values = _write(self.values, v, places)
        self.update("values", values)
        return keys, values, info


class IntegerStore(Module):
    """One integer for each token, whatever format keys and values have.

    Slot protocol: the parent fills all fields.
    """

    @config
    class Config(Module.Config["IntegerStore"]):
        """The config of an `IntegerStore`; its fields are those of `KVStore`."""

        num_rows: PositiveInt = REQUIRED
        row_axis: str | None = REQUIRED
        num_places: PositiveInt = REQUIRED
        num_kv_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt = REQUIRED
        value_dim: PositiveInt | None = REQUIRED

    def setup(self, cfg: Config) -> None:
        """Declare the array; its one head is not split where heads are."""
        self.numbers = Param(
            (cfg.num_rows, cfg.num_places, cfg.num_kv_heads, cfg.head_dim),
            axes=(cfg.row_axis, None, None, None),
            init=0.0,
            is_buffer=True,
            dtype="int32",
        )

    def forward(
        self, k: Keys, v: Values, places: Places, info: TokenInfo
    ) -> tuple[Any, Any, TokenInfo]:
        """Return all numbers, `[R, S, 1, 1]`, the new ones among them, twice, and the info."""
        numbers = _write(self.numbers, k, places)
        self.update("numbers", numbers)
        return numbers, numbers, info


def _cache_array(cfg: Any, size: tuple[int, ...], dtype: str | None) -> Any:
    """Return the declaration of an array with an item for each head of each token.

    Args:
        cfg: Of the store.
        size: Of an item.
        dtype: Of the array.
    """
    return Param(
        (cfg.num_rows, cfg.num_places, cfg.num_kv_heads, *size),
        axes=(cfg.row_axis, None, "kv_heads", *(None for _ in size)),
        init=0.0,
        is_buffer=True,
        dtype=dtype,
    )


def _write(held: Array, new: Array, places: Places) -> Array:
    """Return an array `[R, S, ...]` with new items `[batch, time, ...]` in their places."""
    # Places out of range are dropped: so padding, and tokens of rows without a page, write nothing.
    at = held.at[places.rows, places.places]
    kept: Array = at.set(new.astype(held.dtype), mode="drop", wrap_negative_indices=False)
    return kept


class HalfPrecisionKVStore(KVStore):
    """Keys and values in 16 bits; the op that reads them converts them.

    `float16` keeps a number to within 1/2048 of itself, and makes one beyond 65504 infinite;
    `bfloat16` keeps any to within 1/256. Slot protocol: the parent fills all fields but `dtype`.
    """

    @config
    class Config(KVStore.Config):
        """The config of a `HalfPrecisionKVStore`; it adds to the fields of `KVStore`.

        Args:
            dtype: Of what is kept.
        """

        dtype: Literal["float16", "bfloat16"] = "float16"

    def setup(self, cfg: Config) -> None:  # type: ignore[override]
        """Declare the arrays."""
        self.keys = _cache_array(cfg, (cfg.head_dim,), cfg.dtype)
        if cfg.value_dim is not None:
            self.values = _cache_array(cfg, (cfg.value_dim,), cfg.dtype)


class QuantizedKVStore(Module):
    """Keys and values in 8 bits; the op that reads them multiplies them by their scales.

    A number of a head whose largest magnitude is `m` is kept to within `m / 254` in int8, and in
    `float8_e4m3fn` to within 1/16 of itself or `m / 2**17`, whichever is more. Each head of each
    token costs 4 bytes more, of its scale. A token's scale depends on nothing but the token, so
    any split of a text into calls keeps the same. Slot protocol: the parent fills all fields but
    `dtype`.
    """

    @config
    class Config(Module.Config["QuantizedKVStore"]):
        """The config of a `QuantizedKVStore`.

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
        """Declare the arrays and their scales."""
        self.keys = _cache_array(cfg, (cfg.head_dim,), cfg.dtype)
        self.key_scales = _cache_array(cfg, (), "float32")
        if cfg.value_dim is not None:
            self.values = _cache_array(cfg, (cfg.value_dim,), cfg.dtype)
            self.value_scales = _cache_array(cfg, (), "float32")

    def forward(
        self, k: Keys, v: Values, places: Places, info: TokenInfo
    ) -> tuple[Any, Any, TokenInfo]:
        """Return all that is kept, `[R, S, K, size]`, and the info with the scales `[R, S, K]`."""
        keys, scales = self._write_quantized("key", k, places)
        if self.config.value_dim is None:
            return keys, keys, info._replace(scales=(scales, scales))
        values, value_scales = self._write_quantized("value", v, places)
        return keys, values, info._replace(scales=(scales, value_scales))

    def _write_quantized(self, name: str, new: Array, places: Places) -> tuple[Array, Array]:
        how = Quantization(format=self.config.dtype, per="channel")
        # A scale for each head of each token, and not for a page: a page is filled by several
        # calls, and a larger number in a later one would change those that are kept.
        narrow = quantized(new, how, (-1,))
        kept = _write(getattr(self, f"{name}s"), narrow.values, places)
        scales = _write(getattr(self, f"{name}_scales"), narrow.scale[..., 0], places)
        self.update(f"{name}s", kept)
        self.update(f"{name}_scales", scales)
        return kept, scales
