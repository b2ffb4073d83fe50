"""The Hopper kernel of decode attention: partial sums over one share of a row's keys.

A thread block is one warp group. It has the queries of all heads that share a key head as the rows
of its products, and goes through the blocks of its share, while those of the next block are on
their way. What it leaves is what `combine` needs: weighted means, and the log-sum-exp.

Keys and values of 8 bits are converted to the dtype of queries in shared memory. Their scales come
after: products are multiplied by those of keys, and weights by those of values.

Letters: B batch rows, K key heads, Z shares of a row, I queries times heads of a key head, filled
up to the 64 rows of a product, J keys of a block, H key width, V value width; M pages of the cache,
C keys of a page, P pages of a row, S keys of a row in full blocks.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import attrs
import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from axl_gpu.kernels.attention.arrays import launch
from axl_gpu.kernels.attention.block import Running, advance, along, finish, logits, start
from axl_gpu.kernels.attention.matmuls import TENSOR_CORES, Matmuls, Ref

# A warp group's product has 64 rows at least, so those of one query head are filled up with
# zeros: memory is what is waited for, and the matrix units are idle in any case.
ROWS = 64
"""Rows of a warp group's product."""

KEYS = 64
"""Keys of a block: as many as a swizzled row of shared memory has."""


class DecodeArrays(NamedTuple):
    """The arrays of a call; in a kernel, references to them in the GPU's memory.

    A row's query `i` sees the keys in `[low, high)`. `blocks_B2` are the first block that any of
    them sees, and the end of those. Keys and values of 8 bits have scales, in the order of a row.
    """

    q_BKIH: Array
    k_MCKH: Array
    v_MCKV: Array
    table_BP: Array
    lengths_B: Array
    blocks_B2: Array
    low_BI: Array
    high_BI: Array
    key_scale_BKS: Array | None
    value_scale_BKS: Array | None

    @property
    def is_narrow(self) -> bool:
        """Whether keys and values have 8 bits, and scales."""
        return self.key_scale_BKS is not None


@attrs.frozen(kw_only=True)
class DecodeChoices:
    """The static choices of the kernel.

    Args:
        scale: Factor on products.
        soft_cap: Caps logits smoothly at this value.
        stages: Blocks that are in shared memory at once.
        copied: Keys that are copied at once: of one page.
        shares: Z.
        out_rows: Rows of I that are more than filling, rounded up to 8.
    """

    scale: float
    soft_cap: float | None
    stages: int
    copied: int
    shares: int
    out_rows: int

    @property
    def num_copies(self) -> int:
        """Copy of a block of keys."""
        return KEYS // self.copied


def partial_sums(
    arrays: DecodeArrays, choices: DecodeChoices, products: Matmuls = TENSOR_CORES
) -> tuple[Array, Array]:
    """Return weighted means `[B, K, Z, out_rows, V]` and log-sum-exps `[B, K, Z, I]`, float32.

    Args:
        arrays: Of the call.
        choices: Static.
        products: The instructions that multiply.
    """
    batch, key_heads, _, _ = arrays.q_BKIH.shape
    shape = (batch, key_heads, choices.shares)
    outputs = (
        jax.ShapeDtypeStruct((*shape, choices.out_rows, arrays.v_MCKV.shape[3]), jnp.float32),
        jax.ShapeDtypeStruct((*shape, ROWS), jnp.float32),
    )
    kernel = launch(
        partial(_body, choices=choices, products=products),
        outputs,
        name="decode_attention",
        grid={"share": choices.shares, "head": key_heads, "batch": batch},
        scratch=_scratch(arrays, choices),
        interpreter=products.interpreter,
    )
    o, lse = kernel(arrays)
    return o, lse


def _scratch(arrays: DecodeArrays, choices: DecodeChoices) -> dict[str, Any]:
    dtype, width, value_width = arrays.q_BKIH.dtype, arrays.q_BKIH.shape[3], arrays.v_MCKV.shape[3]
    kept, stages = arrays.k_MCKH.dtype, choices.stages
    numbers = plgpu.SMEM((ROWS,), jnp.int32)
    # One for each page that a block of keys is of, and one for its scales.
    copies = choices.num_copies + arrays.is_narrow
    blocks = plgpu.Barrier(num_arrivals=copies, num_barriers=stages)
    of_8_bits = {
        # One place for keys and values in turn: with one each, two thread blocks would not fit a
        # processor.
        "wide": plgpu.SMEM((KEYS, max(width, value_width)), dtype),
        "k_scale": plgpu.SMEM((stages, KEYS), jnp.float32),
        "v_scale": plgpu.SMEM((stages, KEYS), jnp.float32),
    }
    return {
        "q": plgpu.SMEM((ROWS, width), dtype),
        "low": numbers,
        "high": numbers,
        "k": plgpu.SMEM((stages, KEYS, width), kept),
        "v": plgpu.SMEM((stages, KEYS, value_width), kept),
        # Float32, as shares are only added up outside.
        "o": plgpu.SMEM((ROWS, value_width), jnp.float32),
        "lse": plgpu.SMEM((ROWS,), jnp.float32),
        "own_arrived": plgpu.Barrier(num_arrivals=3),
        "k_arrived": blocks,
        "v_arrived": blocks,
        **(of_8_bits if arrays.is_narrow else {}),
    }


