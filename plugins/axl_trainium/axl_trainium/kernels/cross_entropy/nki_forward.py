"""Output projection and cross-entropy on a NeuronCore, forward: no logit ever leaves the chip.

A group of tokens stays in SBUF, transposed, while the projection goes by in blocks of columns.

Letters: M groups of tokens, R tokens of a group, D width, V vocabulary.
"""

from axl_trainium.kernels.attention.nki_tiles import matmul, scaled_logits
from axl_trainium.kernels.cross_entropy.nki_tiles import (
    chunks_of,
    load_columns,
    load_tokens,
    over_columns,
)
from axl_trainium.kernels.nki_tiles import PARTITIONS, load_rows, store_rows
from axl_trainium.sdk import nisa, nki, nl

# The least float32, which `range_select` writes for what it hides: so a target that is in no
# block leaves the state as it was.
LOWEST = -3.4028234663852886e38


@nki.jit
def cross_entropy_forward(x_MRD, w_DV, target_MR1, soft_cap, block):
    """Return `statistics_MR3`, float32: log-sum-exp, the target's logit and the largest logit.

    Args:
        x_MRD: Tokens.
        w_DV: The projection, of x's dtype.
        target_MR1: Float32: the number of the target.
        soft_cap: Of the logits, or None.
        block: Columns of the projection that are held at once, at most 512.
    """
    num_groups, rows, width = x_MRD.shape
    vocabulary = w_DV.shape[1]
    statistics_MR3 = nl.ndarray((num_groups, rows, 3), dtype=nl.float32, buffer=nl.shared_hbm)

    def visit_group(group):
        # The projection is read once for each group of tokens.
        tokens = load_tokens(x_MRD, group)
        tiles = (rows + PARTITIONS - 1) // PARTITIONS
        state = nl.ndarray((min(rows, PARTITIONS), 4 * tiles), dtype=nl.float32, buffer=nl.sbuf)
        for tile in range(tiles):
            size = min(PARTITIONS, rows - tile * PARTITIONS)
            column = 4 * tile
            nisa.memset(dst=state[0:size, column : column + 1], value=0.0)
            nisa.memset(dst=state[0:size, column + 1 : column + 3], value=LOWEST)
            target = load_rows(target_MR1, group, tile * PARTITIONS, size, 1)
            nisa.tensor_copy(dst=state[0:size, column + 3 : column + 4], src=target)

        def visit(i, first, columns):
            weights = load_columns(w_DV, i, first, columns)
            _visit(tokens, weights, columns, rows, width, soft_cap, state)

        over_columns(vocabulary, block, visit)
        for tile in range(tiles):
            size = min(PARTITIONS, rows - tile * PARTITIONS)
            own = state[0:size, 4 * tile : 4 * tile + 4]
            found = nl.ndarray((size, 3), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=found[:, 0:1], op=nl.log, data=own[:, 0:1])
            nisa.tensor_tensor(dst=found[:, 0:1], data1=found[:, 0:1], data2=own[:, 1:2], op=nl.add)
            nisa.tensor_copy(dst=found[:, 1:2], src=own[:, 2:3])
            nisa.tensor_copy(dst=found[:, 2:3], src=own[:, 1:2])
            store_rows(statistics_MR3, group, tile * PARTITIONS, found)

    nl.fori_loop(0, num_groups, visit_group)
    return statistics_MR3


def _visit(tokens, weights, columns, rows, width, soft_cap, state):
    """Add a block of columns to the state of every token.

    The state of 128 tokens is four columns: sum, maximum, the target's logit, and the place of the
    target, counted from the first column of the block.
    """
    chunks = chunks_of(width)
    for first in range(0, rows, PARTITIONS):
        size = min(PARTITIONS, rows - first)
        own = state[0:size, first // PARTITIONS * 4 : first // PARTITIONS * 4 + 4]
        left = tokens[:, chunks * first : chunks * (first + size)]
        products = matmul(left, weights, width, columns, 0, columns)
        logits = scaled_logits(products, 1.0, soft_cap)
        if soft_cap is not None:
            nisa.tensor_scalar(dst=logits, data=logits, op0=nl.multiply, operand0=soft_cap)
        _add_logits(logits, own)
        _find_target(logits, own)
        # Counted down, as a column that the loop of the chip carries: the number of the block is
        # not known where the program is made.
        place = own[:, 3:4]
        nisa.tensor_scalar(dst=place, data=place, op0=nl.subtract, operand0=float(columns))


def _add_logits(logits, own):
    """Add the exponentials of a block to the sums, and raises the maximum."""
    rows, columns = logits.shape
    total, most = own[:, 0:1], own[:, 1:2]
    block_most = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=block_most, op=nl.maximum, data=logits, axis=1, keepdims=True)
    nisa.tensor_tensor(dst=block_most, data1=block_most, data2=most, op=nl.maximum)
    negative = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=negative, data=block_most, op0=nl.multiply, operand0=-1.0)
    shrink = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=shrink, op=nl.exp, data=most, bias=negative)
    exponentials = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
    block_total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(
        dst=exponentials,
        op=nl.exp,
        data=logits,
        bias=negative,
        reduce_op=nl.add,
        reduce_res=block_total,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    nisa.scalar_tensor_tensor(
        dst=total, data=total, op0=nl.multiply, operand0=shrink, op1=nl.add, operand1=block_total
    )
    nisa.tensor_copy(dst=most, src=block_most)


def _find_target(logits, own):
    """Keep the logit of the target, where it is in the block."""
    rows, columns = logits.shape
    # A range of one column picks the target's logit, without a gather.
    kept = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
    found = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.range_select(
        dst=kept,
        on_true_tile=logits,
        comp_op0=nl.greater_equal,
        comp_op1=nl.less_equal,
        bound0=own[:, 3:4],
        bound1=own[:, 3:4],
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
        reduce_res=found,
        reduce_op=nl.maximum,
        range_start=0,
    )
    nisa.tensor_tensor(dst=own[:, 2:3], data1=own[:, 2:3], data2=found, op=nl.maximum)
