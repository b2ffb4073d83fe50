"""The attention op on TPU: the Pallas flash ("splash") attention that JAX ships, made to fit.

It takes self-attention over full rows: causal or not, windows, segments, soft cap, grouped heads.
Under a mesh each device works on its own rows and heads.

Letters: B batch, T queries, S keys, N query heads, K key heads, H key width, V value width.
"""

import itertools
import math
from collections.abc import Callable

import attrs
import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas.ops.tpu import splash_attention as splash

from axcore.ops import (
    ATTENTION_OP,
    ATTENTION_OUT,
    AttentionInputs,
    AttentionSpec,
    BlockSizeTable,
    Call,
    choose_block_sizes,
    power_of_two,
)
from axcore.plugins import Hardware

LANES = 128

MAX_WIDTH = 256
"""Largest head width whose tiles were seen to fit VMEM on every generation."""


@attrs.frozen
class SplashBlockSizes:
    """How splash cuts its rows into blocks.

    Args:
        max_block: Queries, and keys, of a block at most: a power of two from 128 on.
        fused_backward: Whether one kernel makes all gradients; XLA then sums those of queries over
            blocks of keys, each of which is as large as the queries.
    """

    max_block: int
    fused_backward: bool = False

    def block(self, num_tokens: int) -> int:
        """Return the largest such block that divides a number of tokens."""
        return math.gcd(self.max_block, num_tokens)


LARGE_BLOCK = 1024
"""Blocks that take the fewest cycles where they fit VMEM, by libtpu's schedules."""


def _default_block_sizes(call: Call, hardware: Hardware) -> SplashBlockSizes:
    """Return large blocks where libtpu was seen to take them, and no window is smaller.

    One kernel for all gradients takes fewer cycles than two, but not with libtpu's estimate of the
    sum (`benchmarks/tpu_kernels.py`).
    """
    width = max(call.shape(name)[-1] for name in ("k", "v"))
    left = call.feature("left")
    is_large = (
        hardware.generation in ("v5e", "v5p", "v6e")
        and call.dtype("q") == "bfloat16"
        and width <= LANES
        and (not isinstance(left, int) or left >= LARGE_BLOCK)
    )
    return SplashBlockSizes(LARGE_BLOCK if is_large else 512)


BLOCK_SIZES = BlockSizeTable(
    kernel="attention/splash_attention",
    package=__package__,
    default=_default_block_sizes,
    candidates=lambda call, hardware: itertools.starmap(
        SplashBlockSizes, itertools.product((256, 512, 1024, 2048), (False, True))
    ),
    bucket=lambda call: {
        "dtype": call.dtype("q"),
        "width": power_of_two(call.shape("q")[3]),
        "tokens": power_of_two(call.shape("q")[1]),
        "documents": call.has("q_segments"),
    },
)


def unsupported_reason(call: Call) -> str | None:
    """Return None where splash attention can serve the call, else the reason why not."""
    num_queries, num_keys = call.shape("q")[1], call.shape("k")[1]
    if call.dtype("q") not in ("bfloat16", "float32"):
        return f"takes bfloat16 and float32, not {call.dtype('q')}"
    if num_queries != num_keys:
        return f"takes as many keys as queries, not {num_queries} queries and {num_keys} keys"
    if num_queries % LANES:
        return f"takes multiples of {LANES} tokens, not {num_queries}"
    for name in ("k", "v"):
        width = call.shape(name)[-1]
        if width % 8 or width > MAX_WIDTH:
            return f"takes widths of {name} that are multiples of 8 up to {MAX_WIDTH}, not {width}"
    if call.feature("query_offset") or call.has("query_offset"):
        return "takes no query offset"
    for array in ("k_start", "bias", "sinks", "dropout_seeds"):
        if call.has(array):
            return f"takes no {array}"
    if call.feature("lse"):
        return "gives no log-sum-exp"
    return None