def _body(
    arrays: DecodeArrays,
    o_BKZRV: Ref,
    lse_BKZI: Ref,
    *,
    choices: DecodeChoices,
    products: Matmuls,
    **scratch: Any,
) -> None:
    batch, head, share = (lax.axis_index(name) for name in ("batch", "head", "share"))
    length = arrays.lengths_B[batch]
    first, end = arrays.blocks_B2[batch, 0], arrays.blocks_B2[batch, 1]
    # Shares of the blocks that this row's queries see, not of the cache: rows differ in length,
    # and every share should last about as long. Some shares of short rows have no block; they
    # leave zeros and -inf.
    own = lax.div(end - first + choices.shares - 1, choices.shares)
    first = first + share * own
    end = jnp.minimum(end, first + own)
    cache = _Cache(arrays, choices, products, scratch, batch, head)

    # Keys are on their way before the queries are asked for. No warp group only fetches here: two
    # small thread blocks on a processor hide each other's waits, and keep all registers.
    for stage in range(choices.stages):

        @pl.when(first + stage < end)
        def _(stage: int = stage) -> None:
            cache.fetch(first + stage, stage)

    _fetch_own(arrays, scratch, batch, head)
    q, v_width = scratch["q"], scratch["v"].shape[2]

    def step(block: Array, carry: tuple[Array, Running]) -> tuple[Array, Running]:
        weighted_IV, running = carry
        slot = lax.rem(block - first, choices.stages)
        k = cache.arrived("k", slot)
        found_IJ = cache.scaled(products.transposed(q, k), "k", slot)
        found_IJ = logits(found_IJ, scale=choices.scale, soft_cap=choices.soft_cap)
        # Every block is masked, unlike in flash attention: a thread block goes through few of
        # them.
        new = advance(running, _seen(found_IJ, block * KEYS, scratch))
        v = cache.arrived("v", slot)
        # Keys behind the end need none of this: their logits are replaced, whatever they are.
        cache.hide_what_is_not_there(v, block, length)
        shrunk_IV = weighted_IV * along(new.decay_I, weighted_IV.shape, 0)
        weights_IJ = cache.scaled(new.exponentials_IJ, "v", slot)
        weighted_IV = products.added(shrunk_IV, weights_IJ.astype(v.dtype), v)
        plgpu.commit_smem()  # every warp is done with the slot

        @pl.when(block + choices.stages < end)
        def _() -> None:
            cache.fetch(block + choices.stages, slot)

        return weighted_IV, new.running

    nothing_IV = jnp.zeros((ROWS, v_width), jnp.float32)
    weighted_IV, running = lax.fori_loop(first, end, step, (nothing_IV, start(ROWS)))
    finished = finish(running, jnp.float32(-jnp.inf))
    scratch["o"][...] = weighted_IV * along(finished.factor_I, weighted_IV.shape, 0)
    scratch["lse"][...] = finished.lse_I
    plgpu.commit_smem()
    rows = pl.ds(0, choices.out_rows)
    plgpu.copy_smem_to_gmem(scratch["o"].at[rows], o_BKZRV.at[batch, head, share])
    plgpu.copy_smem_to_gmem(scratch["lse"], lse_BKZI.at[batch, head, share])
    plgpu.wait_smem_to_gmem(0)


def _fetch_own(arrays: DecodeArrays, scratch: dict[str, Any], batch: Array, head: Array) -> None:
    """Wait until the queries, and what they see, are in shared memory."""
    for source, target in (
        (arrays.q_BKIH.at[batch, head], scratch["q"]),
        (arrays.low_BI.at[batch], scratch["low"]),
        (arrays.high_BI.at[batch], scratch["high"]),
    ):
        plgpu.copy_gmem_to_smem(source, target, scratch["own_arrived"])
    plgpu.barrier_wait(scratch["own_arrived"])


