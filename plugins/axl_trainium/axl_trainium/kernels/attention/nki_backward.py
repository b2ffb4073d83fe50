"""Flash attention on a NeuronCore, backward: probabilities are computed again, tile by tile.

One kernel goes by queries and adds up their gradient; the other goes by keys and adds up those of
keys and values. So no gradient is ever added to in HBM, and each tile is computed twice.

Letters: X items, a key head of a row of the batch each; G query heads of an item; T queries, S
keys, H key width, V value width; R = G * T, the heads one after another.

Source: Dao et al. 2022, arXiv:2205.14135, algorithm 4.
"""

from axl_trainium.kernels.attention.nki_tiles import (
    KEY_BLOCK,
    cap_slope,
    first_key,
    last_key,
    load_transposed,
    matmul,
    scaled_logits,
    transpose_tile,
    transposed,
)
from axl_trainium.kernels.nki_tiles import PARTITIONS, load_rows, store_rows
from axl_trainium.sdk import nisa, nki, nl


@nki.jit
def attention_dq(
    q_XRH,
    k_XSH,
    v_XSV,
    lower_XT1,
    upper_XT1,
    do_XRV,
    lse_XR1,
    delta_XR1,
    scale,
    soft_cap,
    left,
    right,
    offset,
):
    """Return `dq_XRH`. The keys and values of an item stay in SBUF, transposed.

    Args:
        q_XRH: Queries.
        k_XSH: Keys, of q's dtype.
        v_XSV: Values, of q's dtype.
        lower_XT1: Float32: the first key that each query sees.
        upper_XT1: Float32: one past the last.
        do_XRV: Gradient of the output, of q's dtype.
        lse_XR1: Float32: the negative log-sum-exp, 0 for rows that see nothing.
        delta_XR1: Float32: `sum(do * o) - dlse`.
        scale: As in the forward pass, and so are those that follow.
        soft_cap: Of the logits, or None.
        left: Of the window, or None.
        right: Of the window, or None.
        offset: Static.
    """
    num_items, num_rows, width = q_XRH.shape
    num_keys, value_width = k_XSH.shape[1], v_XSV.shape[2]
    num_queries = lower_XT1.shape[1]
    dq_XRH = nl.ndarray(q_XRH.shape, dtype=q_XRH.dtype, buffer=nl.shared_hbm)

    def differentiate(i):
        keys = load_transposed(k_XSH, i, 0, num_keys)
        values = load_transposed(v_XSV, i, 0, num_keys)
        for query in range(0, num_queries, PARTITIONS):
            rows = min(PARTITIONS, num_queries - query)
            lower = load_rows(lower_XT1, i, query, rows, 1)
            upper = load_rows(upper_XT1, i, query, rows, 1)
            begin = first_key(query, offset, left)
            end = last_key(query + rows - 1, offset, right, num_keys)
            for group in range(num_rows // num_queries):
                row = group * num_queries + query
                q = transposed(load_rows(q_XRH, i, row, rows, width))
                do = transposed(load_rows(do_XRV, i, row, rows, value_width))
                lse = load_rows(lse_XR1, i, row, rows, 1)
                delta = load_rows(delta_XR1, i, row, rows, 1)
                total = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
                nisa.memset(dst=total, value=0.0)
                for key in range(begin, end, KEY_BLOCK):
                    stop = min(key + KEY_BLOCK, end)
                    logits = scaled_logits(
                        matmul(q, keys, width, num_keys, key, stop), scale, soft_cap
                    )
                    p, slope = _probabilities(logits, soft_cap, lower, upper, key, lse)
                    dp = matmul(do, values, value_width, num_keys, key, stop)
                    dlogits = _logit_gradient(p, slope, dp, delta, scale, q_XRH.dtype)
                    # Keys as rows are loaded block by block: SBUF holds all keys and values
                    # transposed already.
                    _add_key_products(total, dlogits, k_XSH, i, key)
                dq = nl.ndarray((rows, width), dtype=q_XRH.dtype, buffer=nl.sbuf)
                nisa.tensor_copy(dst=dq, src=total)
                store_rows(dq_XRH, i, row, dq)

    nl.fori_loop(0, num_items, differentiate)
    return dq_XRH


@nki.jit
def attention_dkv(
    q_XRH,
    k_XSH,
    v_XSV,
    lower_XT1,
    upper_XT1,
    do_XRV,
    lse_XR1,
    delta_XR1,
    scale,
    soft_cap,
    left,
    right,
    offset,
):
    """Return `(dk_XSH, dv_XSV)`. Arguments are those of `attention_dq`."""
    num_items, num_rows, width = q_XRH.shape
    num_keys, value_width = k_XSH.shape[1], v_XSV.shape[2]
    num_queries = lower_XT1.shape[1]
    dk_XSH = nl.ndarray(k_XSH.shape, dtype=k_XSH.dtype, buffer=nl.shared_hbm)
    dv_XSV = nl.ndarray(v_XSV.shape, dtype=v_XSV.dtype, buffer=nl.shared_hbm)

    def differentiate(i):
        for key in range(0, num_keys, KEY_BLOCK):
            columns = min(KEY_BLOCK, num_keys - key)
            keys = load_transposed(k_XSH, i, key, columns)
            values = load_transposed(v_XSV, i, key, columns)
            dk = _zeros(columns, width)
            dv = _zeros(columns, value_width)
            for query in range(0, num_queries, PARTITIONS):
                rows = min(PARTITIONS, num_queries - query)
                # A multiple of 128 within the block, as `_add_query_products` adds to whole
                # groups of partitions.
                begin = max(first_key(query, offset, left), key) - key
                end = min(last_key(query + rows - 1, offset, right, num_keys) - key, columns)
                # A Python branch, by numbers known when the kernel is traced.
                if begin < end:
                    lower = load_rows(lower_XT1, i, query, rows, 1)
                    upper = load_rows(upper_XT1, i, query, rows, 1)
                    for group in range(num_rows // num_queries):
                        row = group * num_queries + query
                        q = load_rows(q_XRH, i, row, rows, width)
                        do = load_rows(do_XRV, i, row, rows, value_width)
                        lse = load_rows(lse_XR1, i, row, rows, 1)
                        delta = load_rows(delta_XR1, i, row, rows, 1)
                        products = matmul(transposed(q), keys, width, columns, begin, end)
                        logits = scaled_logits(products, scale, soft_cap)
                        p, slope = _probabilities(logits, soft_cap, lower, upper, key + begin, lse)
                        dp = matmul(transposed(do), values, value_width, columns, begin, end)
                        dlogits = _logit_gradient(p, slope, dp, delta, scale, q_XRH.dtype)
                        # A copy in 16 bits for the product; the gradient of logits above took the
                        # float32 ones.
                        weights = nl.ndarray((rows, end - begin), dtype=q_XRH.dtype, buffer=nl.sbuf)
                        nisa.tensor_copy(dst=weights, src=p)
                        _add_query_products(dk, begin, dlogits, q)
                        _add_query_products(dv, begin, weights, do)
            _store_keys(dk_XSH, i, key, columns, dk)
            _store_keys(dv_XSV, i, key, columns, dv)

    nl.fori_loop(0, num_items, differentiate)
    return dk_XSH, dv_XSV


def _probabilities(logits, soft_cap, lower, upper, key, lse):
    """Return the probabilities, float32, and the slope of the soft cap, None without one."""
    rows, columns = logits.shape
    slope = None if soft_cap is None else cap_slope(logits)
    if soft_cap is not None:
        nisa.tensor_scalar(dst=logits, data=logits, op0=nl.multiply, operand0=soft_cap)
    visible = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.range_select(
        dst=visible,
        on_true_tile=logits,
        comp_op0=nl.greater_equal,
        comp_op1=nl.less,
        bound0=lower,
        bound1=upper,
        range_start=key,
    )
    # The log-sum-exp comes negated, for activations add a bias and subtract none.
    nisa.activation(dst=visible, op=nl.exp, data=visible, bias=lse)
    return visible, slope


def _logit_gradient(p, slope, dp, delta, scale, dtype):
    """Return the gradient of the products of queries and keys, in their dtype."""
    gradient = nl.ndarray(p.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=gradient, data=dp, op0=nl.subtract, operand0=delta, op1=nl.multiply, operand1=p
    )
    if slope is not None:
        nisa.tensor_tensor(dst=gradient, data1=gradient, data2=slope, op=nl.multiply)
    # One pass scales in float32 and then rounds; a rounded gradient would be rounded twice.
    rounded = nl.ndarray(p.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=rounded, data=gradient, op0=nl.multiply, operand0=scale)
    return rounded


def _add_key_products(total, dlogits, k_XSH, i, key):
    """Add `dlogits @ k` to `total`, for the keys from `key` on."""
    rows, columns = dlogits.shape
    width = k_XSH.shape[2]
    added = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.psum)
    for start in range(0, columns, PARTITIONS):
        size = min(PARTITIONS, columns - start)
        dlogits_transposed = nl.ndarray((size, rows), dtype=dlogits.dtype, buffer=nl.sbuf)
        transpose_tile(dlogits_transposed, dlogits[:, start : start + size])
        k = load_rows(k_XSH, i, key + start, size, width)
        nisa.nc_matmul(dst=added, stationary=dlogits_transposed, moving=k, accumulate=start > 0)
    nisa.tensor_tensor(dst=total, data1=total, data2=added, op=nl.add)


def _zeros(num_keys, width):
    """Return sums for a block of keys: 128 on partitions, the next 128 in further columns."""
    tiles = (num_keys + PARTITIONS - 1) // PARTITIONS
    sums = nl.ndarray((min(num_keys, PARTITIONS), tiles * width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=sums, value=0.0)
    return sums


def _add_query_products(sums, first, weights, rows):
    """Add `weights.T @ rows` to the sums of a block of keys, from key `first` of it on."""
    columns, width = weights.shape[1], rows.shape[1]
    for start in range(0, columns, PARTITIONS):
        size = min(PARTITIONS, columns - start)
        added = nl.ndarray((size, width), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(
            dst=added, stationary=weights[:, start : start + size], moving=rows, accumulate=False
        )
        column = (first + start) // PARTITIONS * width
        place = sums[0:size, column : column + width]
        nisa.tensor_tensor(dst=place, data1=place, data2=added, op=nl.add)


def _store_keys(tensor, i, key, num_keys, sums):
    """Write the sums of a block of keys to rows from `key` on of item `i`."""
    width = tensor.shape[2]
    for start in range(0, num_keys, PARTITIONS):
        size = min(PARTITIONS, num_keys - start)
        column = start // PARTITIONS * width
        tile = nl.ndarray((size, width), dtype=tensor.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=tile, src=sums[0:size, column : column + width])
        store_rows(tensor, i, key + start, tile)
