"""Moving tiles between HBM and SBUF.

A tensor in HBM is `[M, ..., columns]`, contiguous; `i` is the index of a loop over M, which may be
known on the chip only, and `row` counts rows of one item.
"""

from axl_trainium.sdk import nisa, nl

PARTITIONS = 128


def load_rows(tensor, i, row, num_rows, columns):
    """Return rows `[row, row + num_rows)` of item `i`, in SBUF."""
    tile = nl.ndarray((num_rows, columns), dtype=tensor.dtype, buffer=nl.sbuf)
    place = tensor.ap(
        pattern=[[columns, num_rows], [1, columns]],
        offset=row * columns,
        scalar_offset=i,
        indirect_dim=0,
    )
    nisa.dma_copy(dst=tile, src=place)
    return tile


def store_rows(tensor, i, row, tile):
    """Write a tile to rows from `row` on of item `i`."""
    num_rows, columns = tile.shape
    place = tensor.ap(
        pattern=[[columns, num_rows], [1, columns]],
        offset=row * columns,
        scalar_offset=i,
        indirect_dim=0,
    )
    nisa.dma_copy(dst=place, src=tile)


def load_blocks(tensor, i, row, num_rows, columns):
    """Return rows `[row, row + num_rows)` of item `i` in SBUF, 128 of them on partitions.

    The next 128 are in further columns.
    """
    blocks = (num_rows + PARTITIONS - 1) // PARTITIONS
    tile = nl.ndarray(
        (min(num_rows, PARTITIONS), blocks * columns), dtype=tensor.dtype, buffer=nl.sbuf
    )
    for block in range(blocks):
        first = block * PARTITIONS
        size = min(PARTITIONS, num_rows - first)
        place = tensor.ap(
            pattern=[[columns, size], [1, columns]],
            offset=(row + first) * columns,
            scalar_offset=i,
            indirect_dim=0,
        )
        nisa.dma_copy(dst=tile[0:size, block * columns : (block + 1) * columns], src=place)
    return tile


def load_repeated(row, num_rows, columns):
    """Return a tensor `[1, columns]` in every one of `num_rows` partitions of SBUF."""
    tile = nl.ndarray((num_rows, columns), dtype=row.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=row.ap(pattern=[[0, num_rows], [1, columns]], offset=0))
    return tile
