"""Flash attention on a NeuronCore, forward: tiles of 128 queries against blocks of 512 keys.

The keys of an item, transposed, and its values stay in SBUF while all its queries go by. Each query
sees one range of keys; what causality and windows hide from a full tile is not computed.

Letters: X items, a key head of a row of the batch each; G query heads of an item; T queries, S
keys, H key width, V value width; R = G * T, the heads one after another.

Source: Dao et al. 2022, arXiv:2205.14135, algorithm 1; Milakov and Gimelshein 2018,
arXiv:1805.02867.
"""

from axl_trainium.kernels.attention.nki_tiles import (
    KEY_BLOCK,
    first_key,
    last_key,
    load_transposed,
    matmul,
    scaled_logits,
    transpose_tile,
    transposed,
)
from axl_trainium.kernels.nki_tiles import PARTITIONS, load_blocks, load_rows, store_rows
from axl_trainium.sdk import nisa, nki, nl

# Finite, as the difference of two infinities would be NaN. What `range_select` puts in place of
# hidden logits is lower still.
FLOOR = -1.0e30
"""No maximum is below it, so that `exp(hidden - maximum)` is 0 in rows that see nothing."""

# A row that saw nothing has a sum of 0, whose reciprocal would be infinite.
SMALLEST = 1.0e-30


