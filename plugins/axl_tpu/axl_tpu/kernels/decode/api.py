"""Decode attention on TPU by a Pallas kernel: of the cache only what a row's queries see is read.

A step of the grid is a row. It goes through the blocks of the row's cache that its queries see;
while one is computed the next is copied. All query heads are multiplied by the keys of all key
heads and pairs of heads that do not belong together are masked: so keys stay as they are stored in
    memory,
and the matrix unit, which waits for the memory anyway, has few and large products.

Letters: B batch rows, T queries of a row, N query heads, K key heads, H key width, V value width,
R = T N rows of queries, M pages of the cache, C keys of a page, P pages of a row, X = keys of a
block times K.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from axcore.ops import (
    BlockSizeTable,
    Call,
    DecodeInputs,
    DecodeSpec,
    choose_block_sizes,
    moved_bytes_scope,
    power_of_two,
)
from axcore.plugins import Hardware
from axl_tpu.kernels.decode.block import (
    NARROW_TILE,
    TILE,
    Block,
    BlockFacts,
    CacheBlocking,
    Sums,
    quotient,
    remainder,
)

DTYPES = ("bfloat16", "float32")
QUANTIZED_DTYPES = ("int8", "float8_e4m3fn")
MAX_QUERY_ROWS = 512
MAX_WIDTH = 512
MAX_KEY_HEADS = 64
MAX_PAGES = 2**17
"""Entries of the page table, which is held in scalar memory."""


@attrs.frozen
class DecodeBlockSizes:
    """How the cache is cut.

    Args:
        block_rows: Keys of a block times key heads, about.
    """

    block_rows: int


VMEM = 9 * 2**20
"""Bytes that a block's keys and values, twice, with copies in float32, and its logits may take."""


def _default(call: Call, hardware: Hardware) -> DecodeBlockSizes:
    _, queries, heads, width = call.shape("q")
    itemsize = 2 if call.dtype("q") == "bfloat16" else 4
    # Two copies of a block in its own dtype and one in float32; logits, exponentials, mask and
    # weights.
    of_a_row = (width + call.shape("v")[-1]) * (2 * itemsize + 4) + queries * heads * 4 * 4
    fitting = (rows for rows in (2048, 1024, 512, 256) if rows * of_a_row <= VMEM)
    return DecodeBlockSizes(block_rows=next(fitting, 128))


