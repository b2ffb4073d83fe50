# ruff: noqa: N815 - fields carry shape letters
"""Ring attention: keys and values go round the devices, and each adds what it sees of them.

What a device computes at each stop is in `layouts`. Outputs of tiles are put together by their
log-sum-exps. Backward sends keys round once more, with their gradients beside them, and computes
each tile again: no device ever holds all keys.

Letters: B batch, T queries and keys of one device, N query heads, K key heads, H key width,
V value width.

Source: Liu et al. 2023, arXiv:2310.01889.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import attrs
import jax
import jax.numpy as jnp
from jax import Array, lax

from axcore.errors import ShardingError
from axcore.ops.attention.block_math import finite_lse, row_delta, sink_gradient
from axcore.ops.attention.context_parallel.layouts import (
    Devices,
    Layout,
    Names,
    Stop,
    Tile,
    layout_for,
)
from axcore.ops.attention.kernels import run_attention
from axcore.ops.attention.types import AttentionInputs, AttentionSpec
from axcore.ops.control_flow import branch
from axcore.ops.residuals import name_attention_residuals

T = TypeVar("T")


def check_ring(inputs: AttentionInputs, spec: AttentionSpec) -> None:
    """Checks that a call is self-attention over whole rows, without a bias.

    Raises:
        ShardingError: It is not.
    """
    num_queries, num_keys = inputs.q_BTNH.shape[1], inputs.k_BSKH.shape[1]
    has_offset = spec.query_offset != 0 or inputs.query_offset_B is not None
    reasons = {
        f"{num_queries} queries of {num_keys} keys": num_queries != num_keys,
        "an offset of the queries": has_offset,
        "a bias": inputs.bias_BNTS is not None,
    }
    for reason, is_so in reasons.items():
        if is_so:
            raise ShardingError(
                f"attention with {reason} cannot be passed round a ring of devices",
                where="sharding.context_parallelism",
                hint="--set sharding.context_parallelism=all_gather",
            )


_Residuals = tuple[AttentionInputs, Array, Array]


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def ring_attention(
    part: AttentionInputs, spec: AttentionSpec, names: Names, num_parts: int
) -> tuple[Array, Array]:
    """Returns `(o_BTNV, lse_BTN)` of a device's own queries; for use inside of a `shard_map`.

    Args:
        part: The device's part of a call that `check_ring` passes.
        spec: The static choices of the whole call.
        names: Mesh axes over which time is split.
        num_parts: Number of devices in the ring.
    """
    outputs, _ = _forward(part, spec, names, num_parts)
    return outputs


def _forward(
    part: AttentionInputs, spec: AttentionSpec, names: Names, num_parts: int
) -> tuple[tuple[Array, Array], _Residuals]:
    ring = _Ring.of(part, spec, names, num_parts)
    o, lse = _nothing(part)
    if part.sinks_N is not None:
        lse = jnp.broadcast_to(part.sinks_N.astype(jnp.float32)[None, None], lse.shape)
    moving, at = ring.own_keys(), 0
    for stop in ring.layout.stops():
        moving, at = ring.devices.moved(moving, stop.distance - at), stop.distance
        for tile in stop.tiles:
            new = _merged(tile.of_queries((o, lse)), ring.attended(stop, tile, moving))
            o, lse = (_put(x, y, tile.first_query) for x, y in zip((o, lse), new, strict=True))
    o, lse = ring.layout.restored((o.astype(part.q_BTNH.dtype), lse))
    o, lse = name_attention_residuals(o, lse)
    return (o, lse), (part, o, lse)


def _nothing(part: AttentionInputs) -> tuple[Array, Array]:
    """Returns the float32 output and log-sum-exp of queries that saw no key."""
    shape = part.q_BTNH.shape[:3]
    o_BTNV = jnp.zeros((*shape, part.v_BSKV.shape[-1]), jnp.float32)
    return o_BTNV, jnp.full(shape, -jnp.inf, jnp.float32)


def _merged(old: tuple[Array, Array], new: tuple[Array, Array]) -> tuple[Array, Array]:
    lse = jnp.logaddexp(old[1], new[1])
    kept, added = (jnp.exp(part[1] - finite_lse(lse))[..., None] for part in (old, new))
    return old[0] * kept + new[0] * added, lse


def _put(x: Array, new: Array, first: Array | int) -> Array:
    return lax.dynamic_update_slice_in_dim(x, new, first, axis=1)


def _backward(
    spec: AttentionSpec,
    names: Names,
    num_parts: int,
    residuals: _Residuals,
    gradients: tuple[Array, Array],
) -> tuple[AttentionInputs]:
    part, o_BTNV, lse_BTN = residuals
    ring = _Ring.of(part, spec, names, num_parts)
    delta_BTN = row_delta(o_BTNV, *gradients)
    outer = ring.layout.arranged(_Outer(gradients[0], delta_BTN, lse_BTN))
    moving, at = ring.own_keys(), 0
    dq, dk, dv = (jnp.zeros(x.shape, jnp.float32) for x in part[:3])
    for stop in ring.layout.stops():
        shift, at = stop.distance - at, stop.distance
        moving, dk, dv = ring.devices.moved((moving, dk, dv), shift)
        for tile in stop.tiles:
            new = ring.gradients(stop, tile, moving, outer)
            firsts = (tile.first_query, tile.first_key, tile.first_key)
            dq, dk, dv = map(_added, (dq, dk, dv), new, firsts)
    dk, dv = ring.devices.moved((dk, dv), num_parts - at)
    whole = (x.astype(y.dtype) for x, y in zip((dq, dk, dv), part[:3], strict=True))
    dq, dk, dv = ring.layout.restored(tuple(whole))
    sinks = sink_gradient(part.sinks_N, lse_BTN, delta_BTN)
    return (AttentionInputs(dq, dk, dv, sinks_N=sinks),)


def _added(x: Array, new: Array, first: Array | int) -> Array:
    old = lax.dynamic_slice_in_dim(x, first, new.shape[1], axis=1)
    return _put(x, old + new.astype(jnp.float32), first)


ring_attention.defvjp(_forward, _backward)


# -- One device of the ring ----------------------------------------------------------------------


class _Moving(NamedTuple):
    """What goes round: keys, values and their segments."""

    k_BSKH: Array
    v_BSKV: Array
    k_segments_BS: Array | None


class _Outer(NamedTuple):
    """The gradient of the whole output, what each row's is measured from, and its log-sum-exp."""

    do_BTNV: Array
    delta_BTN: Array
    lse_BTN: Array


