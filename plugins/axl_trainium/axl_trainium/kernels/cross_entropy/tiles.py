"""How much of a cross-entropy call is on the chip at once."""

import attrs
import jax.numpy as jnp

from axl_trainium.limits import PARTITIONS, SBUF_PARTITION_BYTES

WORKING_BYTES = 24 * 1024
"""Of a partition of SBUF, for what does not grow with the width."""


@attrs.frozen(kw_only=True)
class CrossEntropyTiles:
    """Block sizes of the kernels.

    Args:
        tokens: Tokens that one read of the projection serves, a multiple of 128.
        columns: Columns of the projection that are read at once, at most 512.
    """

    tokens: int
    columns: int

    def bytes_of_partition(self, width: int, itemsize: int) -> int:
        """Return the bytes of a partition of SBUF that the larger backward kernel needs."""
        chunks = -(-width // PARTITIONS)
        block = chunks * self.columns
        row_blocks = -(-self.columns // PARTITIONS) * width
        tiles = self.tokens // PARTITIONS
        by_tokens = tiles * width * 4 + itemsize * (chunks * self.tokens + block + row_blocks)
        by_columns = block * 4 + itemsize * (block + chunks * PARTITIONS)
        return max(by_tokens, by_columns) + itemsize * width + WORKING_BYTES


CHOICES = sorted(
    (
        CrossEntropyTiles(tokens=tiles * PARTITIONS, columns=columns)
        for tiles in (1, 2, 4, 8)
        for columns in (128, 256, 512)
    ),
    key=lambda tiles: (min(tiles.tokens, tiles.columns), tiles.tokens),
    reverse=True,
)
"""Best first: the more columns and tokens, the more products for each byte that is read."""


def tiles_for(width: int, dtype: str) -> CrossEntropyTiles | None:
    """Return the first choice that fits the memory; None where the width is too large for all."""
    itemsize = jnp.dtype(dtype).itemsize
    fitting = (
        tiles
        for tiles in CHOICES
        if tiles.bytes_of_partition(width, itemsize) <= SBUF_PARTITION_BYTES
    )
    return next(fitting, None)