@nki.jit
def attention_forward(
    q_XRH, k_XSH, v_XSV, lower_XT1, upper_XT1, start_XR2, scale, soft_cap, left, right, offset
):
    """Return `(o_XRV, lse_XR1)`, the latter near `FLOOR` for a row that sees nothing.

    Args:
        q_XRH: Queries.
        k_XSH: Keys, of q's dtype.
        v_XSV: Values, of q's dtype.
        lower_XT1: Float32: the first key that each query sees.
        upper_XT1: Float32: one past the last.
        start_XR2: Float32: maximum and sum that each row begins with, or None.
        scale: Factor on products.
        soft_cap: Of the logits, or None.
        left: Keys before `t + offset - left` are out of every range; or None.
        right: Keys after `t + offset + right` are; or None.
        offset: Static.
    """
    num_items, num_rows, width = q_XRH.shape
    num_keys, value_width = k_XSH.shape[1], v_XSV.shape[2]
    num_queries = lower_XT1.shape[1]
    dtype = q_XRH.dtype
    o_XRV = nl.ndarray((num_items, num_rows, value_width), dtype=dtype, buffer=nl.shared_hbm)
    lse_XR1 = nl.ndarray((num_items, num_rows, 1), dtype=nl.float32, buffer=nl.shared_hbm)

    def attend(i):
        # Transposed once for all queries of all heads that share them: products want what they
        # sum over on partitions, and each transpose is a product of its own.
        keys = load_transposed(k_XSH, i, 0, num_keys)
        values = load_blocks(v_XSV, i, 0, num_keys, value_width)
        for query in range(0, num_queries, PARTITIONS):
            rows = min(PARTITIONS, num_queries - query)
            lower = load_rows(lower_XT1, i, query, rows, 1)
            upper = load_rows(upper_XT1, i, query, rows, 1)
            # Known while tracing, so that what is hidden is left out of the program.
            begin = first_key(query, offset, left)
            end = last_key(query + rows - 1, offset, right, num_keys)
            # Inside of the loop over queries, so that heads of a group share the loaded ranges.
            for group in range(num_rows // num_queries):
                row = group * num_queries + query
                q = transposed(load_rows(q_XRH, i, row, rows, width))
                most, total = _start(start_XR2, i, row, rows)
                # In SBUF: PSUM adds up products, but cannot shrink what it has when a new maximum
                # comes.
                acc = nl.ndarray((rows, value_width), dtype=nl.float32, buffer=nl.sbuf)
                nisa.memset(dst=acc, value=0.0)
                for key in range(begin, end, KEY_BLOCK):
                    stop = min(key + KEY_BLOCK, end)
                    logits = scaled_logits(
                        matmul(q, keys, width, num_keys, key, stop), scale, soft_cap
                    )
                    p, shrink = _add_block(logits, soft_cap, lower, upper, key, most, total, dtype)
                    weighed = _weighed_values(p, values, key, value_width)
                    nisa.scalar_tensor_tensor(
                        dst=acc,
                        data=acc,
                        op0=nl.multiply,
                        operand0=shrink,
                        op1=nl.add,
                        operand1=weighed,
                    )
                _store(o_XRV, lse_XR1, i, row, acc, most, total)

    nl.fori_loop(0, num_items, attend)
    return o_XRV, lse_XR1


def _start(start_XR2, i, row, rows):
    """Return the maximum and the sum before the first block."""
    most = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    if start_XR2 is None:
        nisa.memset(dst=most, value=FLOOR)
        nisa.memset(dst=total, value=0.0)
    else:
        start = load_rows(start_XR2, i, row, rows, 2)
        nisa.tensor_copy(dst=most, src=start[:, 0:1])
        nisa.tensor_copy(dst=total, src=start[:, 1:2])
    return most, total


def _add_block(logits, soft_cap, lower, upper, key, most, total, dtype):
    """Return the block's exponentials, and what earlier sums are multiplied by.

    `most` and `total` become those of all blocks so far.
    """
    rows, columns = logits.shape
    if soft_cap is not None:
        nisa.tensor_scalar(dst=logits, data=logits, op0=nl.multiply, operand0=soft_cap)
    visible = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
    block_most = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.range_select(
        dst=visible,
        on_true_tile=logits,
        comp_op0=nl.greater_equal,
        comp_op1=nl.less,
        bound0=lower,
        bound1=upper,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
        reduce_res=block_most,
        reduce_op=nl.maximum,
        range_start=key,
    )
    # A block that hides all of a row has a maximum below every sum's; the old one stays.
    nisa.tensor_tensor(dst=block_most, data1=block_most, data2=most, op=nl.maximum)
    negative = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=negative, data=block_most, op0=nl.multiply, operand0=-1.0)
    shrink = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=shrink, op=nl.exp, data=most, bias=negative)
    # In the values' dtype, as the Tensor Engine multiplies it fastest. The sum next to it is taken
    # in float32, before rounding, in the same pass over the block.
    p = nl.ndarray((rows, columns), dtype=dtype, buffer=nl.sbuf)
    block_total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(
        dst=p,
        op=nl.exp,
        data=visible,
        bias=negative,
        reduce_op=nl.add,
        reduce_res=block_total,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    nisa.scalar_tensor_tensor(
        dst=total, data=total, op0=nl.multiply, operand0=shrink, op1=nl.add, operand1=block_total
    )
    # Last: the exponential above needs the old maximum.
    nisa.tensor_copy(dst=most, src=block_most)
    return p, shrink


def _weighed_values(p, values, key, width):
    """Return `p @ v` in PSUM, for the keys from `key`, a multiple of 128, on."""
    rows, columns = p.shape
    weighed = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.psum)
    for start in range(0, columns, PARTITIONS):
        size = min(PARTITIONS, columns - start)
        p_transposed = nl.ndarray((size, rows), dtype=p.dtype, buffer=nl.sbuf)
        # The one transpose that nothing can take out of the loop: keys are along columns, and
        # have to be on partitions to be summed over.
        transpose_tile(p_transposed, p[:, start : start + size])
        column = (key + start) // PARTITIONS * width
        nisa.nc_matmul(
            dst=weighed,
            stationary=p_transposed,
            moving=values[0:size, column : column + width],
            # The first product of a sum overwrites what PSUM had from another one.
            accumulate=start > 0,
        )
    return weighed


def _store(o_XRV, lse_XR1, i, row, acc, most, total):
    """Write the output, a row's sum of weighed values over its sum, and the log-sum-exp."""
    rows, width = acc.shape
    # The accumulator of such a row is 0, so that any finite reciprocal gives 0.
    nisa.tensor_scalar(dst=total, data=total, op0=nl.maximum, operand0=SMALLEST)
    share = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=share, data=total)
    o = nl.ndarray((rows, width), dtype=o_XRV.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=o, data=acc, op0=nl.multiply, operand0=share)
    lse = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=lse, op=nl.log, data=total)
    nisa.tensor_tensor(dst=lse, data1=lse, data2=most, op=nl.add)
    store_rows(o_XRV, i, row, o)
    store_rows(lse_XR1, i, row, lse)