@attrs.frozen(eq=False)
class _Ring:
    """A device's part of a call, arranged."""

    part: AttentionInputs
    devices: Devices
    layout: Layout

    @classmethod
    def of(
        cls, part: AttentionInputs, spec: AttentionSpec, names: Names, num_parts: int
    ) -> "_Ring":
        devices = Devices.of(names, num_parts)
        layout = layout_for(devices, spec, part.q_BTNH.shape[1])
        return cls(layout.arranged(part._replace(sinks_N=None)), devices, layout)

    def own_keys(self) -> _Moving:
        part = self.part
        return _Moving(part.k_BSKH, part.v_BSKV, part.k_segments_BS)

    def attended(self, stop: Stop, tile: Tile, moving: _Moving) -> tuple[Array, Array]:
        """Returns float32 output and log-sum-exp of a tile's queries over its keys."""
        inputs = self._inputs(stop, tile, moving)

        def see(spec: AttentionSpec | None) -> tuple[Array, Array]:
            if spec is None:
                return _nothing(inputs)
            o_BTNV, lse_BTN = run_attention(inputs, spec, with_lse=True)
            return o_BTNV.astype(jnp.float32), lse_BTN

        return self._either(stop, tile, see)

    def gradients(
        self, stop: Stop, tile: Tile, moving: _Moving, outer: _Outer
    ) -> tuple[Array, Array, Array]:
        """Returns the gradients of queries, keys and values that one tile adds.

        With `w = exp(lse_part - lse)`, the part's share of the softmax, the gradient of the part's
        output is `w do`, and that of its log-sum-exp `w (do . o_part - delta)`.
        """
        inputs = self._inputs(stop, tile, moving)
        arrays = (inputs.q_BTNH, inputs.k_BSKH, inputs.v_BSKV)
        do, delta_BTN, whole_lse_BTN = tile.of_queries(outer)
        do_BTNV = do.astype(jnp.float32)

        def see(spec: AttentionSpec | None) -> tuple[Array, Array, Array]:
            if spec is None:
                q, k, v = (jnp.zeros_like(x) for x in arrays)
                return q, k, v

            def attend(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
                replaced = inputs._replace(q_BTNH=q, k_BSKH=k, v_BSKV=v)
                return run_attention(replaced, spec, with_lse=True)

            (o_part, lse_part), pull_back = jax.vjp(attend, *arrays)
            share_BTN = jnp.exp(lse_part - finite_lse(whole_lse_BTN))
            along_BTN = jnp.sum(do_BTNV * o_part.astype(jnp.float32), axis=-1) - delta_BTN
            do_part = (share_BTN[..., None] * do_BTNV).astype(o_part.dtype)
            gradients: tuple[Array, Array, Array] = pull_back((do_part, share_BTN * along_BTN))
            return gradients

        return self._either(stop, tile, see)

    def _either(self, stop: Stop, tile: Tile, see: Callable[[AttentionSpec | None], T]) -> T:
        """Returns what this device, by its rank, sees of a tile."""
        if tile.behind == tile.around:
            return see(tile.behind)
        is_behind = self.devices.rank >= stop.distance
        return branch(is_behind, lambda: see(tile.behind), lambda: see(tile.around))

    def _inputs(self, stop: Stop, tile: Tile, moving: _Moving) -> AttentionInputs:
        """Returns a tile's queries with its keys, counted from the first of them."""
        part = self.part
        queries = (part.q_BTNH, part.q_segments_BT, part.k_start_BT, part.k_end_BT)
        q, q_segments, *key_range = tile.of_queries(queries)
        k, v, k_segments = tile.of_keys(moving)

        def count(places_BT: Array) -> Array:
            rank = (self.devices.rank - stop.distance) % self.devices.num
            held = self.layout.keys_before(places_BT.astype(jnp.int32), rank)
            return jnp.clip(held - tile.first_key, 0, tile.length)

        return AttentionInputs(q, k, v, q_segments, k_segments, *jax.tree.map(count, key_range))
