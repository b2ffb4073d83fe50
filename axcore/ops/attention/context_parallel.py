"""Attention where time is split over devices: three ways, which give the same numbers.

A device holds some of the queries, and needs keys and values that others hold. `all_gather` brings
them all to every device; `ring` passes them round, a part at a time, so that none ever holds all;
`ulysses` redistributes arrays, so that each device has full rows of a part of the heads.
Positions, windows, segments and key ranges mean what they mean on one device.

Letters: B batch, T queries, S keys, N query heads, K key heads, H key width, V value width.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import jax
import jax.numpy as jnp
from jax import Array

from axcore.errors import ShardingError
from axcore.ops.attention.op import (
    ATTENTION_OP,
    HEADS,
    AttentionInputs,
    AttentionSpec,
    attention_sharding,
)
from axcore.ops.attention.ring import check_ring, ring_attention
from axcore.parallel.activations import ContextParallelism, context_parallelism
from axcore.parallel.shard_op import Partition

Outputs = tuple[Array, Array]


@attrs.frozen(eq=False)
class _WholeCall:
    """A call whose time is split, and how all of it is."""

    inputs: AttentionInputs
    spec: AttentionSpec
    with_lse: bool
    partition: Partition

    @classmethod
    def of(cls, inputs: AttentionInputs, spec: AttentionSpec, *, with_lse: bool) -> "_WholeCall":
        declared = attention_sharding(inputs, spec)
        split = ("batch", "time", HEADS)
        return cls(inputs, spec, with_lse, Partition.of(split, inputs, declared.inputs))

    def in_parts(self, attend: Callable[[AttentionInputs], Outputs]) -> Outputs:
        """Return the outputs of `attend`, which every device calls with its own part."""
        declared = attention_sharding(self.inputs, self.spec)
        in_specs = (self.partition.specs(self.inputs, declared.inputs),)
        outputs: Outputs = self.partition.run(attend, in_specs, self.output_specs())(self.inputs)
        return outputs

    def output_specs(self) -> tuple[Any, Any]:
        """Return how the output and the log-sum-exp are split."""
        o_BTNV, lse_BTN = attention_sharding(self.inputs, self.spec).outputs
        return self.partition.spec(o_BTNV), self.partition.spec(lse_BTN)


def context_parallel_attention(
    inputs: AttentionInputs, spec: AttentionSpec, *, with_lse: bool
) -> Outputs:
    """Return `(o_BTNV, lse_BTN)`, in the form that the sharding in force names.

    A call whose time is whole, or does not divide, is left to its kernels, and so is one with
    dropout, which is counted by places in full arrays.

    Raises:
        ShardingError: The call cannot be run in that form.
        KernelError: No kernel can serve what each device has to compute.
    """
    form = context_parallelism()
    # Places of a part begin at 0, so that each would drop the entries of the first one.
    if form is not None and inputs.dropout_seeds_BN is None:
        call = _WholeCall.of(inputs, spec, with_lse=with_lse)
        if call.partition.axes["time"]:
            return _FORMS[form](call)
    return ATTENTION_OP.run(inputs, spec, lse=with_lse)


def _all_gather(call: _WholeCall) -> Outputs:
    def on_device(part: AttentionInputs) -> Outputs:
        first_query = jnp.asarray(call.partition.index("time")) * part.q_BTNH.shape[1]
        # The place of a device's queries is known at run time only: one program runs on all
        # devices.
        offset_B = jnp.broadcast_to(first_query.astype(jnp.int32), part.q_BTNH.shape[:1])
        if part.query_offset_B is not None:
            offset_B = offset_B + part.query_offset_B.astype(jnp.int32)
        keys = (part.k_BSKH, part.v_BSKV, part.k_segments_BS)
        k, v, k_segments = (_gathered(x, call.partition.axes["time"]) for x in keys)
        whole = part._replace(k_BSKH=k, v_BSKV=v, k_segments_BS=k_segments, query_offset_B=offset_B)
        return ATTENTION_OP.run(whole, call.spec, lse=call.with_lse)

    return call.in_parts(on_device)


def _gathered(x: Any, names: tuple[str, ...]) -> Any:
    return None if x is None else jax.lax.all_gather(x, names, axis=1, tiled=True)


def _ring(call: _WholeCall) -> Outputs:
    check_ring(call.inputs, call.spec)
    names, num_parts = call.partition.axes["time"], call.partition.ways("time")
    return call.in_parts(lambda part: ring_attention(part, call.spec, names, num_parts))


def _ulysses(call: _WholeCall) -> Outputs:
    partition, num_heads = call.partition, call.inputs.k_BSKH.shape[2]
    names = (*partition.axes[HEADS], *partition.axes["time"])
    by_heads = attrs.evolve(partition, axes={**partition.axes, "time": (), HEADS: names})
    assert partition.mesh is not None
    # Key heads, as a device with a query head needs its keys.
    if num_heads % by_heads.ways(HEADS):
        raise ShardingError(
            f"attention with {num_heads} key heads cannot be split by heads over "
            f"{' x '.join(f'{name} {partition.mesh.shape[name]}' for name in names)}",
            where="sharding.context_parallelism",
            hint="--set sharding.context_parallelism=all_gather, or ring",
        )

    def on_device(part: AttentionInputs) -> Outputs:
        return ATTENTION_OP.run(part, call.spec, lse=call.with_lse)

    o_BTNV, lse_BTN = attrs.evolve(call, partition=by_heads).in_parts(on_device)
    back_BTNV, back_BTN = (
        jax.sharding.NamedSharding(partition.mesh, spec) for spec in call.output_specs()
    )
    return (
        # Without it the compiler may leave heads split, and exchange arrays later, at a worse
        # place.
        jax.lax.with_sharding_constraint(o_BTNV, back_BTNV),  # type: ignore[no-untyped-call]
        jax.lax.with_sharding_constraint(lse_BTN, back_BTN),  # type: ignore[no-untyped-call]
    )


_FORMS: Mapping[ContextParallelism, Callable[[_WholeCall], Outputs]] = {
    "all_gather": _all_gather,
    "ring": _ring,
    "ulysses": _ulysses,
}
