"""What the kernels of cross-entropy share: blocks of the output projection, and logits.

Letters: M groups of tokens, R tokens of a group, D width, V vocabulary.
"""

from axl_trainium.kernels.attention.nki_tiles import transpose_chunks
from axl_trainium.kernels.nki_tiles import PARTITIONS, load_rows
from axl_trainium.sdk import nisa, nl


def chunks_of(width):
    """Return how many pieces of up to 128 a width has."""
    return (width + PARTITIONS - 1) // PARTITIONS


def load_tokens(x_MRD, group):
    """Return the tokens of a group, each 128 of them transposed, one after another in columns."""
    rows, width = x_MRD.shape[1], x_MRD.shape[2]
    chunks = chunks_of(width)
    tokens = nl.ndarray((min(width, PARTITIONS), chunks * rows), dtype=x_MRD.dtype, buffer=nl.sbuf)
    for first in range(0, rows, PARTITIONS):
        size = min(PARTITIONS, rows - first)
        tile = load_rows(x_MRD, group, first, size, width)
        transpose_chunks(tokens[:, chunks * first : chunks * (first + size)], tile, 0, size)
    return tokens


def over_columns(vocabulary, block, visit):
    """Call `visit(i, first, columns)` for every block of columns, those from `first + i` on.

    All blocks but a smaller last one are one loop of the chip.
    """
    whole = vocabulary // block * block

    def visit_block(i):
        visit(i, 0, block)

    if whole > 0:
        nl.fori_loop(0, whole, visit_block, step=block)
    if whole < vocabulary:
        visit(None, whole, vocabulary - whole)


def load_columns(w_DV, i, first, columns):
    """Return columns of the projection from `first + i` on: width on partitions, by chunks."""
    width = w_DV.shape[0]
    block = nl.ndarray(
        (min(width, PARTITIONS), chunks_of(width) * columns), dtype=w_DV.dtype, buffer=nl.sbuf
    )
    for chunk in range(chunks_of(width)):
        rows = min(PARTITIONS, width - chunk * PARTITIONS)
        nisa.dma_copy(
            dst=block[0:rows, chunk * columns : (chunk + 1) * columns],
            src=columns_of(w_DV, i, first, chunk, rows, columns),
        )
    return block


def columns_of(w_DV, i, first, chunk, rows, columns):
    """Return the view of `rows` rows of a chunk, columns from `first + i` on."""
    vocabulary = w_DV.shape[1]
    return w_DV.ap(
        pattern=[[vocabulary, rows], [1, columns]],
        offset=chunk * PARTITIONS * vocabulary + first,
        scalar_offset=i,
        indirect_dim=1,
    )


def logit_gradient(logits, slope, columns, place, token, dtype):
    """Return the gradient of the products of tokens and projection, rounded to their dtype.

    Args:
        logits: Float32; they are overwritten.
        slope: Of the soft cap, None without one.
        columns: 0, 1, 2, ... in every row, float32.
        place: Of the target among the logits; elsewhere if it is not there.
        token: Three columns: negative log-sum-exp, factor of probabilities, factor of the target.
        dtype: Of the result.
    """
    rows, size = logits.shape
    nisa.activation(dst=logits, op=nl.exp, data=logits, bias=token[:, 0:1])
    gradient = nl.ndarray((rows, size), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=gradient,
        data=columns[0:rows, 0:size],
        op0=nl.equal,
        operand0=place,
        op1=nl.multiply,
        operand1=token[:, 2:3],
    )
    nisa.scalar_tensor_tensor(
        dst=gradient,
        data=logits,
        op0=nl.multiply,
        operand0=token[:, 1:2],
        op1=nl.add,
        operand1=gradient,
    )
    if slope is not None:
        nisa.tensor_tensor(dst=gradient, data1=gradient, data2=slope, op=nl.multiply)
    rounded = nl.ndarray((rows, size), dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=rounded, src=gradient)
    return rounded


def count_columns(rows, columns):
    """Return 0, 1, 2, ... in every row, float32."""
    whole = nl.ndarray((rows, columns), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=whole, pattern=[[1, columns]], offset=0, channel_multiplier=0)
    numbers = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=numbers, src=whole)
    return numbers
