"""What attention's kernels share: operands transposed for products, and the logits of a tile.

The Tensor Engine sums over partitions, so both operands of a product have there what is summed
over. A matrix `[rows, width]` is turned to `[128, chunks * rows]`: chunk `c` of up to 128 of its
width is in columns from `c * rows` on.

Letters: X items, a key head of a row of the batch each; S keys, H width.
"""

from axl_trainium.kernels.nki_tiles import PARTITIONS, load_rows
from axl_trainium.sdk import nisa, nl

# A product has at most 512 columns: one bank of PSUM in float32.
KEY_BLOCK = 512


def transpose_tile(dst, tile):
    """Write the transposed tile of at most 128 by 128 to `dst` in SBUF."""
    rows, columns = tile.shape
    # The Tensor Engine writes to PSUM alone, and reads its operands from SBUF; hence the copy.
    transposed = nl.ndarray((columns, rows), dtype=tile.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=transposed, data=tile)
    nisa.tensor_copy(dst=dst, src=transposed)


def transpose_chunks(dst, tile, first, num_rows):
    """Write a tile, transposed, to rows from `first` on of a transposed matrix of `num_rows`."""
    rows, width = tile.shape
    for start in range(0, width, PARTITIONS):
        size = min(PARTITIONS, width - start)
        column = start // PARTITIONS * num_rows + first
        transpose_tile(dst[0:size, column : column + rows], tile[:, start : start + size])


def transposed(tile):
    """Return a tile, transposed, in SBUF."""
    rows, width = tile.shape
    chunks = (width + PARTITIONS - 1) // PARTITIONS
    dst = nl.ndarray((min(width, PARTITIONS), chunks * rows), dtype=tile.dtype, buffer=nl.sbuf)
    transpose_chunks(dst, tile, 0, rows)
    return dst


def load_transposed(tensor_XSH, i, first, num_rows):
    """Return rows of item `i`, transposed, in SBUF."""
    width = tensor_XSH.shape[2]
    chunks = (width + PARTITIONS - 1) // PARTITIONS
    dst = nl.ndarray(
        (min(width, PARTITIONS), chunks * num_rows), dtype=tensor_XSH.dtype, buffer=nl.sbuf
    )
    for start in range(0, num_rows, PARTITIONS):
        rows = min(PARTITIONS, num_rows - start)
        transpose_chunks(dst, load_rows(tensor_XSH, i, first + start, rows, width), start, num_rows)
    return dst


def matmul(left, right, width, num_rows, start, stop):
    """Return `left @ right.T` in PSUM: all rows of `left`, rows `[start, stop)` of `right`.

    Args:
        left: Turned; at most 128 rows.
        right: Turned.
        width: What is summed over.
        num_rows: Rows of `right`.
        start: First row of `right`.
        stop: At most 512 after `start`.
    """
    chunks = (width + PARTITIONS - 1) // PARTITIONS
    rows = left.shape[1] // chunks
    total = nl.ndarray((rows, stop - start), dtype=nl.float32, buffer=nl.psum)
    for chunk in range(chunks):
        size = min(PARTITIONS, width - chunk * PARTITIONS)
        right_start = chunk * num_rows
        nisa.nc_matmul(
            dst=total,
            stationary=left[0:size, chunk * rows : (chunk + 1) * rows],
            moving=right[0:size, right_start + start : right_start + stop],
            accumulate=chunk > 0,
        )
    return total


def scaled_logits(products, scale, soft_cap):
    """Return the logits in SBUF, float32, and with a soft cap before they are multiplied by it."""
    logits = nl.ndarray(products.shape, dtype=nl.float32, buffer=nl.sbuf)
    if soft_cap is None:
        nisa.activation(dst=logits, op=nl.copy, data=products, scale=scale)
    else:
        nisa.activation(dst=logits, op=nl.tanh, data=products, scale=scale / soft_cap)
    return logits


def cap_slope(capped):
    """Return `1 - capped^2`, the slope of tanh where it is `capped`."""
    slope = nl.ndarray(capped.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=slope, op=nl.square, data=capped)
    nisa.tensor_scalar(
        dst=slope, data=slope, op0=nl.multiply, operand0=-1.0, op1=nl.add, operand1=1.0
    )
    return slope


def first_key(row, offset, left):
    """Return the first key, a multiple of 128, that a row from `row` on may see."""
    first = 0 if left is None else max(0, row + offset - left)
    # Rounded down: transposed keys, and values, are in groups of 128, at whose beginnings
    # products start. The keys that this adds are masked.
    return first // PARTITIONS * PARTITIONS


def last_key(row, offset, right, num_keys):
    """Return one past the last key that a row up to `row` may see; 0 or less for none."""
    return num_keys if right is None else min(num_keys, row + offset + right + 1)
