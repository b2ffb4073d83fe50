"""Test cases of decode attention: contiguous and paged caches, rows of any length, every choice.

What a cache holds beyond a row's length is NaN, and the page table names no page there is: neither
may be seen.
"""

from collections.abc import Mapping
from typing import Any

import attrs
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from axcore.ops.contract import HEAD_DIM, HEADS, KEY_HEADS, case_numbers, spec_array, traced_call
from axcore.ops.decode_attention.op import DECODE_ATTENTION_OP, DecodeInputs, DecodeSpec
from axcore.ops.dispatch import Call


@attrs.frozen(kw_only=True)
class DecodeTestCase:
    """A recipe for a call: sizes, static choices, and how the cache is kept.

    Args:
        name: Unique among the samples.
        lengths: Tokens of each row.
        capacity: Keys that a row has room for, a multiple of the page size where there are pages.
        page_size: Keys of a page; None for a contiguous cache.
        has_sinks: Whether there are sinks.
        narrow: Dtype of keys and values that are kept in fewer bits, with scales where these are
            8; None where there are none.
        spec: Static choices but for the scale.
    """

    name: str
    lengths: tuple[int, ...] = (37, 5)
    capacity: int = 40
    queries: int = 1
    heads: int = 4
    key_heads: int = 2
    width: int = 16
    value_width: int = 16
    page_size: int | None = None
    has_sinks: bool = False
    narrow: str | None = None
    spec: Mapping[str, Any] = attrs.field(factory=dict)

    def make(self, dtype: DTypeLike = jnp.float32) -> tuple[DecodeInputs, DecodeSpec]:
        """Return the call, equal each time."""
        numbers = case_numbers(self.name)
        batch = len(self.lengths)
        q = numbers.standard_normal((batch, self.queries, self.heads, self.width))
        k, v = (
            numbers.standard_normal((batch, self.capacity, self.key_heads, width))
            for width in (self.width, self.value_width)
        )
        for row, length in enumerate(self.lengths):
            k[row, length:], v[row, length:] = np.nan, np.nan
        table = None
        if self.page_size is not None:
            table, k, v = _in_pages(self.lengths, self.page_size, k, v, numbers)
        sinks = jnp.asarray(numbers.standard_normal(self.heads), dtype) if self.has_sinks else None
        keys, key_scale = self._kept(k, dtype)
        values, value_scale = self._kept(v, dtype)
        inputs = DecodeInputs(
            q_BTNH=jnp.asarray(q, dtype),
            k=keys,
            v=values,
            lengths_B=jnp.asarray(self.lengths, jnp.int32),
            page_table_BP=None if table is None else jnp.asarray(table, jnp.int32),
            sinks_N=sinks,
            key_scale_MCK=key_scale,
            value_scale_MCK=value_scale,
        )
        return inputs, DecodeSpec(**{"scale": self.width**-0.5, **self.spec})

    def _kept(self, x: np.ndarray, dtype: DTypeLike) -> tuple[Array, Array | None]:
        """Return keys or values as they are kept, with their scales."""
        if self.narrow in (None, "float16"):
            return jnp.asarray(x, self.narrow or dtype), None
        scale = np.abs(x).max(axis=-1) / (127.0 if self.narrow == "int8" else 448.0)
        steps = np.nan_to_num(x / scale[..., None])
        kept = np.round(steps) if self.narrow == "int8" else steps
        return jnp.asarray(kept, self.narrow), jnp.asarray(scale, jnp.float32)


def _in_pages(
    lengths: tuple[int, ...],
    page_size: int,
    k: np.ndarray,
    v: np.ndarray,
    numbers: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a page table, and both arrays cut into pages in no order; no row has the last two."""
    batch, capacity = k.shape[:2]
    per_row = capacity // page_size
    place = numbers.permutation(batch * per_row).reshape(batch, per_row)

    def pool(array: np.ndarray) -> np.ndarray:
        pages = np.full((batch * per_row + 2, page_size, *array.shape[2:]), np.nan)
        pages[place] = array.reshape(batch, per_row, page_size, *array.shape[2:])
        return pages

    is_used = np.arange(per_row)[None, :] * page_size < np.asarray(lengths)[:, None]
    return np.where(is_used, place, 10**6), pool(k), pool(v)


DECODE_TEST_CASES = (
    DecodeTestCase(name="plain"),
    DecodeTestCase(name="full_and_empty", lengths=(40, 0, 1)),
    DecodeTestCase(name="several_queries", queries=5, lengths=(37, 5, 3)),
    DecodeTestCase(name="one_head_each", key_heads=4),
    DecodeTestCase(name="one_key_head", key_heads=1),
    DecodeTestCase(name="width_64", width=64, value_width=64),
    DecodeTestCase(name="width_80", width=80, value_width=80),
    DecodeTestCase(name="width_128", width=128, value_width=128),
    DecodeTestCase(name="width_256", width=256, value_width=256),
    DecodeTestCase(name="value_width", width=24, value_width=8),
    DecodeTestCase(name="window", spec={"left": 7}),
    DecodeTestCase(name="soft_cap", spec={"soft_cap": 2.0}),
    DecodeTestCase(name="sinks", lengths=(37, 0), has_sinks=True),
    DecodeTestCase(name="long", lengths=(599, 17, 300), capacity=601),
    DecodeTestCase(name="long_window", lengths=(599, 590), capacity=601, spec={"left": 20}),
    DecodeTestCase(name="paged", page_size=8),
    DecodeTestCase(name="long_paged", lengths=(599, 17), capacity=608, page_size=32),
    DecodeTestCase(name="large_pages", lengths=(599, 17), capacity=1200, page_size=400),
    DecodeTestCase(name="float16", narrow="float16"),
    DecodeTestCase(name="float16_paged", page_size=8, narrow="float16", queries=3),
    DecodeTestCase(name="int8", narrow="int8"),
    DecodeTestCase(name="int8_paged", page_size=8, narrow="int8", queries=3),
    DecodeTestCase(name="float8", page_size=8, narrow="float8_e4m3fn", lengths=(37, 0)),
    DecodeTestCase(
        name="everything",
        queries=3,
        lengths=(599, 17, 0),
        capacity=608,
        value_width=8,
        page_size=32,
        has_sinks=True,
        spec={"left": 300, "soft_cap": 3.0},
    ),
)


def arg_spec() -> Call:
    """Return one new token of each of 32 rows against a cache in pages of 16 keys."""

    def call() -> Call:
        pages = spec_array(32 * 256, 16, KEY_HEADS, HEAD_DIM)
        lengths, table = spec_array(32, dtype=jnp.int32), spec_array(32, 256, dtype=jnp.int32)
        inputs = DecodeInputs(spec_array(32, 1, HEADS, HEAD_DIM), pages, pages, lengths, table)
        return DECODE_ATTENTION_OP.call(inputs, DecodeSpec(scale=HEAD_DIM**-0.5))

    return traced_call(call)
