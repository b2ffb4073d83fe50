"""The arrays of a flash attention call as its kernels take them, and which blocks a visit reads.

Heads lead tokens, so that a block is whole tiles. What is per token is in rows `[B, 1, T]`: as
columns it would take a vector of lanes for every token in memory. Numbers that are read one by one
are in scalar memory.

Letters: B batch, T queries, S keys, N query heads, K key heads, G query heads of a key head, H key
width, V value width, Q queries and J keys of a block, P visits.
"""

from typing import Any, NamedTuple

import attrs
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from axcore.ops import AttentionInputs, AttentionSpec, finite_lse
from axl_tpu.kernels.attention.block import LEAST_ID, LOG2E, column
from axl_tpu.kernels.attention.block_schedule import LANES, Blocking, key_block, query_block
from axl_tpu.kernels.attention.block_sizes import LEAST_VMEM, step_bytes


class Operands(NamedTuple):
    """A call's arrays, or in a kernel their blocks; a part that is not used is None.

    In scalar memory are `offset` `[B]`, `sinks` `[N]` and `seeds` `[B, N]`. Backward kernels read
    `lse`, times `LOG2E` and 0 for rows that see nothing, and `delta`, `sum(do * o) - dlse`.
    """

    q: Any
    k: Any
    v: Any
    q_segments: Any = None
    k_segments: Any = None
    k_start: Any = None
    k_end: Any = None
    offset: Any = None
    sinks: Any = None
    seeds: Any = None
    do: Any = None
    lse: Any = None
    delta: Any = None

    @classmethod
    def of(cls, inputs: AttentionInputs) -> "Operands":
        """Returns the operands of the forward pass."""
        k_segments = inputs.k_segments_BS
        if k_segments is not None:
            k_segments = jnp.where(k_segments == 0, LEAST_ID, k_segments.astype(jnp.int32))
        return cls(
            q=heads_first(inputs.q_BTNH),
            k=heads_first(inputs.k_BSKH),
            v=heads_first(inputs.v_BSKV),
            q_segments=_row(inputs.q_segments_BT),
            k_segments=_row(k_segments),
            k_start=_row(inputs.k_start_BT),
            k_end=_row(inputs.k_end_BT),
            offset=_int32(inputs.query_offset_B),
            sinks=None if inputs.sinks_N is None else inputs.sinks_N.astype(jnp.float32),
            seeds=inputs.dropout_seeds_BN,
        )

    def with_gradients(self, do_BTNV: Array, lse_BTN: Array, delta_BTN: Array) -> "Operands":
        """Returns the operands of the backward pass."""
        return self._replace(
            sinks=None,
            do=heads_first(do_BTNV.astype(self.q.dtype)),
            lse=_row_of_heads(finite_lse(lse_BTN) * LOG2E),
            delta=_row_of_heads(delta_BTN),
        )

    def offset_of(self, b: Array, spec: AttentionSpec) -> Array | int:
        """Returns the place of a row's first query on the key axis; in a kernel."""
        return spec.query_offset if self.offset is None else self.offset[b] + spec.query_offset


def heads_first(x_BTNH: Array) -> Array:
    """Returns `x_BNTH` from `x_BTNH`, or the other way round."""
    return jnp.swapaxes(x_BTNH, 1, 2)


def _row(x_BT: Array | None) -> Array | None:
    return None if x_BT is None else x_BT.astype(jnp.int32)[:, None, :]


def _row_of_heads(x_BTN: Array) -> Array:
    return jnp.swapaxes(x_BTN, 1, 2)[:, :, None, :]


def _int32(x: Array | None) -> Array | None:
    return None if x is None else x.astype(jnp.int32)


