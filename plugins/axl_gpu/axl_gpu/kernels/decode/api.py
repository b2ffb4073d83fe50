"""Decode attention on Hopper GPUs by a kernel of our own, split over keys (flash-decoding).

At one query a row memory is what is waited for, and one row keeps few processors busy. So the keys
of a row are shared out to as many thread blocks as fill the GPU, and their partial sums are put
together afterwards. Keys and values are read once, from pages or a contiguous cache as they are
stored.

Many queries of a row, a prompt's, go to our flash attention. The keys of each row are put together
from the cache first; compared with that many queries the copy is small.

Letters: B batch rows, T queries of a row, N query heads, K key heads, H key width, V value width;
M pages of the cache, C keys of a page, P pages of a row, S keys of a row in full blocks; Z shares
of a row, I queries times heads of a key head, filled up to 64.

Source: Dao et al. 2023, "Flash-Decoding for long-context inference", the PyTorch blog.
"""

from collections.abc import Callable, Iterator

import attrs
import jax.numpy as jnp
from jax import Array

from axcore.ops import (
    BlockSizeTable,
    Call,
    DecodeInputs,
    DecodeSpec,
    attention_call_of,
    choose_block_sizes,
    decode_as_attention,
    moved_bytes_scope,
    power_of_two,
)
from axcore.plugins import Hardware
from axl_gpu.kernels.attention.api import gpu_flash_attention
from axl_gpu.kernels.attention.api import unsupported_reason as attention_unsupported_reason
from axl_gpu.kernels.attention.block_sizes import PROCESSORS
from axl_gpu.kernels.decode.kernel import (
    KEYS,
    ROWS,
    DecodeArrays,
    DecodeChoices,
    partial_sums,
)

DTYPES = ("bfloat16", "float16")
QUANTIZED_DTYPES = ("int8", "float8_e4m3fn")
WIDTH_STEP = 64
MAX_WIDTH = 256
PAGES = (8, 16, 32)
"""Pages of fewer keys than a block that fill one."""


@attrs.frozen
class DecodeBlockSizes:
    """How the work is cut.

    Args:
        blocks_per_processor: Thread blocks for each processor, about.
        stages: Blocks of keys that a thread block has in shared memory at once.
    """

    blocks_per_processor: int
    stages: int


def _default(call: Call, hardware: Hardware) -> DecodeBlockSizes:
    width = max(call.shape("k")[-1], call.shape("v")[-1])
    # A stage of heads of 256 in 16 bits takes 64 KiB, next to 96 for queries and results. Of heads
    # of 128 two thread blocks of two stages fit a processor, and hide each other's waits.
    is_small = width <= 128 or call.dtype("k") in QUANTIZED_DTYPES
    return DecodeBlockSizes(blocks_per_processor=2, stages=2 if is_small else 1)


def _candidates(call: Call, hardware: Hardware) -> Iterator[DecodeBlockSizes]:
    most = _default(call, hardware).stages
    for stages in range(1, most + 1):
        for blocks in (1, 2, 4):
            yield DecodeBlockSizes(blocks, stages)


BLOCK_SIZES = BlockSizeTable(
    kernel="decode_attention/gpu_decode_attention",
    package=__package__,
    default=_default,
    candidates=_candidates,
    bucket=lambda call: {
        "width": call.shape("q")[-1],
        "rows": power_of_two(call.shape("q")[0] * call.shape("k")[2]),
        "dtype": call.dtype("q"),
        "cache_dtype": call.dtype("k"),
    },
)


def unsupported_reason(call: Call) -> str | None:
    """Return None where the kernel can serve the call, else the reason why not."""
    if call.dtype("q") not in DTYPES:
        return f"takes {' and '.join(DTYPES)}, not {call.dtype('q')}"
    if not call.has("key_scale") and call.dtype("k") != call.dtype("q"):
        return f"takes keys of the queries' dtype, not {call.dtype('q')} and {call.dtype('k')}"
    if call.has("key_scale") and call.dtype("k") not in QUANTIZED_DTYPES:
        return f"takes scales of {' and '.join(QUANTIZED_DTYPES)}, not of {call.dtype('k')}"
    if 0 in (*call.shape("q"), *call.shape("k"), *call.shape("v")):
        return f"takes no empty array, not q {call.shape('q')} and v {call.shape('v')}"
    page, key_heads = call.shape("k")[1:3]
    if _is_prompt(call.shape("q"), key_heads):
        return attention_unsupported_reason(attention_call_of(call))
    for name in ("k", "v"):
        width = call.shape(name)[-1]
        if width % WIDTH_STEP or width > MAX_WIDTH:
            return (
                f"takes widths of {name} that are multiples of {WIDTH_STEP} up to {MAX_WIDTH}, "
                f"not {width}"
            )
    if call.has("page_table"):
        if page % KEYS and page not in PAGES:
            return f"takes pages of 8, 16, 32 and multiples of 64 keys, not {page}"
    elif page < KEYS or page % 8:
        return f"takes a capacity that is a multiple of 8 keys from {KEYS} up, not {page}"
    return None


