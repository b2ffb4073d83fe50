"""Flash attention by cuDNN, differentiable: what both forms of it, masked and packed, share.

What forward leaves for backward is named, so that remat can save it. Letters as in `cudnn_call`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import Array

from axcore.module import named
from axcore.ops import ATTENTION_LSE, ATTENTION_OUT
from axl_gpu.kernels.attention.cudnn_call import (
    FlashArrays,
    FlashSpec,
    flash_backward,
    flash_forward,
)


class Library(NamedTuple):
    """The halves of flash attention: functions like `flash_forward` and `flash_backward`."""

    forward: Callable[..., tuple[Array, Array]]
    backward: Callable[..., tuple[Array, Array, Array]]


CUDNN = Library(flash_forward, flash_backward)


def flash(arrays: FlashArrays, spec: FlashSpec, library: Library = CUDNN) -> Array:
    """Return the output `[B, T, N, V]`; queries, keys and values have gradients, a bias has none.

    Args:
        arrays: Of the call.
        spec: Its static choices.
        library: cuDNN, or what stands in for it where there is no GPU.
    """
    others = arrays[3:]

    @jax.custom_vjp
    def run(q_BTNH: Array, k_BSKH: Array, v_BSKV: Array, others: _Others) -> Array:
        return library.forward(FlashArrays(q_BTNH, k_BSKH, v_BSKV, *others), spec)[0]

    def forward(
        q_BTNH: Array, k_BSKH: Array, v_BSKV: Array, others: _Others
    ) -> tuple[Array, tuple[FlashArrays, Array, Array]]:
        arrays = FlashArrays(q_BTNH, k_BSKH, v_BSKV, *others)
        o_BTNV, lse_PNT = library.forward(arrays, spec)
        # Named inside of the forward rule: names outside would be of copies that no residual
        # refers to, and remat would run cuDNN's forward pass again.
        o_BTNV, lse_PNT = named(o_BTNV, ATTENTION_OUT), named(lse_PNT, ATTENTION_LSE)
        return o_BTNV, (arrays, o_BTNV, lse_PNT)

    def backward(
        residuals: tuple[FlashArrays, Array, Array], do_BTNV: Array
    ) -> tuple[Array, Array, Array, None]:
        arrays, o_BTNV, lse_PNT = residuals
        gradients = library.backward(arrays, spec, o_BTNV=o_BTNV, lse_PNT=lse_PNT, do_BTNV=do_BTNV)
        return *gradients, None

    run.defvjp(forward, backward)
    o_BTNV: Array = run(*arrays[:3], others)
    return o_BTNV


_Others = tuple[Array | None, ...]