def _seen(logits_IJ: Array, first: Array, scratch: dict[str, Any]) -> Array:
    """Return the logits of a block with -inf where a query does not see a key."""
    shape = logits_IJ.shape
    key = lax.broadcasted_iota(jnp.int32, shape, 1) + first
    low, high = (along(scratch[name][...], shape, 0) for name in ("low", "high"))
    return jnp.where((key >= low) & (key < high), logits_IJ, -jnp.inf)


@attrs.frozen(eq=False)
class _Cache:
    """A row's blocks of one key head, in memory and on their way to the chip."""

    arrays: DecodeArrays
    choices: DecodeChoices
    products: Matmuls
    scratch: dict[str, Any]
    batch: Array
    head: Array

    def fetch(self, block: Array, slot: Array | int) -> None:
        """Begin the copies of a block.

        Of pages behind the row's last one that one is copied. Copies may reach beyond the end of a
        contiguous cache.
        """
        arrays, copied = self.arrays, self.choices.copied
        for scale, name in ((arrays.key_scale_BKS, "k"), (arrays.value_scale_BKS, "v")):
            if scale is not None:
                plgpu.copy_gmem_to_smem(
                    scale.at[self.batch, self.head, pl.ds(block * KEYS, KEYS)],
                    self.scratch[f"{name}_scale"].at[slot],
                    self.scratch[f"{name}_arrived"].at[slot],
                )
        page_size = arrays.k_MCKH.shape[1]
        last_page = lax.div(jnp.maximum(arrays.lengths_B[self.batch] - 1, 0), page_size)
        for copy in range(self.choices.num_copies):
            key = block * KEYS + copy * copied
            # A row's table contains any number behind its last page, and copying from there could
            # leave the pool.
            page = jnp.minimum(lax.div(key, page_size), last_page)
            # The division changes no number. By it the compiler sees that copies begin at whole
            # tiles, which it refuses to take on trust.
            begin = lax.div(lax.rem(key, page_size), copied) * copied  # full tiles, provably
            source = (arrays.table_BP[self.batch, page], pl.ds(begin, copied), self.head)
            target = (slot, pl.ds(copy * copied, copied))
            for pool, name in ((arrays.k_MCKH, "k"), (arrays.v_MCKV, "v")):
                plgpu.copy_gmem_to_smem(
                    pool.at[source],
                    self.scratch[name].at[target],
                    self.scratch[f"{name}_arrived"].at[slot],
                )

    def arrived(self, name: str, slot: Array) -> Ref:
        """Wait for a block's keys or values, and return them in the dtype of queries.

        Those of 8 bits are converted into one place, where the next ones replace them.
        """
        plgpu.barrier_wait(self.scratch[f"{name}_arrived"].at[slot])
        kept = self.scratch[name].at[slot]
        if not self.arrays.is_narrow:
            return kept
        plgpu.commit_smem()  # every warp is done with what was there
        wide = self.scratch["wide"].at[:, pl.ds(0, kept.shape[1])]
        for columns in _parts(kept):
            narrow = kept[columns]
            # The layout in which a thread's four numbers of 8 bits become those that it stores in
            # 16, without an exchange between threads.
            if not self.products.interpreter:  # which has no layouts; a thread loads four at once
                narrow = plgpu.layout_cast(narrow, plgpu.Layout.WGMMA_UPCAST_2X)
            wide[columns] = _as(narrow, wide.dtype)
        plgpu.commit_smem()
        return wide

    def scaled(self, x_IJ: Array, name: str, slot: Array) -> Array:
        """Return numbers of each key times its scale, where there are scales."""
        if not self.arrays.is_narrow:
            return x_IJ
        return x_IJ * along(self.scratch[f"{name}_scale"].at[slot][...], x_IJ.shape, 1)

    def hide_what_is_not_there(self, v: Ref, block: Array, length: Array) -> None:
        """Write zeros over values behind the row's length: a weight of 0 hides no NaN."""

        @pl.when((block + 1) * KEYS > length)
        def _() -> None:
            for columns in _parts(v):
                values = v[columns]
                key = lax.broadcasted_iota(jnp.int32, values.shape, 0) + block * KEYS
                v[columns] = jnp.where(key < length, values, jnp.zeros_like(values))
            plgpu.commit_smem()


def _parts(x: Ref) -> Iterator[Any]:
    """Return the columns of a block in parts, of which registers hold one at a time."""
    # Heads of 256 at once would spill.
    width = math.gcd(x.shape[1], 128)
    for first in range(0, x.shape[1], width):
        yield slice(None), pl.ds(first, width)


def _as(x: Array, dtype: Any) -> Array:
    """Return numbers of 8 bits in another dtype: float8 by way of float32, as Hoppers must."""
    return x.astype(dtype) if x.dtype == jnp.int8 else x.astype(jnp.float32).astype(dtype)
