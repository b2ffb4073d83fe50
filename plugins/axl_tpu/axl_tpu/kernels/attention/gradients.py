"""What the backward kernels of flash attention share: the row delta, and the work of one visit.

Probabilities are computed again from the log-sum-exp. Where gradients of keys are summed, scores
are keys by queries, so that products with queries need no transposed scores. The row delta,
`sum(do * o)`, is what gradients of logits are measured from: its kernel reads heads where they are
stored next to each other, of which the compiler would make copies turned around, and writes rows,
as the kernels after it read them.

Letters: B batch, T queries, N heads, Q queries and J keys of a block, C queries of a block of one
head, H key width, V value width.

Source: Dao et al. 2022, arXiv:2205.14135, appendix B.2.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from axl_tpu.kernels.attention.block import (
    HIDDEN,
    BlockShape,
    capped,
    dropout,
    inside,
    matmul,
    visible,
)
from axl_tpu.kernels.attention.block_schedule import LANES, LIVE, MASKED, has
from axl_tpu.kernels.attention.operands import Heads, Operands


class KeyGradients(NamedTuple):
    """What one visit adds to the gradients of its keys and values, float32; and what led to it."""

    dk: Array
    dv: Array
    k: Array
    ds: Array
    """Gradient of the scaled scores, `[J, Q]`."""


def key_gradients(
    block: BlockShape,
    refs: Operands,
    k_segments: Any,
    *,
    b: Array,
    n: Array,
    i: Array,
    j: Array,
    is_masked: bool,
) -> KeyGradients:
    """Return the gradients of a visit by keys; `k_segments` refers to a column, or is None."""
    q, k, v, do = refs.q[...], refs.k[...], refs.v[...], refs.do[...]
    lse, delta = refs.lse[...], refs.delta[...]
    queries, keys = block.cut.queries, block.cut.keys
    mask = None
    if is_masked:
        if queries.is_padded:
            # Rows past the last query are summed over here; in VMEM they hold whatever was there.
            q, do = (inside(x, i * queries.size, queries.length) for x in (q, do))
            lse, delta = (inside(x, i * queries.size, queries.length, axis=1) for x in (lse, delta))
        if keys.is_padded:
            k, v = (inside(x, j * keys.size, keys.length) for x in (k, v))
        segments = None if k_segments is None else k_segments[...]
        offset = refs.offset_of(b, block.spec)
        mask = visible(block, i, j, offset=offset, queries=refs, k_segments=segments)
    factor = None if refs.seeds is None else dropout(block, i, j, refs.seeds[b, n])
    kept, ds = probabilities_and_ds(
        block,
        matmul(k, q, (1, 1)),
        matmul(v, do, (1, 1)),
        mask=mask,
        factor=factor,
        lse=lse,
        delta=delta,
    )
    dv = matmul(kept.astype(do.dtype), do, (1, 0))
    # The matrix unit's fast form takes 16 bits; the difference that makes it small was taken in
    # float32.
    ds = ds.astype(q.dtype)
    return KeyGradients(dk=matmul(ds, q, (1, 0)), dv=dv, k=k, ds=ds)


def probabilities_and_ds(
    block: BlockShape,
    scores: Array,
    dp: Array,
    *,
    mask: Array | None,
    factor: Array | None,
    lse: Array,
    delta: Array,
) -> tuple[Array, Array]:
    """Return the probabilities that dropout kept, and the gradient of scaled scores; float32."""
    logits, tanh = capped(scores, block.spec)
    if mask is not None:
        # exp2(HIDDEN - lse) is 0 for any finite lse, that of rows which saw nothing included:
        # theirs comes as 0.
        logits = jnp.where(mask, logits, HIDDEN)
    p = jnp.exp2(logits - lse)
    kept = p
    if factor is not None:
        # `ds` takes `p` without the dropout factor: dropout comes after the softmax, whose
        # derivative needs all its weights. `delta` has the factor through the output.
        kept, dp = p * factor, dp * factor
    ds = p * (dp - delta)
    return kept, ds if tanh is None else ds * (1.0 - tanh * tanh)


def when_active(code: Array, visit: Any) -> None:
    """Run `visit` where it shows anything, with a mask where it does not show all."""
    is_masked = has(code, MASKED)
    pl.when(has(code, LIVE) & is_masked)(partial(visit, is_masked=True))
    pl.when(has(code, LIVE) & ~is_masked)(partial(visit, is_masked=False))


BLOCK = 2048
"""Queries of a block: half a MiB of bfloat16 at a width of 128."""


def row_delta_of(o: Array, do: Array, heads: Heads, *, interpret: Any) -> Array:
    """Return float32 `[B, N, 1, T]` from two arrays of heads side by side, `[B, T, N * V]`."""
    batch, tokens, _ = o.shape
    size = min(BLOCK, -(-tokens // LANES) * LANES)
    block = pl.BlockSpec(heads.block(size), lambda b, n, i: heads.place(b, n, i))
    delta_BN1T: Array = pl.pallas_call(
        _kernel,
        out_shape=jax.ShapeDtypeStruct((batch, heads.num, 1, tokens), jnp.float32),
        grid=(batch, heads.num, -(-tokens // size)),
        in_specs=[block, block],
        out_specs=pl.BlockSpec((None, None, 1, size), lambda b, n, i: (b, n, 0, i)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",) * 3),
        interpret=interpret,
        name="tpu_row_delta",
    )(o, do)
    return delta_BN1T


def _kernel(o_ref: Any, do_ref: Any, delta_ref: Any) -> None:
    # Transposed, so that the sum is over rows of registers and comes out along lanes, as a row.
    products_CV = do_ref[...].astype(jnp.float32) * o_ref[...].astype(jnp.float32)
    delta_ref[...] = jnp.sum(products_CV.T, axis=0, keepdims=True)
