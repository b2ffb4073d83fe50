"""RMS normalisation on a NeuronCore: rows on partitions, the full width of a row along them.

Letters: M tiles of rows, P rows of a tile, at most 128, D width.
"""

from axl_trainium.kernels.nki_tiles import load_repeated, load_rows, store_rows
from axl_trainium.sdk import nisa, nki, nl

# One bank of PSUM in float32.
SUM_COLUMNS = 512


@nki.jit
def rms_norm_forward(x_MPD, scale_1D, epsilon):
    """Return `y_MPD`: rows times their factor and the scale.

    Args:
        x_MPD: Rows, float32 or bfloat16.
        scale_1D: Float32.
        epsilon: Added to the mean square.
    """
    num_tiles, rows, width = x_MPD.shape
    y_MPD = nl.ndarray((num_tiles, rows, width), dtype=x_MPD.dtype, buffer=nl.shared_hbm)
    scale = load_repeated(scale_1D, rows, width)

    def normalise(i):
        x = load_rows(x_MPD, i, 0, rows, width)
        squares = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
        factor = _factor(x, epsilon, squares)
        y = nl.ndarray((rows, width), dtype=x_MPD.dtype, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=y, data=x, op0=nl.multiply, operand0=factor, op1=nl.multiply, operand1=scale
        )
        store_rows(y_MPD, i, 0, y)

    nl.fori_loop(0, num_tiles, normalise)
    return y_MPD


@nki.jit
def rms_norm_backward(x_MPD, scale_1D, dy_MPD, epsilon):
    """Return `(dx_MPD, dscale_1D)`: gradients of rows, and of the scale in float32.

    Args:
        x_MPD: Rows.
        scale_1D: Float32.
        dy_MPD: Gradient of the normalised rows, in x's dtype.
        epsilon: Added to the mean square.
    """
    num_tiles, rows, width = x_MPD.shape
    dx_MPD = nl.ndarray((num_tiles, rows, width), dtype=x_MPD.dtype, buffer=nl.shared_hbm)
    dscale_1D = nl.ndarray((1, width), dtype=nl.float32, buffer=nl.shared_hbm)
    scale = load_repeated(scale_1D, rows, width)
    # A sum for each partition, added up over tiles; partitions are summed once, at the end.
    dscale = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=dscale, value=0.0)

    def differentiate(i):
        x = load_rows(x_MPD, i, 0, rows, width)
        dy = load_rows(dy_MPD, i, 0, rows, width)
        product = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
        factor = _factor(x, epsilon, product)
        normal = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=normal, data=x, op0=nl.multiply, operand0=factor)
        nisa.tensor_tensor(dst=product, data1=dy, data2=normal, op=nl.multiply)
        nisa.tensor_tensor(dst=dscale, data1=dscale, data2=product, op=nl.add)
        nisa.tensor_tensor(dst=product, data1=product, data2=scale, op=nl.multiply)
        along = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=along, op=nl.add, data=product, axis=1, keepdims=True)
        nisa.tensor_scalar(
            dst=normal,
            data=normal,
            op0=nl.multiply,
            operand0=along,
            op1=nl.multiply,
            operand1=1.0 / width,
        )
        nisa.tensor_tensor(dst=product, data1=dy, data2=scale, op=nl.multiply)
        nisa.tensor_tensor(dst=product, data1=product, data2=normal, op=nl.subtract)
        dx = nl.ndarray((rows, width), dtype=x_MPD.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=dx, data=product, op0=nl.multiply, operand0=factor)
        store_rows(dx_MPD, i, 0, dx)

    nl.fori_loop(0, num_tiles, differentiate)
    _store_sum_over_rows(dscale_1D, dscale)
    return dx_MPD, dscale_1D


def _factor(x, epsilon, squares):
    """Return what each row of a tile is multiplied by to be normal; `squares` is overwritten."""
    rows, width = x.shape
    total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(
        dst=squares,
        op=nl.square,
        data=x,
        reduce_op=nl.add,
        reduce_res=total,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    factor = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=factor, op=nl.rsqrt, data=total, scale=1.0 / width, bias=epsilon)
    return factor


def _store_sum_over_rows(total_1D, tile):
    """Write the sum over partitions, which only products reach across."""
    rows, width = tile.shape
    # Engines but the Tensor Engine work within partitions.
    ones = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    for start in range(0, width, SUM_COLUMNS):
        stop = min(start + SUM_COLUMNS, width)
        total = nl.ndarray((1, stop - start), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=total, stationary=ones, moving=tile[:, start:stop], accumulate=False)
        row = nl.ndarray((1, stop - start), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=row, src=total)
        nisa.dma_copy(dst=total_1D[:, start:stop], src=row)