def _candidates(call: Call, hardware: Hardware) -> Iterator[DecodeBlockSizes]:
    largest = _default(call, hardware).block_rows
    return (DecodeBlockSizes(block_rows=largest // parts) for parts in (1, 2, 4))


BLOCK_SIZES = BlockSizeTable(
    kernel="decode_attention/tpu_decode_attention",
    package=__package__,
    default=_default,
    candidates=_candidates,
    bucket=lambda call: {
        "width": call.shape("q")[-1],
        "queries": power_of_two(call.shape("q")[1] * call.shape("q")[2] // call.shape("k")[2]),
        "dtype": call.dtype("q"),
    },
)


def unsupported_reason(call: Call) -> str | None:
    """Return None where the kernel can serve the call, else the reason why not."""
    batch, queries, heads, _ = call.shape("q")
    if call.dtype("q") not in DTYPES:
        return f"takes bfloat16 and float32, not {call.dtype('q')}"
    if call.has("key_scale") and call.dtype("k") not in QUANTIZED_DTYPES:
        return f"takes scales of int8 and float8_e4m3fn, not of {call.dtype('k')}"
    if 0 in (*call.shape("q"), *call.shape("k"), *call.shape("v")):
        return f"takes no empty array, not q {call.shape('q')} and v {call.shape('v')}"
    if queries * heads > MAX_QUERY_ROWS:
        return f"takes up to {MAX_QUERY_ROWS} queries times heads, not {queries} times {heads}"
    for name in ("k", "v"):
        if call.shape(name)[-1] > MAX_WIDTH:
            return f"takes widths of {name} up to {MAX_WIDTH}, not {call.shape(name)[-1]}"
    if call.shape("k")[2] > MAX_KEY_HEADS:
        return f"takes up to {MAX_KEY_HEADS} key heads, not {call.shape('k')[2]}"
    if call.has("page_table") and batch * call.shape("page_table")[1] > MAX_PAGES:
        return f"takes page tables of up to {MAX_PAGES}, not {call.shape('page_table')}"
    if not call.has("key_scale") and call.dtype("k") != call.dtype("q"):
        return f"takes keys of the queries' dtype, not {call.dtype('q')} and {call.dtype('k')}"
    return None


def tpu_decode_attention(
    inputs: DecodeInputs, spec: DecodeSpec, *, interpret: Any = False
) -> Array:
    """Return `o_BTNV`; sums and exponentials are float32.

    Reads what of the cache the queries of a row see, in full pages or blocks, and no other page.
    A width of 128 or 256 and key heads that are a power of two are read as they are stored; others,
    and pages that do not fill full tiles of memory, may be copied to another layout first. Keys and
    values of 8 bits are converted a block at a time; all their scales are copied first.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: The call's static choices.
        interpret: Runs the kernel by an interpreter, on any device.
    """
    arrays = {"q": inputs.q_BTNH, "k": inputs.k, "v": inputs.v}
    block_sizes = choose_block_sizes(BLOCK_SIZES, Call.of("decode_attention", arrays, {}))
    batch, queries, heads, width = inputs.q_BTNH.shape
    page, key_heads, value_width = inputs.k.shape[1], inputs.k.shape[2], inputs.v.shape[-1]
    table_BP = _pages_of_rows(inputs)
    cut = CacheBlocking.of(
        page,
        table_BP.shape[1],
        key_heads,
        max(1, block_sizes.block_rows // key_heads),
        TILE if inputs.key_scale_MCK is None else NARROW_TILE,
    )
    facts = BlockFacts(
        queries=queries,
        heads=heads,
        key_heads=key_heads,
        cut=cut,
        spec=spec,
    )
    rows = queries * heads
    block_rows = cut.keys * key_heads
    by_row = lambda b, *_: (b, 0, 0)  # noqa: E731
    sinks = [] if inputs.sinks_N is None else [_sinks(inputs.sinks_N, queries)]
    scales = _scales_of_blocks(inputs, table_BP, cut)
    with moved_bytes_scope(_moved_bytes(inputs, table_BP)):
        o_BRV: Array = pl.pallas_call(
            partial(_kernel, facts=facts, num_pages=table_BP.shape[1], num_scales=len(scales)),
            out_shape=jax.ShapeDtypeStruct((batch, rows, value_width), inputs.q_BTNH.dtype),
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=2,
                grid=(batch,),
                in_specs=[
                    pl.BlockSpec((None, rows, width), by_row),
                    # The cache stays in memory: which of its blocks are read, and how many, is
                    # known only when the row's length and pages are.
                    *[pl.BlockSpec(memory_space=pl.ANY)] * (2 + len(scales)),
                    *[pl.BlockSpec((rows, 1), lambda b, *_: (0, 0))] * len(sinks),
                ],
                out_specs=pl.BlockSpec((None, rows, value_width), by_row),
                scratch_shapes=[
                    pltpu.VMEM((2, block_rows, width), inputs.k.dtype),
                    pltpu.VMEM((2, block_rows, value_width), inputs.v.dtype),
                    *[pltpu.VMEM((2, 1, block_rows), jnp.float32)] * len(scales),
                    pltpu.SemaphoreType.DMA((2, 2 + len(scales))),
                ],
            ),
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
            interpret=interpret,
            name="tpu_decode_attention",
        )(
            # A length beyond the capacity would lead copies past the row's pages.
            jnp.minimum(inputs.lengths_B.astype(jnp.int32), inputs.capacity),
            table_BP.reshape(-1),
            inputs.q_BTNH.reshape(batch, rows, width),
            _heads_in_rows(inputs.k, cut),
            _heads_in_rows(inputs.v, cut),
            *scales,
            *sinks,
        )
    return o_BRV.reshape(batch, queries, heads, value_width)


def _moved_bytes(inputs: DecodeInputs, table_BP: Array) -> int:
    """Return the bytes of all pages that rows have, with queries and results."""
    _, page, heads, width = inputs.k.shape
    token = width * inputs.k.dtype.itemsize + inputs.v.shape[-1] * inputs.v.dtype.itemsize
    queries = inputs.q_BTNH
    made = queries.size // queries.shape[-1] * inputs.v.shape[-1] * queries.dtype.itemsize
    return table_BP.size * page * heads * token + queries.nbytes + made


def _pages_of_rows(inputs: DecodeInputs) -> Array:
    if inputs.page_table_BP is None:
        return jnp.arange(inputs.k.shape[0], dtype=jnp.int32)[:, None]
    # Unused entries hold anything, and a copy from outside of the pool is a fault.
    return jnp.clip(inputs.page_table_BP.astype(jnp.int32), 0, inputs.k.shape[0] - 1)


def _heads_in_rows(pool_MCKH: Array, cut: CacheBlocking) -> Array:
    """Return the cache as `[M, C K, H]`, its pages filled up to full tiles."""
    num_pages, page, _, width = pool_MCKH.shape
    if cut.padded > page:
        pool_MCKH = jnp.pad(pool_MCKH, ((0, 0), (0, cut.padded - page), (0, 0), (0, 0)))
    return pool_MCKH.reshape(num_pages, -1, width)


def _scales_of_blocks(
    inputs: DecodeInputs, table_BP: Array, cut: CacheBlocking
) -> tuple[Array, ...]:
    """Return the scales of each block of each row's keys and values, `[B, blocks, 1, X]` each.

    A page's scales are not a full tile of memory, so they are put in the order of blocks before.
    What is behind a row's tokens is 0: a weight of 0 hides no NaN.
    """
    if inputs.key_scale_MCK is None or inputs.value_scale_MCK is None:
        return ()
    pages = table_BP.shape[1]
    block = np.arange(-(-pages // cut.pages) * cut.parts)[:, None]
    key = np.arange(cut.keys)[None, :]
    page_JX = np.minimum(block // cut.parts * cut.pages + key // cut.size, pages - 1)
    start = np.minimum(block % cut.parts * cut.size, cut.padded - cut.size)
    # A static order, but for the pages: gathered once by XLA, where a copy for each page and head
    # would be a few bytes.
    place_JX = np.minimum(start + key % cut.size, cut.page - 1)
    position_JX = jnp.asarray(page_JX * cut.page + place_JX, jnp.int32)
    is_there_BJX = position_JX[None] < inputs.lengths_B.astype(jnp.int32)[:, None, None]
    entry_BJX = table_BP[:, page_JX]

    def in_blocks(scale_MCK: Array) -> Array:
        scale_BJXK = jnp.where(is_there_BJX[..., None], scale_MCK[entry_BJX, place_JX], 0.0)
        return scale_BJXK.reshape(*scale_BJXK.shape[:2], 1, -1)

    return in_blocks(inputs.key_scale_MCK), in_blocks(inputs.value_scale_MCK)


def _sinks(sinks_N: Array, queries: int) -> Array:
    return jnp.tile(sinks_N.astype(jnp.float32), queries)[:, None]


def _kernel(
    lengths_ref: Any,
    table_ref: Any,
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    *refs: Any,
    facts: BlockFacts,
    num_pages: int,
    num_scales: int,
) -> None:
    scale_refs, refs = refs[:num_scales], refs[num_scales:]
    sinks_ref, (o_ref, k_buffer, v_buffer, *buffers, semaphores) = (
        refs[: -4 - num_scales],
        refs[-4 - num_scales :],
    )
    row = pl.program_id(0)
    length = lengths_ref[row]
    seen = facts.seen(length)
    first, end = facts.blocks(seen)
    copies = _Copies(
        table_ref,
        row * num_pages,
        (k_ref, v_ref),
        (k_buffer, v_buffer),
        tuple(scales.at[row] for scales in scale_refs),
        tuple(buffers),
        semaphores,
        facts,
        seen,
    )

    @pl.when(first < end)
    def _() -> None:
        copies.start(first)

    def step(j: Array, sums: Sums) -> Sums:
        @pl.when(j + 1 < end)
        def _() -> None:
            # Before the wait, so that the copy runs while this block is computed.
            copies.start(j + 1)

        copies.wait(j)
        slot = remainder(j, 2)
        scales = tuple(buffer.at[slot] for buffer in buffers)
        block = Block(q_ref, k_buffer.at[slot], v_buffer.at[slot], scales, facts)
        return block.added_to(sums, j, length, is_edge=(j == first) | (j == end - 1))

    start = Sums.start(o_ref.shape, sinks_ref[0][...] if sinks_ref else None)
    sums = lax.fori_loop(first, end, step, start)
    o_ref[...] = sums.mean().astype(o_ref.dtype)


@attrs.frozen(eq=False)
class _Copies:
    """Copies of a row's blocks of keys and of values, each into one of two places in turn."""

    table_ref: Any
    first_entry: Any
    pools: tuple[Any, Any]
    buffers: tuple[Any, Any]
    scales: tuple[Any, ...]
    scale_buffers: tuple[Any, ...]
    semaphores: Any
    facts: BlockFacts
    seen: tuple[Any, Any]

    def start(self, block: Any) -> None:
        self._each(block, lambda copy: copy.start())

    def wait(self, block: Any) -> None:
        self._each(block, lambda copy: copy.wait())

    def _each(self, block: Any, act: Any) -> None:
        """Acts on the copies of a block: of its pages those alone that hold a key that is seen."""
        cut, heads, slot = self.facts.cut, self.facts.key_heads, remainder(block, 2)
        for one, (scale, buffer) in enumerate(zip(self.scales, self.scale_buffers, strict=True)):
            semaphore = self.semaphores.at[slot, 2 + one]
            act(pltpu.make_async_copy(scale.at[block], buffer.at[slot], semaphore))
        page0 = cut.first_page(block)
        size = cut.size * heads
        tile = NARROW_TILE if self.scales else TILE
        # The compiler cannot derive it from the cut, and refuses copies that begin within a tile.
        start = pl.multiple_of(cut.start(block) * heads, tile)

        def of_page(page: Any, _: None) -> None:
            entry = self.table_ref[self.first_entry + page]
            place = pl.multiple_of((page - page0) * size, tile)
            for one, (pool, buffer) in enumerate(zip(self.pools, self.buffers, strict=True)):
                source = pool.at[entry, pl.ds(start, size)]
                target = buffer.at[slot, pl.ds(place, size)]
                # One semaphore for all pages of a block: each wait takes its own copy's bytes off
                # it, so the same loop must run for starting and for waiting.
                act(pltpu.make_async_copy(source, target, self.semaphores.at[slot, one]))

        low, high = self.seen
        first = jnp.maximum(page0, quotient(low, cut.page))
        end = jnp.minimum(page0 + cut.pages, quotient(high + cut.page - 1, cut.page))
        lax.fori_loop(first, end, of_page, None)
