"""Output projection and cross-entropy on a NeuronCore, backward: logits are computed again.

One kernel goes by tokens and adds up their gradient; the other goes by columns of the projection
and adds up theirs. So no gradient is ever added to in HBM.

Letters: M groups of tokens, R tokens of a group, D width, V vocabulary.
"""

from axl_trainium.kernels.attention.nki_tiles import (
    cap_slope,
    matmul,
    scaled_logits,
    transpose_tile,
    transposed,
)
from axl_trainium.kernels.cross_entropy.nki_tiles import (
    chunks_of,
    columns_of,
    count_columns,
    load_columns,
    load_tokens,
    logit_gradient,
    over_columns,
)
from axl_trainium.kernels.nki_tiles import PARTITIONS, load_blocks, load_rows, store_rows
from axl_trainium.sdk import nisa, nki, nl

# One bank of PSUM in float32, which a product may not cross.
BANK_COLUMNS = 512


@nki.jit
def cross_entropy_dx(x_MRD, w_DV, w_VD, target_MR1, token_MR3, soft_cap, block):
    """Return `dx_MRD`, float32.

    Args:
        x_MRD: Tokens.
        w_DV: The projection, of x's dtype.
        w_VD: The same, transposed.
        target_MR1: Float32: the number of the target.
        token_MR3: Float32: negative log-sum-exp, factor of probabilities, factor of the target.
        soft_cap: Of the logits, or None.
        block: Columns of the projection that are held at once, at most 512.
    """
    num_groups, rows, width = x_MRD.shape
    vocabulary = w_DV.shape[1]
    dx_MRD = nl.ndarray((num_groups, rows, width), dtype=nl.float32, buffer=nl.shared_hbm)
    tiles = (rows + PARTITIONS - 1) // PARTITIONS
    height = min(rows, PARTITIONS)
    numbers = count_columns(height, min(block, vocabulary))

    def visit_group(group):
        tokens = load_tokens(x_MRD, group)
        sums = nl.ndarray((height, tiles * width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=sums, value=0.0)
        state = nl.ndarray((height, 4 * tiles), dtype=nl.float32, buffer=nl.sbuf)
        for tile in range(tiles):
            size = min(PARTITIONS, rows - tile * PARTITIONS)
            target = load_rows(target_MR1, group, tile * PARTITIONS, size, 1)
            token = load_rows(token_MR3, group, tile * PARTITIONS, size, 3)
            nisa.tensor_copy(dst=state[0:size, 4 * tile : 4 * tile + 3], src=token)
            nisa.tensor_copy(dst=state[0:size, 4 * tile + 3 : 4 * tile + 4], src=target)

        def visit(i, first, columns):
            weights = load_columns(w_DV, i, first, columns)
            weight_rows = load_blocks(w_VD, i, first, columns, width)
            for tile in range(tiles):
                begin = tile * PARTITIONS
                size = min(PARTITIONS, rows - begin)
                own = state[0:size, 4 * tile : 4 * tile + 4]
                chunks = chunks_of(width)
                left = tokens[:, chunks * begin : chunks * (begin + size)]
                products = matmul(left, weights, width, columns, 0, columns)
                logits, slope = _logits_and_slope(products, soft_cap)
                place = own[:, 3:4]
                gradient = logit_gradient(logits, slope, numbers, place, own, x_MRD.dtype)
                nisa.tensor_scalar(dst=place, data=place, op0=nl.subtract, operand0=float(columns))
                own_sums = sums[0:size, tile * width : (tile + 1) * width]
                _add_rows(own_sums, gradient, weight_rows)

        over_columns(vocabulary, block, visit)
        for tile in range(tiles):
            size = min(PARTITIONS, rows - tile * PARTITIONS)
            own_sums = sums[0:size, tile * width : (tile + 1) * width]
            store_rows(dx_MRD, group, tile * PARTITIONS, own_sums)

    nl.fori_loop(0, num_groups, visit_group)
    return dx_MRD


@nki.jit
def cross_entropy_dw(x_MRD, w_DV, target_MR1, token_MR3, soft_cap, block):
    """Return `dw_DV`, float32. Groups have at most 128 tokens; else as in `cross_entropy_dx`."""
    num_groups, rows, width = x_MRD.shape
    vocabulary = w_DV.shape[1]
    dw_DV = nl.ndarray((width, vocabulary), dtype=nl.float32, buffer=nl.shared_hbm)
    numbers = count_columns(rows, min(block, vocabulary))
    # How many columns went by, kept on the chip, where the loop's own number cannot be computed
    # with.
    passed = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=passed, value=0.0)

    def visit(i, first, columns):
        weights = load_columns(w_DV, i, first, columns)
        # For all tokens: the gradient of a block of columns is written once, and nothing is added
        # up in HBM.
        sums = nl.ndarray(weights.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=sums, value=0.0)

        def visit_tokens(group):
            x = load_rows(x_MRD, group, 0, rows, width)
            place = load_rows(target_MR1, group, 0, rows, 1)
            nisa.tensor_tensor(dst=place, data1=place, data2=passed, op=nl.subtract)
            token = load_rows(token_MR3, group, 0, rows, 3)
            products = matmul(transposed(x), weights, width, columns, 0, columns)
            logits, slope = _logits_and_slope(products, soft_cap)
            gradient = logit_gradient(logits, slope, numbers, place, token, x_MRD.dtype)
            _add_columns(sums, x, gradient)

        nl.fori_loop(0, num_groups, visit_tokens)
        nisa.tensor_scalar(dst=passed, data=passed, op0=nl.add, operand0=float(columns))
        for chunk in range(chunks_of(width)):
            size = min(PARTITIONS, width - chunk * PARTITIONS)
            nisa.dma_copy(
                dst=columns_of(dw_DV, i, first, chunk, size, columns),
                src=sums[0:size, chunk * columns : (chunk + 1) * columns],
            )

    over_columns(vocabulary, block, visit)
    return dw_DV