def splash_attention(
    inputs: AttentionInputs, spec: AttentionSpec, *, interpret: bool = False
) -> tuple[Array, Array]:
    """Return `(o_BTNV, zeros)`: `unsupported_reason` refuses calls that ask for the log-sum-exp.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: The call's static choices.
        interpret: Runs the kernel by an interpreter, on any device.
    """
    has_own_keys = inputs.q_segments_BT is inputs.k_segments_BS
    block_sizes = choose_block_sizes(BLOCK_SIZES, ATTENTION_OP.call(inputs, spec, lse=False))
    # splash has no scale of its own. In the queries' dtype, so that its products stay in 16 bits.
    q_BTNH = inputs.q_BTNH * jnp.asarray(spec.scale, inputs.q_BTNH.dtype)
    segments = _segments(inputs)
    heads_first = [jnp.swapaxes(x, 1, 2) for x in (q_BTNH, inputs.k_BSKH, inputs.v_BSKV)]
    _, length, num_heads, _ = q_BTNH.shape
    cut = _block_sizes(block_sizes.block(length), fused_backward=block_sizes.fused_backward)
    kernel = _kernel(spec, num_heads, length, block_sizes=cut, interpret=interpret)
    # splash takes one row of the batch; `vmap` adds an axis to its grid.
    o_BNTV: Array = jax.vmap(kernel)(*heads_first, segments)
    if segments is not None:
        # A query sees at least its own key, unless it is padding.
        sees_BT = segments.q != 0 if has_own_keys else _sees_anything(segments, spec)
        o_BNTV = jnp.where(sees_BT[:, None, :, None], o_BNTV, jnp.zeros((), o_BNTV.dtype))
    o_BTNV = jnp.swapaxes(o_BNTV, 1, 2)
    return o_BTNV, jnp.zeros(o_BTNV.shape[:-1], jnp.float32)


def _segments(inputs: AttentionInputs) -> splash.SegmentIds | None:
    if inputs.q_segments_BT is None or inputs.k_segments_BS is None:
        return None
    return splash.SegmentIds(q=inputs.q_segments_BT, kv=inputs.k_segments_BS)


def _kernel(
    spec: AttentionSpec,
    num_heads: int,
    length: int,
    *,
    block_sizes: splash.BlockSizes,
    interpret: bool,
) -> Callable[..., Array]:
    kernel: Callable[..., Array] = splash.make_splash_mha(
        splash.MultiHeadMask([_mask(spec, length)] * num_heads),
        block_sizes=block_sizes,
        attn_logits_soft_cap=spec.soft_cap,
        # By this name a remat policy keeps what splash's backward pass needs; otherwise it
        # computes forward again.
        residual_checkpoint_name=ATTENTION_OUT,
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    return kernel


def _block_sizes(size: int, *, fused_backward: bool) -> splash.BlockSizes:
    # The fused kernel refuses sizes for a kernel that it does not have.
    dq = None if fused_backward else size
    return splash.BlockSizes(
        block_q=size,
        block_kv=size,
        block_kv_compute=size,
        block_q_dkv=size,
        block_kv_dkv=size,
        block_kv_dkv_compute=size,
        block_q_dq=dq,
        block_kv_dq=dq,
        use_fused_bwd_kernel=fused_backward,
    )


def _mask(spec: AttentionSpec, length: int) -> splash.Mask:
    shape = (length, length)
    if spec.left is None and spec.right is None:
        return splash.FullMask(shape)
    if spec.left is None and spec.right == 0:
        return splash.CausalMask(shape)
    return splash.LocalMask(shape, window_size=(spec.left, spec.right), offset=0)


def _sees_anything(segments: splash.SegmentIds, spec: AttentionSpec) -> Array:
    """Return which queries `[B, T]` see any key; the kernel gives the others a mean of all keys.

    The comparison of all pairs is fused into the reduction; it is never stored.
    """
    length = segments.q.shape[1]
    place = jnp.arange(length)
    distance_TS = place[None, :] - place[:, None]
    near_TS = jnp.ones((length, length), bool)
    if spec.left is not None:
        near_TS &= distance_TS >= -spec.left
    if spec.right is not None:
        near_TS &= distance_TS <= spec.right
    same_BTS = segments.q[:, :, None] == segments.kv[:, None, :]
    return jnp.any(same_BTS & (segments.kv != 0)[:, None, :] & near_TS[None], axis=-1)
