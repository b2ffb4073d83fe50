"""The arrays of a flash attention call as its kernels take them, and which blocks a visit reads.

Heads are laid out so that a block is full tiles (`Heads`). What is per token is in rows `[B, 1,
T]`: as columns it would take a vector of lanes for every token in memory. Numbers that are read one
by one are in scalar memory.

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


@attrs.frozen
class Heads:
    """How the heads of an array `[B, T, N, H]` are laid out where kernels read and write them.

    Heads of full registers stay side by side, `[B, T, N * H]`, as products before and after
    attention make and take them, so that nothing is copied. Others lead tokens, `[B, N, T, H]`.
    """

    num: int
    width: int

    @property
    def are_side_by_side(self) -> bool:
        """Whether a head's blocks are full tiles as they are."""
        return self.width % LANES == 0

    def lay(self, x_BTNH: Array) -> Array:
        """Return an array as kernels take it."""
        return x_BTNH.reshape(*x_BTNH.shape[:2], -1) if self.are_side_by_side else swap(x_BTNH)

    def lift(self, x: Array) -> Array:
        """Return `x_BTNH` from an array that a kernel wrote."""
        return x.reshape(*x.shape[:2], self.num, -1) if self.are_side_by_side else swap(x)

    def shape(self, batch: int, length: int) -> tuple[int, ...]:
        """Return the shape of such an array."""
        if self.are_side_by_side:
            return batch, length, self.num * self.width
        return batch, self.num, length, self.width

    def block(self, size: int) -> tuple[int | None, ...]:
        """Return the shape of one head's block."""
        return (None, *(() if self.are_side_by_side else (None,)), size, self.width)

    def place(self, b: Array, n: Array, i: Array | int) -> tuple[Array | int, ...]:
        """Return where a head's block is, counted in blocks."""
        return (b, i, n) if self.are_side_by_side else (b, n, i, 0)


class Layout(NamedTuple):
    """How the heads of a call's arrays are laid out."""

    q: Heads
    k: Heads
    v: Heads
    o: Heads

    @classmethod
    def of(cls, inputs: AttentionInputs) -> "Layout":
        """Return the layout of a call."""
        q, k, v = (Heads(*x.shape[2:]) for x in (inputs.q_BTNH, inputs.k_BSKH, inputs.v_BSKV))
        return cls(q=q, k=k, v=v, o=Heads(q.num, v.width))


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
        """Return the operands of the forward pass."""
        layout, k_segments = Layout.of(inputs), inputs.k_segments_BS
        if k_segments is not None:
            # Padding among keys equals no query's segment, so kernels compare once and need no
            # test for 0. A query of padding then sees nothing.
            k_segments = jnp.where(k_segments == 0, LEAST_ID, k_segments.astype(jnp.int32))
        return cls(
            q=layout.q.lay(inputs.q_BTNH),
            k=layout.k.lay(inputs.k_BSKH),
            v=layout.v.lay(inputs.v_BSKV),
            q_segments=_row(inputs.q_segments_BT),
            k_segments=_row(k_segments),
            k_start=_row(inputs.k_start_BT),
            k_end=_row(inputs.k_end_BT),
            offset=_int32(inputs.query_offset_B),
            sinks=None if inputs.sinks_N is None else inputs.sinks_N.astype(jnp.float32),
            seeds=inputs.dropout_seeds_BN,
        )

    def with_gradients(self, do_BTNV: Array, lse_BTN: Array, delta_BTN: Array) -> "Operands":
        """Return the operands of the backward pass."""
        return self._replace(
            # Backward needs no sink: the log-sum-exp holds it, and its gradient is made outside.
            sinks=None,
            do=Heads(*do_BTNV.shape[2:]).lay(do_BTNV.astype(self.q.dtype)),
            lse=_row_of_heads(finite_lse(lse_BTN) * LOG2E),
            delta=_row_of_heads(delta_BTN),
        )

    def offset_of(self, b: Array, spec: AttentionSpec) -> Array | int:
        """Return the place of a row's first query on the key axis; in a kernel."""
        return spec.query_offset if self.offset is None else self.offset[b] + spec.query_offset