def _logits_and_slope(products, soft_cap):
    """Return the logits in SBUF, and the slope of the soft cap, None without one."""
    logits = scaled_logits(products, 1.0, soft_cap)
    slope = None if soft_cap is None else cap_slope(logits)
    if soft_cap is not None:
        nisa.tensor_scalar(dst=logits, data=logits, op0=nl.multiply, operand0=soft_cap)
    return logits, slope


def _add_rows(sums, gradient, weight_rows):
    """Add `gradient @ w.T` to the sums of up to 128 tokens; rows of `w.T` are in blocks."""
    rows, columns = gradient.shape
    width = sums.shape[1]
    for start in range(0, columns, PARTITIONS):
        size = min(PARTITIONS, columns - start)
        # Columns have to be on partitions to be summed over. For `_add_columns` tokens are, as
        # they are.
        gradient_transposed = nl.ndarray((size, rows), dtype=gradient.dtype, buffer=nl.sbuf)
        transpose_tile(gradient_transposed, gradient[:, start : start + size])
        weights = weight_rows[
            0:size, start // PARTITIONS * width : (start // PARTITIONS + 1) * width
        ]
        for column in range(0, width, BANK_COLUMNS):
            stop = min(column + BANK_COLUMNS, width)
            added = nl.ndarray((rows, stop - column), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(
                dst=added,
                stationary=gradient_transposed,
                moving=weights[:, column:stop],
                accumulate=False,
            )
            place = sums[:, column:stop]
            nisa.tensor_tensor(dst=place, data1=place, data2=added, op=nl.add)


def _add_columns(sums, x, gradient):
    """Add `x.T @ gradient` to the sums of a block of columns, laid out as the block is."""
    width, columns = x.shape[1], gradient.shape[1]
    for chunk in range(chunks_of(width)):
        start = chunk * PARTITIONS
        size = min(PARTITIONS, width - start)
        added = nl.ndarray((size, columns), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(
            dst=added, stationary=x[:, start : start + size], moving=gradient, accumulate=False
        )
        place = sums[0:size, chunk * columns : (chunk + 1) * columns]
        nisa.tensor_tensor(dst=place, data1=place, data2=added, op=nl.add)
