"""Attention where time is split over devices: three ways, which give the same numbers.

A device holds some of the queries, and needs keys and values that others hold. `gather` brings
them all to every device; `ring` passes them round, a part at a time, so that none ever holds all;
`heads` deals arrays out anew, so that each device has whole rows of a part of the heads. Positions,
windows, segments and key ranges mean what they mean on one device.

Letters: B batch, T queries, S keys, N query heads, K key heads, H key width, V value width.
"""

from typing import Any

import attrs
import jax
import jax.numpy as jnp
from jax import Array

from axcore.errors import ShardingError
from axcore.ops import AttentionInputs, AttentionSpec
from axcore.ops.attention_kernels import run_attention
from axcore.parallel.activations import SplitAttention
from axcore.parallel.attention_split import AttentionSplit, Names
from axcore.parallel.ring_attention import check_ring, ring_attention


@attrs.frozen
class AttentionOverTime:
    """Runs attention calls of a program whose activations may be split along `time`.

    A call whose time is whole, or does not divide, is left to the compiler and the kernel, and so
    is one with dropout, which is counted by places in whole arrays.
    """

    by: SplitAttention

    def __call__(
        self, inputs: AttentionInputs, spec: AttentionSpec, *, with_lse: bool
    ) -> tuple[Array, Array]:
        """Returns `(o_BTNV, lse_BTN)` of the whole call.

        Raises:
            ShardingError: The call cannot be run in this way.
            KernelError: No kernel can serve what each device has to compute.
        """
        split = AttentionSplit.of(inputs)
        if split is None or not split.time or inputs.dropout_seeds_BN is not None:
            return run_attention(inputs, spec, with_lse=with_lse)
        run = {"gather": _by_gathering, "ring": _by_a_ring, "heads": _by_heads}[self.by]
        return run(split, inputs, spec, with_lse=with_lse)


def _by_gathering(
    split: AttentionSplit, inputs: AttentionInputs, spec: AttentionSpec, *, with_lse: bool
) -> tuple[Array, Array]:
    def on_device(part: AttentionInputs) -> tuple[Array, Array]:
        first_query = jax.lax.axis_index(split.time) * part.q_BTNH.shape[1]
        offset_B = jnp.broadcast_to(first_query.astype(jnp.int32), part.q_BTNH.shape[:1])
        if part.query_offset_B is not None:
            offset_B = offset_B + part.query_offset_B.astype(jnp.int32)
        keys = (part.k_BSKH, part.v_BSKV, part.k_segments_BS)
        k, v, k_segments = (_gathered(x, split.time) for x in keys)
        whole = part._replace(k_BSKH=k, v_BSKV=v, k_segments_BS=k_segments, query_offset_B=offset_B)
        return run_attention(whole, spec, with_lse=with_lse)

    outputs: tuple[Array, Array] = split.in_parts(on_device, inputs, split.output_specs())
    return outputs


def _gathered(x: Any, names: Names) -> Any:
    return None if x is None else jax.lax.all_gather(x, names, axis=1, tiled=True)


def _by_a_ring(
    split: AttentionSplit, inputs: AttentionInputs, spec: AttentionSpec, *, with_lse: bool
) -> tuple[Array, Array]:
    check_ring(inputs, spec)

    def on_device(part: AttentionInputs) -> tuple[Array, Array]:
        return ring_attention(part, spec, split.time, split.ways(split.time))

    outputs: tuple[Array, Array] = split.in_parts(on_device, inputs, split.output_specs())
    return outputs


def _by_heads(
    split: AttentionSplit, inputs: AttentionInputs, spec: AttentionSpec, *, with_lse: bool
) -> tuple[Array, Array]:
    names = (*split.heads, *split.time)
    num_heads = inputs.k_BSKH.shape[2]
    if num_heads % split.ways(names):
        raise ShardingError(
            f"attention with {num_heads} key heads cannot be split by heads over "
            f"{' x '.join(f'{name} {split.mesh.shape[name]}' for name in names)}",
            where="split_attention",
            mend="--set split_attention=gather, or ring",
        )
    by_heads = attrs.evolve(split, time=(), heads=names)

    def on_device(part: AttentionInputs) -> tuple[Array, Array]:
        return run_attention(part, spec, with_lse=with_lse)

    outputs: tuple[Array, Array] = by_heads.in_parts(on_device, inputs, by_heads.output_specs())
    back_BTNV, back_BTN = (jax.sharding.NamedSharding(split.mesh, s) for s in split.output_specs())
    o_BTNV, lse_BTN = outputs
    return (
        jax.lax.with_sharding_constraint(o_BTNV, back_BTNV),  # type: ignore[no-untyped-call]
        jax.lax.with_sharding_constraint(lse_BTN, back_BTN),  # type: ignore[no-untyped-call]
    )
