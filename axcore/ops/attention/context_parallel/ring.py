# ruff: noqa: N815 - fields carry shape letters
"""Ring attention: keys and values go round the devices, and each adds what it sees of them.

At stop `i` the device of rank `r` holds the keys of rank `r - i`, or of rank `r - i + n` where that
is below zero. So the distance between its queries and those keys is one of two numbers known
before anything runs: kernels see static offsets, parts that causality and window hide cost nothing,
and stops at which no device would see anything are left out.

Outputs of parts are put together by their log-sum-exps. Backward sends keys round once more, with
their gradients beside them, and computes each part again: no device ever holds all keys.

Letters: B batch, T queries and keys of one device, N query heads, K key heads, H key width,
V value width.

Source: Liu et al. 2023, arXiv:2310.01889.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

import attrs
import jax
import jax.numpy as jnp
from jax import Array, lax

from axcore.errors import ShardingError
from axcore.ops.attention.block_math import finite_lse, row_delta, sink_gradient
from axcore.ops.attention.kernels import run_attention
from axcore.ops.attention.types import AttentionInputs, AttentionSpec
from axcore.ops.control_flow import branch
from axcore.ops.residuals import name_attention_residuals

Names = tuple[str, ...]
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
                where="context_parallelism",
                hint="--set context_parallelism=all_gather",
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
    for stop in ring.stops():
        moving, at = ring.moved(moving, stop.distance - at), stop.distance
        o, lse = _merged((o, lse), ring.attended(stop, moving))
    o, lse = name_attention_residuals(o.astype(part.q_BTNH.dtype), lse)
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


def _backward(
    spec: AttentionSpec,
    names: Names,
    num_parts: int,
    residuals: _Residuals,
    gradients: tuple[Array, Array],
) -> tuple[AttentionInputs]:
    part, o_BTNV, lse_BTN = residuals
    ring = _Ring.of(part, spec, names, num_parts)
    outer = _Outer(gradients[0], row_delta(o_BTNV, *gradients), lse_BTN)
    moving, at = ring.own_keys(), 0
    dq, dk, dv = (jnp.zeros(x.shape, jnp.float32) for x in (part.q_BTNH, *moving[:2]))
    for stop in ring.stops():
        (moving, dk, dv), at = ring.moved((moving, dk, dv), stop.distance - at), stop.distance
        new = ring.gradients(stop, moving, outer)
        dq, dk, dv = (x + y.astype(jnp.float32) for x, y in zip((dq, dk, dv), new, strict=True))
    dk, dv = ring.moved((dk, dv), num_parts - at)
    return (
        AttentionInputs(
            q_BTNH=dq.astype(part.q_BTNH.dtype),
            k_BSKH=dk.astype(part.k_BSKH.dtype),
            v_BSKV=dv.astype(part.v_BSKV.dtype),
            sinks_N=sink_gradient(part.sinks_N, lse_BTN, outer.delta_BTN),
        ),
    )


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


class _Stop(NamedTuple):
    """Keys from `distance` ranks before, and how they are seen; None where they are not.

    `behind` is for devices whose keys come from a lower rank, or are their own, `around` for those
    whose keys come from a higher one.
    """

    distance: int
    behind: AttentionSpec | None
    around: AttentionSpec | None


@attrs.frozen(eq=False)
class _Ring:
    part: AttentionInputs
    spec: AttentionSpec
    names: Names
    num_parts: int
    rank: Array

    @classmethod
    def of(
        cls, part: AttentionInputs, spec: AttentionSpec, names: Names, num_parts: int
    ) -> "_Ring":
        return cls(part, spec, names, num_parts, lax.axis_index(names))

    @property
    def length(self) -> int:
        return self.part.q_BTNH.shape[1]

    def own_keys(self) -> _Moving:
        part = self.part
        return _Moving(part.k_BSKH, part.v_BSKV, part.k_segments_BS)

    def moved(self, tree: T, shift: int) -> T:
        """Returns what the device `shift` ranks before held."""
        if shift % self.num_parts == 0:
            return tree
        pairs = [(rank, (rank + shift) % self.num_parts) for rank in range(self.num_parts)]
        move = partial(lax.ppermute, axis_name=self.names, perm=pairs)
        moved: T = jax.tree.map(move, tree)
        return moved

    def stops(self) -> Iterator[_Stop]:
        """Yields the stops at which any device sees anything; the first is a device's own keys."""
        for distance in range(self.num_parts):
            behind = _seen(self.spec, distance * self.length, self.length)
            around = None
            if distance:
                around = _seen(self.spec, (distance - self.num_parts) * self.length, self.length)
            if behind is not None or around is not None:
                yield _Stop(distance, behind, around)

    def attended(self, stop: _Stop, moving: _Moving) -> tuple[Array, Array]:
        """Returns float32 output and log-sum-exp of the queries over the keys that are here."""
        inputs = self._inputs(stop, moving)

        def see(spec: AttentionSpec | None) -> tuple[Array, Array]:
            if spec is None:
                return _nothing(inputs)
            o_BTNV, lse_BTN = run_attention(inputs, spec, with_lse=True)
            return o_BTNV.astype(jnp.float32), lse_BTN

        return self._either(stop, see)

    def gradients(self, stop: _Stop, moving: _Moving, outer: _Outer) -> tuple[Array, Array, Array]:
        """Returns the gradients of queries, keys and values that one stop adds.

        With `w = exp(lse_part - lse)`, the part's share of the softmax, the gradient of the part's
        output is `w do`, and that of its log-sum-exp `w (do . o_part - delta)`.
        """
        inputs = self._inputs(stop, moving)
        arrays = (inputs.q_BTNH, inputs.k_BSKH, inputs.v_BSKV)

        def see(spec: AttentionSpec | None) -> tuple[Array, Array, Array]:
            if spec is None:
                q, k, v = (jnp.zeros_like(x) for x in arrays)
                return q, k, v

            def attend(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
                replaced = inputs._replace(q_BTNH=q, k_BSKH=k, v_BSKV=v)
                return run_attention(replaced, spec, with_lse=True)

            (o_part, lse_part), pull_back = jax.vjp(attend, *arrays)
            share_BTN = jnp.exp(lse_part - finite_lse(outer.lse_BTN))
            do_BTNV = outer.do_BTNV.astype(jnp.float32)
            along_BTN = jnp.sum(do_BTNV * o_part.astype(jnp.float32), axis=-1) - outer.delta_BTN
            do_part = (share_BTN[..., None] * do_BTNV).astype(o_part.dtype)
            gradients: tuple[Array, Array, Array] = pull_back((do_part, share_BTN * along_BTN))
            return gradients

        return self._either(stop, see)

    def _either(self, stop: _Stop, see: Callable[[AttentionSpec | None], T]) -> T:
        """Returns what this device, by its rank, sees at a stop."""
        if stop.distance == 0 or stop.behind == stop.around:
            return see(stop.behind)
        return branch(
            self.rank >= stop.distance, lambda: see(stop.behind), lambda: see(stop.around)
        )

    def _inputs(self, stop: _Stop, moving: _Moving) -> AttentionInputs:
        """Returns the queries with the keys that are here, counted from the first of them."""
        inputs = self.part._replace(sinks_N=None, **moving._asdict())
        start_BT, end_BT = self.part.k_start_BT, self.part.k_end_BT
        if start_BT is None or end_BT is None:
            return inputs
        first_key = (self.rank - stop.distance) % self.num_parts * self.length
        here = (jnp.clip(x - first_key.astype(x.dtype), 0, self.length) for x in (start_BT, end_BT))
        return inputs._replace(**dict(zip(("k_start_BT", "k_end_BT"), here, strict=True)))


def _seen(spec: AttentionSpec, offset: int, length: int) -> AttentionSpec | None:
    """Returns the choices for a square part whose first query is `offset` after its first key.

    A bound that hides nothing is left out, so that kernels without it may serve; None where bounds
    hide everything.
    """
    nearest, farthest = offset - (length - 1), offset + (length - 1)
    if spec.left is not None and nearest > spec.left:
        return None
    if spec.right is not None and -farthest > spec.right:
        return None
    left = None if spec.left is None or farthest <= spec.left else spec.left
    right = None if spec.right is None or -nearest <= spec.right else spec.right
    is_whole = left is None and right is None
    return attrs.evolve(spec, left=left, right=right, query_offset=0 if is_whole else offset)
