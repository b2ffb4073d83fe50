"""Rotary positions on a NeuronCore: tokens on partitions, their heads one after another.

Letters: M tiles of tokens, P tokens of a tile, at most 128, N heads, H width of a head.
"""

from axl_trainium.kernels.nki_tiles import load_rows, store_rows
from axl_trainium.sdk import nisa, nki, nl


@nki.jit
def rope(x_MPD, cos_MPF, sin_MPF):
    """Return `x_MPD` with the pairs of each head rotated: dimension `i` with `i + H / 2`.

    Args:
        x_MPD: Tokens, D = N * H.
        cos_MPF: Float32: of the angle of each pair, F = H / 2.
        sin_MPF: Float32.
    """
    num_tiles, rows, width = x_MPD.shape
    half = cos_MPF.shape[2]
    y_MPD = nl.ndarray((num_tiles, rows, width), dtype=x_MPD.dtype, buffer=nl.shared_hbm)

    def rotate(i):
        x = load_rows(x_MPD, i, 0, rows, width)
        cos = load_rows(cos_MPF, i, 0, rows, half)
        sin = load_rows(sin_MPF, i, 0, rows, half)
        y = nl.ndarray((rows, width), dtype=x_MPD.dtype, buffer=nl.sbuf)
        for start in range(0, width, 2 * half):
            middle, stop = start + half, start + 2 * half
            first, second = x[:, start:middle], x[:, middle:stop]
            _combine(y[:, start:middle], first, cos, second, sin, nl.subtract)
            _combine(y[:, middle:stop], second, cos, first, sin, nl.add)
        store_rows(y_MPD, i, 0, y)

    nl.fori_loop(0, num_tiles, rotate)
    return y_MPD


def _combine(dst, left, left_factor, right, right_factor, op):
    """Write `left * left_factor` plus or minus `right * right_factor`."""
    rows, columns = left.shape
    # Float32 between, rounded once with the sum.
    one = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
    other = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=one, data1=left, data2=left_factor, op=nl.multiply)
    nisa.tensor_tensor(dst=other, data1=right, data2=right_factor, op=nl.multiply)
    nisa.tensor_tensor(dst=dst, data1=one, data2=other, op=op)
