"""Test cases of attention: one for each of its options, and all of them together.

Shapes are odd and small, so that blocks are padded and tests are quick.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from axcore.ops.attention.mask import dropout_seeds
from axcore.ops.attention.op import ATTENTION_OP, AttentionInputs, AttentionSpec
from axcore.ops.contract import (
    HEAD_DIM,
    HEADS,
    KEY_HEADS,
    ROWS,
    TOKENS,
    backward_call,
    case_numbers,
    spec_array,
    traced_call,
)
from axcore.ops.dispatch import Call


@attrs.frozen(kw_only=True)
class AttentionTestCase:
    """A recipe for a call: sizes, static choices, and the optional arrays that it has."""

    name: str
    batch: int = 2
    queries: int = 37
    keys: int = 37
    heads: int = 4
    key_heads: int = 2
    width: int = 16
    value_width: int = 16
    spec: Mapping[str, Any] = attrs.field(factory=dict)
    parts: tuple[str, ...] = ()

    def make(self, dtype: DTypeLike = jnp.float32) -> tuple[AttentionInputs, AttentionSpec]:
        """Return the call; equal each time."""
        numbers = case_numbers(self.name)

        def normal(*shape: int) -> Array:
            return jnp.asarray(numbers.standard_normal(shape, np.float32).astype(dtype))

        inputs = AttentionInputs(
            normal(self.batch, self.queries, self.heads, self.width),
            normal(self.batch, self.keys, self.key_heads, self.width),
            normal(self.batch, self.keys, self.key_heads, self.value_width),
        )
        for part in self.parts:
            inputs = inputs._replace(**_PARTS[part](self, normal))
        return inputs, AttentionSpec(**{"scale": self.width**-0.5, **self.spec})


_Part = Callable[[AttentionTestCase, Callable[..., Array]], dict[str, Array]]


def _segments(case: AttentionTestCase, _: Callable[..., Array]) -> dict[str, Array]:
    """Three documents of uneven length, other cuts in each row, then padding."""
    row = np.arange(case.batch)[:, None]
    q, k = (_documents(length, row) for length in (case.queries, case.keys))
    return {"q_segments_BT": jnp.asarray(q), "k_segments_BS": jnp.asarray(k)}


def _lonely_segments(case: AttentionTestCase, _: Callable[..., Array]) -> dict[str, Array]:
    """Documents of which one has queries and no keys."""
    segments = _segments(case, _)
    q = segments["q_segments_BT"]
    return {**segments, "q_segments_BT": jnp.where(q == 2, 9, q)}


def _documents(length: int, row: np.ndarray) -> np.ndarray:
    place = np.arange(length)[None, :] + row * (length // 7)
    ids = 1 + (place > length // 3) + (place > length // 2)
    return np.where(np.arange(length)[None, :] >= length - 3, 0, ids).astype(np.int32)


def _ranges(case: AttentionTestCase, _: Callable[..., Array]) -> dict[str, Array]:
    """A range that moves with the query; every fifth is empty."""
    place = np.arange(case.queries)[None, :] + np.arange(case.batch)[:, None]
    start = np.minimum(place // 2, case.keys)
    end = np.where(place % 5 == 4, start, np.minimum(start + 9, case.keys))
    return {"k_start_BT": jnp.asarray(start), "k_end_BT": jnp.asarray(end)}


def _bias(case: AttentionTestCase, normal: Callable[..., Array]) -> dict[str, Array]:
    return {"bias_BNTS": normal(1, case.heads, case.queries, case.keys)}


def _row_bias(case: AttentionTestCase, normal: Callable[..., Array]) -> dict[str, Array]:
    return {"bias_BNTS": normal(case.batch, 1, 1, case.keys)}


def _sinks(case: AttentionTestCase, normal: Callable[..., Array]) -> dict[str, Array]:
    return {"sinks_N": normal(case.heads)}


def _offset(case: AttentionTestCase, _: Callable[..., Array]) -> dict[str, Array]:
    return {"query_offset_B": jnp.asarray(np.arange(case.batch, dtype=np.int32) * 7)}


def _seeds(case: AttentionTestCase, _: Callable[..., Array]) -> dict[str, Array]:
    return {"dropout_seeds_BN": dropout_seeds(jnp.uint32(11), case.batch, case.heads)}


_PARTS: Mapping[str, _Part] = {
    "segments": _segments,
    "lonely_segments": _lonely_segments,
    "ranges": _ranges,
    "bias": _bias,
    "row_bias": _row_bias,
    "sinks": _sinks,
    "offset": _offset,
    "dropout": _seeds,
}

ATTENTION_TEST_CASES = (
    AttentionTestCase(name="plain"),
    AttentionTestCase(name="causal", spec={"right": 0}),
    AttentionTestCase(name="one_query", queries=1, keys=50),
    AttentionTestCase(name="more_keys", keys=53, spec={"right": 0, "query_offset": 16}),
    AttentionTestCase(name="more_queries", queries=53, spec={"right": 0, "query_offset": -10}),
    AttentionTestCase(name="one_head_each", key_heads=4),
    AttentionTestCase(name="one_key_head", key_heads=1),
    AttentionTestCase(name="width_64", width=64, value_width=64, spec={"right": 0}),
    AttentionTestCase(name="width_80", width=80, value_width=80, spec={"right": 0}),
    AttentionTestCase(name="width_128", width=128, value_width=128, spec={"right": 0}),
    AttentionTestCase(name="width_256", width=256, value_width=256, spec={"right": 0}),
    AttentionTestCase(name="value_width", width=24, value_width=8, spec={"right": 0}),
    AttentionTestCase(name="window", spec={"left": 5, "right": 3}),
    AttentionTestCase(name="causal_window", spec={"left": 7, "right": 0}),
    AttentionTestCase(name="segments", parts=("segments",), spec={"right": 0}),
    AttentionTestCase(
        name="whole_tiles",
        batch=1,
        queries=128,
        keys=128,
        key_heads=4,
        parts=("segments",),
        spec={"right": 0},
    ),
    AttentionTestCase(name="lonely_segments", parts=("lonely_segments",), spec={"right": 0}),
    AttentionTestCase(name="ranges", parts=("ranges",)),
    AttentionTestCase(name="soft_cap", spec={"soft_cap": 2.0, "right": 0}),
    AttentionTestCase(name="bias", parts=("bias",)),
    AttentionTestCase(name="row_bias", parts=("row_bias",), spec={"right": 0}),
    AttentionTestCase(name="sinks", parts=("sinks", "ranges")),
    AttentionTestCase(name="offset", parts=("offset",), keys=53, spec={"right": 0}),
    AttentionTestCase(name="dropout", parts=("dropout",), spec={"dropout_rate": 0.3, "right": 0}),
    AttentionTestCase(
        name="everything",
        keys=53,
        value_width=8,
        parts=("segments", "ranges", "bias", "sinks", "offset", "dropout"),
        spec={"left": 30, "right": 2, "soft_cap": 3.0, "dropout_rate": 0.2, "query_offset": 4},
    ),
)


def arg_spec() -> Call:
    """Return causal attention over packed documents, with grouped heads."""

    def call() -> Call:
        keys = spec_array(ROWS, TOKENS, KEY_HEADS, HEAD_DIM)
        segments = spec_array(ROWS, TOKENS, dtype=jnp.int32)
        queries = spec_array(ROWS, TOKENS, HEADS, HEAD_DIM)
        inputs = AttentionInputs(queries, keys, keys, segments, segments)
        return ATTENTION_OP.call(inputs, AttentionSpec(scale=HEAD_DIM**-0.5, right=0), lse=False)

    return traced_call(call)


def backward_arg_spec() -> Call:
    """Return its gradient."""
    return backward_call(arg_spec())