@attrs.frozen
class BlockSpecs:
    """Which blocks of which array a step of the grid reads and writes.

    The grid is `(B, N, P)`; by keys `(B, K, P, G)`, or where heads are outer `(B, K, G, P)`.
    """

    operands: Operands
    cut: Blocking
    by_keys: bool
    heads_are_outer: bool = False

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.operands.q.shape[1] // self.operands.k.shape[1]

    def vmem_bytes(self) -> int:
        """Returns how much VMEM a kernel of these blocks may take."""
        q, k, v = self.operands[:3]
        block = self.cut.queries.size, self.cut.keys.size
        needed = step_bytes(block, (k.shape[-1], v.shape[-1]), q.dtype.itemsize)
        return max(LEAST_VMEM, needed)

    def inputs(self) -> Operands:
        """Returns the specs of all operands that there are."""
        row = pl.BlockSpec(
            (None, 1, self.cut.queries.size), self._at(lambda b, n, k, i, j: (b, 0, i))
        )
        key_row = pl.BlockSpec(
            (None, 1, self.cut.keys.size), self._at(lambda b, n, k, i, j: (b, 0, j))
        )
        scalars = pl.BlockSpec(memory_space=pltpu.SMEM)
        specs = Operands(
            q=self.queries(self.operands.q.shape[-1]),
            k=self.keys(self.operands.k.shape[-1]),
            v=self.keys(self.operands.v.shape[-1]),
            q_segments=row,
            k_segments=key_row,
            k_start=row,
            k_end=row,
            offset=scalars,
            sinks=scalars,
            seeds=scalars,
            do=self.queries(self.operands.v.shape[-1]),
            lse=self.query_row(),
            delta=self.query_row(),
        )
        used = zip(specs, self.operands, strict=True)
        return Operands(*(None if array is None else spec for spec, array in used))

    def queries(self, width: int) -> Any:
        """Returns the spec of `[B, N, T, width]`."""
        at = self._at(lambda b, n, k, i, j: (b, n, i, 0))
        return pl.BlockSpec((None, None, self.cut.queries.size, width), at)

    def query_row(self) -> Any:
        """Returns the spec of `[B, N, 1, T]`."""
        at = self._at(lambda b, n, k, i, j: (b, n, 0, i))
        return pl.BlockSpec((None, None, 1, self.cut.queries.size), at)

    def keys(self, width: int) -> Any:
        """Returns the spec of `[B, K, S, width]`."""
        at = self._at(lambda b, n, k, i, j: (b, k, j, 0))
        return pl.BlockSpec((None, None, self.cut.keys.size, width), at)

    def all_queries(self) -> Any:
        """Returns the spec of `[B, N, T, H]` in blocks of a whole head."""
        at = self._at(lambda b, n, k, i, j: (b, n, 0, 0))
        return pl.BlockSpec(
            (None, None, *self.operands.q.shape[2:]), at, pipeline_mode=pl.Buffered(1)
        )

    def all_keys(self, array: Array) -> Any:
        """Returns the spec of `[B, K, S, width]` in blocks of a whole head."""
        at = self._at(lambda b, n, k, i, j: (b, k, 0, 0))
        return pl.BlockSpec((None, None, *array.shape[2:]), at, pipeline_mode=pl.Buffered(1))

    def _at(self, place: Any) -> Any:
        group = self.group

        def by_queries(b: Array, n: Array, p: Array, codes: Any) -> Any:
            code = code_of(codes, b, p)
            k = n if group == 1 else lax.div(n, jnp.int32(group))
            return place(b, n, k, query_block(code), key_block(code))

        def by_keys(b: Array, k: Array, p: Array, g: Array, codes: Any) -> Any:
            code = code_of(codes, b, p)
            return place(b, k * group + g, k, query_block(code), key_block(code))

        def heads_outer(b: Array, k: Array, g: Array, p: Array, codes: Any) -> Any:
            return by_keys(b, k, p, g, codes)

        if self.heads_are_outer:
            return heads_outer
        return by_keys if self.by_keys else by_queries


def code_of(codes: Any, b: Array, p: Array) -> Array:
    """Returns a visit of a row; rows whose visits are equal share one list."""
    code: Array = codes[b if codes.shape[0] > 1 else 0, p]
    return code


class Columns(NamedTuple):
    """What is per query, as columns `[Q, LANES]` in VMEM; None for what is not used."""

    q_segments: Any = None
    k_start: Any = None
    k_end: Any = None
    lse: Any = None
    delta: Any = None

    @classmethod
    def scratch(cls, operands: Operands, size: int) -> "Columns":
        """Returns the scratch that a kernel keeps its columns in."""

        def shape(rows: Array | None) -> Any:
            return None if rows is None else pltpu.VMEM((size, LANES), rows.dtype)

        return cls(*(shape(getattr(operands, name)) for name in cls._fields))

    def fill(self, rows: Operands) -> None:
        """Turns the rows of a query block into columns; in a kernel."""
        for name, kept in self._asdict().items():
            if kept is not None:
                kept[...] = column(getattr(rows, name)[...])