def swap(x_BTNH: Array) -> Array:
    """Return `x_BNTH` from `x_BTNH`, or the other way round."""
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
    layout: Layout
    cut: Blocking
    by_keys: bool
    heads_are_outer: bool = False

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.layout.q.num // self.layout.k.num

    def vmem_bytes(self) -> int:
        """Return how much VMEM a kernel of these blocks may take."""
        block = self.cut.queries.size, self.cut.keys.size
        widths = self.layout.k.width, self.layout.v.width
        # No more than is needed: XLA keeps in VMEM what kernels do not reserve.
        needed = step_bytes(block, widths, self.operands.q.dtype.itemsize)
        return max(LEAST_VMEM, needed)

    def inputs(self) -> Operands:
        """Return the specs of all operands that there are."""
        row = pl.BlockSpec(
            (None, 1, self.cut.queries.size), self._at(lambda b, n, k, i, j: (b, 0, i))
        )
        key_row = pl.BlockSpec(
            (None, 1, self.cut.keys.size), self._at(lambda b, n, k, i, j: (b, 0, j))
        )
        scalars = pl.BlockSpec(memory_space=pltpu.SMEM)
        specs = Operands(
            q=self.queries(self.layout.q),
            k=self.keys(self.layout.k),
            v=self.keys(self.layout.v),
            q_segments=row,
            k_segments=key_row,
            k_start=row,
            k_end=row,
            offset=scalars,
            sinks=scalars,
            seeds=scalars,
            do=self.queries(self.layout.o),
            lse=self.query_row(),
            delta=self.query_row(),
        )
        used = zip(specs, self.operands, strict=True)
        return Operands(*(None if array is None else spec for spec, array in used))

    def queries(self, heads: Heads) -> Any:
        """Return the spec of an array per query."""
        at = self._at(lambda b, n, k, i, j: heads.place(b, n, i))
        return pl.BlockSpec(heads.block(self.cut.queries.size), at)

    def query_row(self) -> Any:
        """Return the spec of `[B, N, 1, T]`."""
        at = self._at(lambda b, n, k, i, j: (b, n, 0, i))
        return pl.BlockSpec((None, None, 1, self.cut.queries.size), at)

    def keys(self, heads: Heads) -> Any:
        """Return the spec of an array per key."""
        at = self._at(lambda b, n, k, i, j: heads.place(b, k, j))
        return pl.BlockSpec(heads.block(self.cut.keys.size), at)

    def all_queries(self, heads: Heads) -> Any:
        """Return the spec of an array per query in blocks of a full head."""
        at = self._at(lambda b, n, k, i, j: heads.place(b, n, 0))
        # One buffer: the block changes once a head, so that there is little to overlap, and a
        # second one would take as much VMEM again.
        block = heads.block(self.cut.queries.length)
        return pl.BlockSpec(block, at, pipeline_mode=pl.Buffered(1))

    def all_keys(self, heads: Heads) -> Any:
        """Return the spec of an array per key in blocks of a full head."""
        at = self._at(lambda b, n, k, i, j: heads.place(b, k, 0))
        block = heads.block(self.cut.keys.length)
        return pl.BlockSpec(block, at, pipeline_mode=pl.Buffered(1))

    def _at(self, place: Any) -> Any:
        group = self.group

        def by_queries(b: Array, n: Array, p: Array, codes: Any) -> Any:
            code = code_of(codes, b, p)
            # Query heads of a group read the same key block, which is not copied again while its
            # index stays.
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
    """Return a visit of a row; rows whose visits are equal share one list."""
    # One list for all rows where only causality and windows hide: scalar memory is small.
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
        """Return the scratch that a kernel keeps its columns in."""

        def shape(rows: Array | None) -> Any:
            return None if rows is None else pltpu.VMEM((size, LANES), rows.dtype)

        return cls(*(shape(getattr(operands, name)) for name in cls._fields))

    def fill(self, rows: Operands) -> None:
        """Turn the rows of a query block into columns; in a kernel."""
        for name, kept in self._asdict().items():
            if kept is not None:
                kept[...] = column(getattr(rows, name)[...])