def _is_prompt(q_shape: tuple[int, ...], key_heads: int) -> bool:
    """Return whether a key head has more queries, times heads, than a product has rows."""
    _, queries, heads, _ = q_shape
    return queries * (heads // key_heads) > ROWS


def gpu_decode_attention(
    inputs: DecodeInputs,
    spec: DecodeSpec,
    *,
    kernel: Callable[..., tuple[Array, Array]] = partial_sums,
    of_prompts: Callable[..., tuple[Array, Array]] = gpu_flash_attention,
) -> Array:
    """Return `o_BTNV`; sums and exponentials are float32.

    In addition to the cache it moves, for each share of a row, `I (V + 1)` numbers in float32
    twice. Keys and values of 8 bits are converted a block at a time; all their scales are copied
    first.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: The call's static choices.
        kernel: The kernel, or what stands in for it where there is no GPU.
        of_prompts: The same for calls of many queries.
    """
    if _is_prompt(inputs.q_BTNH.shape, inputs.k.shape[2]):
        return of_prompts(*decode_as_attention(inputs, spec))[0]
    arrays, choices = _arrays(inputs, spec), _choices(inputs, spec)
    # The kernel has the full pool for its operand, which a prediction would count as read for
    # every token.
    with moved_bytes_scope(_moved_bytes(arrays, choices)):
        o_BKZRV, lse_BKZI = kernel(arrays, choices)
    return _combined(o_BKZRV, lse_BKZI, inputs)


def _choices(inputs: DecodeInputs, spec: DecodeSpec) -> DecodeChoices:
    arrays = {"q": inputs.q_BTNH, "k": inputs.k, "v": inputs.v}
    sizes = choose_block_sizes(BLOCK_SIZES, Call.of("decode_attention", arrays, {}))
    batch, queries, heads, _ = inputs.q_BTNH.shape
    page, key_heads = inputs.k.shape[1:3]
    is_paged = inputs.page_table_BP is not None
    blocks = -(-inputs.capacity // KEYS)
    # Enough thread blocks to fill the GPU, and no more: each share costs its partial sums,
    # written and read again in float32.
    wanted = -(-sizes.blocks_per_processor * PROCESSORS // (batch * key_heads))
    return DecodeChoices(
        scale=spec.scale,
        soft_cap=spec.soft_cap,
        stages=sizes.stages,
        copied=min(page, KEYS) if is_paged else KEYS,
        shares=max(1, min(wanted, blocks)),
        out_rows=-(-queries * (heads // key_heads) // 8) * 8,
    )


def _arrays(inputs: DecodeInputs, spec: DecodeSpec) -> DecodeArrays:
    batch, queries, _, _ = inputs.q_BTNH.shape
    key_heads = inputs.k.shape[2]
    lengths_B = jnp.clip(inputs.lengths_B.astype(jnp.int32), 0, inputs.capacity)
    table_BP = inputs.page_table_BP
    if table_BP is None:
        table_BP = jnp.arange(batch, dtype=jnp.int32)[:, None]
    q_BKIH = _by_key_head(inputs.q_BTNH, key_heads)
    filling = ROWS - q_BKIH.shape[2]
    group = q_BKIH.shape[2] // queries
    # Rows that fill up are of the last query, so that they see what it sees and no bound is out
    # of range.
    query_I = jnp.minimum(jnp.arange(ROWS, dtype=jnp.int32) // group, queries - 1)
    position_BI = lengths_B[:, None] - queries + query_I[None, :]
    low_BI = jnp.zeros_like(position_BI)
    if spec.left is not None:
        low_BI = jnp.maximum(position_BI - spec.left, 0)
    # The first query sees furthest back, and the last one to the end of the row.
    first_B, end_B = low_BI[:, 0] // KEYS, -(-lengths_B // KEYS)
    # Of pages that a row does not have a table may contain anything; a copy from outside of the
    # pool is a fault that ends the process.
    table_BP = jnp.clip(table_BP.astype(jnp.int32), 0, inputs.k.shape[0] - 1)
    return DecodeArrays(
        q_BKIH=jnp.pad(q_BKIH, ((0, 0), (0, 0), (0, filling), (0, 0))),
        k_MCKH=inputs.k,
        v_MCKV=inputs.v,
        table_BP=table_BP,
        lengths_B=lengths_B,
        blocks_B2=jnp.stack([first_B, end_B], axis=1),
        low_BI=low_BI,
        high_BI=position_BI + 1,
        key_scale_BKS=_scales_of_rows(inputs.key_scale_MCK, table_BP, lengths_B),
        value_scale_BKS=_scales_of_rows(inputs.value_scale_MCK, table_BP, lengths_B),
    )


def _moved_bytes(arrays: DecodeArrays, choices: DecodeChoices) -> int:
    """Return the bytes of all pages that rows have and of their scales, of queries and results."""
    batch, key_heads, rows, _ = arrays.q_BKIH.shape
    pools = (arrays.k_MCKH, arrays.v_MCKV)
    pages = arrays.table_BP.size * sum(x.nbytes // x.shape[0] for x in pools)
    scales = sum(x.nbytes for x in (arrays.key_scale_BKS, arrays.value_scale_BKS) if x is not None)
    numbers = choices.out_rows * arrays.v_MCKV.shape[3] + rows
    made = batch * key_heads * choices.shares * numbers * 4
    return pages + scales + arrays.q_BKIH.nbytes + made


def _scales_of_rows(scale_MCK: Array | None, table_BP: Array, lengths_B: Array) -> Array | None:
    """Return the scales of each row's keys in full blocks, 0 behind its tokens.

    A head's scales are not together in memory, which copies into shared memory need. A weight of
    0 hides no NaN.
    """
    if scale_MCK is None:
        return None
    scale_BSK = scale_MCK[table_BP].reshape(table_BP.shape[0], -1, scale_MCK.shape[2])
    is_there_BS = jnp.arange(scale_BSK.shape[1], dtype=jnp.int32)[None] < lengths_B[:, None]
    scale_BSK = jnp.where(is_there_BS[..., None], scale_BSK, 0.0)
    filling = -scale_BSK.shape[1] % KEYS
    return jnp.pad(scale_BSK, ((0, 0), (0, filling), (0, 0))).transpose(0, 2, 1)


def _by_key_head(q_BTNH: Array, key_heads: int) -> Array:
    """Return the queries of each key head's heads, `[B, K, T G, H]`."""
    batch, queries, heads, width = q_BTNH.shape
    grouped = q_BTNH.reshape(batch, queries, key_heads, heads // key_heads, width)
    return grouped.transpose(0, 2, 1, 3, 4).reshape(batch, key_heads, -1, width)


def _combined(o_BKZRV: Array, lse_BKZI: Array, inputs: DecodeInputs) -> Array:
    """Return the mean over shares, each by its sum of exponentials, and sinks by theirs."""
    batch, queries, heads, _ = inputs.q_BTNH.shape
    key_heads, value_width = inputs.k.shape[2], o_BKZRV.shape[-1]
    group = heads // key_heads
    rows = queries * group
    o_BKZRV, lse_BKZR = o_BKZRV[:, :, :, :rows], lse_BKZI[:, :, :, :rows]
    largest_BK1R = jnp.max(lse_BKZR, axis=2, keepdims=True)
    if inputs.sinks_N is not None:
        sinks_KR = jnp.tile(inputs.sinks_N.astype(jnp.float32).reshape(key_heads, group), queries)
        largest_BK1R = jnp.maximum(largest_BK1R, sinks_KR[None, :, None, :])
    # A row that no share saw anything of: -inf - -inf is NaN, and 0 / 0 as well, below.
    shift_BK1R = jnp.where(largest_BK1R == -jnp.inf, 0.0, largest_BK1R)
    weight_BKZR = jnp.exp(lse_BKZR - shift_BK1R)
    total_BKR = jnp.sum(weight_BKZR, axis=2)
    if inputs.sinks_N is not None:
        total_BKR = total_BKR + jnp.exp(sinks_KR[None] - shift_BK1R[:, :, 0])
    total_BKR = jnp.where(total_BKR == 0.0, 1.0, total_BKR)
    o_BKRV = jnp.sum(weight_BKZR[..., None] * o_BKZRV, axis=2) / total_BKR[..., None]
    grouped = o_BKRV.reshape(batch, key_heads, queries, group, value_width)
    o_BTNV = grouped.transpose(0, 2, 1, 3, 4).reshape(batch, queries, heads, value_width)
    return o_BTNV.astype(inputs.q_BTNH.dtype)
