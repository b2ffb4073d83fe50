"""Ring attention: keys and values go round the devices, and each adds what it sees of them.

Outputs of tiles are put together by their log-sum-exps. Backward sends keys round once more, with
their gradients next to them, and computes each tile again: no device ever holds all keys.

At stop `i` the device of rank `r` holds the keys of rank `r - i`, or of rank `r - i + n` where that
is below zero. Which tokens of a row a device works on is its layout:

`Contiguous` leaves each device the part that it has. The distance between its queries and the keys
at hand is one of two numbers known before anything runs: kernels see static offsets, parts that
causality and window hide cost nothing, and stops at which no device would see anything are left
out. But under causality alone a device sees keys of lower ranks only, and each stop takes as long
as the device that sees the most: `n - 1/2` blocks of T x T.

`Zigzag` is for causality alone. Of `2n` half parts, device `r` works on number `r`, its low half,
and on number `2n - 1 - r`, its high half. At every stop all devices then see as much: the high half
of the queries sees the low half of the keys; and the low half of the queries that of the keys where
these come from a lower rank, the high half of the queries that of the keys where they come from a
higher one. Both are full squares, so the ring takes `n/2` blocks, without a branch.

Letters: B batch, T queries and keys of one device, N query heads, K key heads, H key width,
V value width.

Source: Liu et al. 2023, arXiv:2310.01889; Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2
(zigzag).
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
from axcore.ops.attention.op import (
    ATTENTION_OP,
    AttentionInputs,
    AttentionSpec,
    name_attention_residuals,
)
from axcore.ops.blocks import branch

Names = tuple[str, ...]
Route = list[tuple[int, int]]
T = TypeVar("T")


class Tile(NamedTuple):
    """Consecutive queries, as many keys, and how these are seen; None where they are not.

    `behind` is for devices whose keys come from a lower rank, or are their own, `around` for those
    whose keys come from a higher one.
    """

    first_query: Array | int
    first_key: Array | int
    length: int
    behind: AttentionSpec | None
    around: AttentionSpec | None

    def of_queries(self, tree: T) -> T:
        """Return the tile's part of arrays of queries, `[B, T, ...]`."""
        return self._part(tree, self.first_query)

    def of_keys(self, tree: T) -> T:
        """Return the tile's part of arrays of keys, `[B, T, ...]`."""
        return self._part(tree, self.first_key)

    def _part(self, tree: T, first: Array | int) -> T:
        part: T = jax.tree.map(
            lambda x: lax.dynamic_slice_in_dim(x, first, self.length, axis=1), tree
        )
        return part


class Stop(NamedTuple):
    """Keys from `distance` ranks before, and the tiles that are computed of them."""

    distance: int
    tiles: tuple[Tile, ...]


@attrs.frozen(eq=False)
class Devices:
    """The devices of a ring, as one of them sees them; inside of a `shard_map`.

    Args:
        names: Mesh axes over which time is split.
        num: How many there are.
        rank: Which of them this one is.
    """

    names: Names
    num: int
    rank: Array

    @classmethod
    def of(cls, names: Names, num: int) -> "Devices":
        """Return those along the mesh axes."""
        return cls(names, num, lax.axis_index(names))

    def moved(self, tree: T, shift: int) -> T:
        """Return what the device `shift` ranks before held."""
        # A permutation of devices onto themselves would still be a collective in the program.
        if shift % self.num == 0:
            return tree
        return self.sent(tree, [(rank, (rank + shift) % self.num) for rank in range(self.num)])

    def sent(self, tree: T, pairs: Route) -> T:
        """Return what this device gets where the first rank of each pair sends to the second."""
        send = partial(lax.ppermute, axis_name=self.names, perm=pairs)
        sent: T = jax.tree.map(send, tree)
        return sent


@attrs.frozen(eq=False)
class Contiguous:
    """Each device works on the part that it has."""

    devices: Devices
    spec: AttentionSpec
    length: int

    def arranged(self, tree: T) -> T:
        """Return arrays `[B, T, ...]` of the tokens to work on, for those of the device's part."""
        return tree

    def restored(self, tree: T) -> T:
        """Return arrays of the device's part, for those of the tokens that it worked on."""
        return tree

    def keys_before(self, places: Array, rank: Array) -> Array:
        """Return how many keys of a rank are before places in the row."""
        return jnp.clip(places - rank * self.length, 0, self.length)

    def stops(self) -> Iterator[Stop]:
        """Yield the stops at which any device sees anything; the first is a device's own keys."""
        for distance in range(self.devices.num):
            behind = around = _seen(self.spec, distance * self.length, self.length)
            if distance:
                offset = (distance - self.devices.num) * self.length
                around = _seen(self.spec, offset, self.length)
            if behind is not None or around is not None:
                yield Stop(distance, (Tile(0, 0, self.length, behind, around),))


def _seen(spec: AttentionSpec, offset: int, length: int) -> AttentionSpec | None:
    """Return the choices for a square part whose first query is `offset` after its first key.

    A bound that hides nothing is left out, so that kernels without it may serve; None where bounds
    hide everything.
    """
    # Distances of queries from keys: the first query to the last key, and the last to the first.
    nearest, farthest = offset - (length - 1), offset + (length - 1)
    if spec.left is not None and nearest > spec.left:
        return None
    if spec.right is not None and -farthest > spec.right:
        return None
    left = None if spec.left is None or farthest <= spec.left else spec.left
    right = None if spec.right is None or -nearest <= spec.right else spec.right
    is_whole = left is None and right is None
    return attrs.evolve(spec, left=left, right=right, query_offset=0 if is_whole else offset)


@attrs.frozen(eq=False)
class Zigzag:
    """Each device works on two half parts, of which one has as much to see as the other lacks."""

    devices: Devices
    spec: AttentionSpec
    length: int

    @property
    def half(self) -> int:
        """Number of tokens of a half part."""
        return self.length // 2

    def arranged(self, tree: T) -> T:
        """Return arrays `[B, T, ...]` of the tokens to work on, for those of the device's part."""
        arranged: T = jax.tree.map(lambda x: self._low_first(self._sent(x, self._routes())), tree)
        return arranged

    def restored(self, tree: T) -> T:
        """Return arrays of the device's part, for those of the tokens that it worked on."""
        back = [[(owner, rank) for rank, owner in route] for route in self._routes()]
        restored: T = jax.tree.map(lambda x: self._sent(self._low_first(x), back), tree)
        return restored

    def keys_before(self, places: Array, rank: Array) -> Array:
        """Return how many keys of a rank are before places in the row."""
        starts = (rank * self.half, (2 * self.devices.num - 1 - rank) * self.half)
        low, high = (jnp.clip(places - start, 0, self.half) for start in starts)
        return low + high

    def stops(self) -> Iterator[Stop]:
        """Yield the stops; the first is a device's own keys."""
        yield Stop(0, (Tile(0, 0, self.length, self.spec, self.spec),))
        whole = attrs.evolve(self.spec, right=None)
        for distance in range(1, self.devices.num):
            # A slice at a place known at run time, of a static size: both halves' tiles are the
            # same program.
            same = jnp.where(self.devices.rank >= distance, 0, self.half)
            tiles = (
                Tile(self.half, 0, self.half, whole, whole),
                Tile(same, same, self.half, whole, whole),
            )
            yield Stop(distance, tiles)

    def _routes(self) -> list[Route]:
        """Return where each rank sends the first half of its part, and where the second.

        First halves have even numbers, second halves odd ones, and of a device's two numbers one is
        even: each gets one half by each route.
        """
        num = self.devices.num
        numbers = ([(rank, 2 * rank + which) for rank in range(num)] for which in (0, 1))
        return [[(rank, min(one, 2 * num - 1 - one)) for rank, one in of] for of in numbers]

    def _sent(self, x: Array, routes: list[Route]) -> Array:
        halves = zip(jnp.split(x, 2, axis=1), routes, strict=True)
        return jnp.concatenate([self.devices.sent(*half) for half in halves], axis=1)

    def _low_first(self, x: Array) -> Array:
        """Return an array with its halves swapped where the rank, and so the low one, is odd."""
        return jnp.where(self.devices.rank % 2 == 1, jnp.roll(x, self.half, axis=1), x)


Layout = Contiguous | Zigzag


def layout_for(devices: Devices, spec: AttentionSpec, length: int) -> Layout:
    """Return the layout in which a call takes the least time.

    Args:
        devices: The ring.
        spec: The static choices of the full call.
        length: Number of tokens that each device has.
    """
    is_causal_alone = spec.left is None and spec.right == 0
    kind = Zigzag if is_causal_alone and length % 2 == 0 else Contiguous
    return kind(devices, spec, length)


def check_ring(inputs: AttentionInputs, spec: AttentionSpec) -> None:
    """Check that a call is self-attention over full rows, without a bias.

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
    """Return `(o_BTNV, lse_BTN)` of a device's own queries; for use inside of a `shard_map`.

    Args:
        part: The device's part of a call that `check_ring` passes.
        spec: The static choices of the full call.
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
        # Sinks are seen once, before the ring, and not by each part's kernel, which would count
        # them at every stop.
        lse = jnp.broadcast_to(part.sinks_N.astype(jnp.float32)[None, None], lse.shape)
    moving, at = ring.own_keys(), 0
    for stop in ring.layout.stops():
        # What is sent depends on no tile, so that the compiler may overlap it with those of the
        # stop before. Stops that nobody needs are passed in one send.
        moving, at = ring.devices.moved(moving, stop.distance - at), stop.distance
        for tile in stop.tiles:
            new = _merged(tile.of_queries((o, lse)), ring.attended(stop, tile, moving))
            o, lse = (_put(x, y, tile.first_query) for x, y in zip((o, lse), new, strict=True))
    # In the order of the row again before names are given, so that what remat keeps is what
    # everything outside sees.
    o, lse = ring.layout.restored((o.astype(part.q_BTNH.dtype), lse))
    o, lse = name_attention_residuals(o, lse)
    return (o, lse), (part, o, lse)


def _nothing(part: AttentionInputs) -> tuple[Array, Array]:
    """Return the float32 output and log-sum-exp of queries that saw no key."""
    shape = part.q_BTNH.shape[:3]
    o_BTNV = jnp.zeros((*shape, part.v_BSKV.shape[-1]), jnp.float32)
    return o_BTNV, jnp.full(shape, -jnp.inf, jnp.float32)


def _merged(old: tuple[Array, Array], new: tuple[Array, Array]) -> tuple[Array, Array]:
    lse = jnp.logaddexp(old[1], new[1])
    # Both may be -inf where neither saw a key: by a finite log-sum-exp their shares are exp(-inf)
    # = 0.
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
    # Of the full output, before arranging: each tile's gradients of logits are measured from it.
    delta_BTN = row_delta(o_BTNV, *gradients)
    outer = ring.layout.arranged(_Outer(gradients[0], delta_BTN, lse_BTN))
    moving, at = ring.own_keys(), 0
    # Float32 while they travel: each stop adds to them, and 16 bits would round as often as there
    # are devices.
    dq, dk, dv = (jnp.zeros(x.shape, jnp.float32) for x in part[:3])
    for stop in ring.layout.stops():
        shift, at = stop.distance - at, stop.distance
        moving, dk, dv = ring.devices.moved((moving, dk, dv), shift)
        for tile in stop.tiles:
            new = ring.gradients(stop, tile, moving, outer)
            firsts = (tile.first_query, tile.first_key, tile.first_key)
            dq, dk, dv = map(_added, (dq, dk, dv), new, firsts)
    # Gradients of keys travel with their keys, and are home only after the full way round.
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
    """The gradient of the full output, what each row's is measured from, and its log-sum-exp."""

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
        """Return float32 output and log-sum-exp of a tile's queries over its keys."""
        inputs = self._inputs(stop, tile, moving)

        def see(spec: AttentionSpec | None) -> tuple[Array, Array]:
            if spec is None:
                return _nothing(inputs)
            o_BTNV, lse_BTN = ATTENTION_OP.run(inputs, spec, lse=True)
            return o_BTNV.astype(jnp.float32), lse_BTN

        return self._either(stop, tile, see)

    def gradients(
        self, stop: Stop, tile: Tile, moving: _Moving, outer: _Outer
    ) -> tuple[Array, Array, Array]:
        """Return the gradients of queries, keys and values that one tile adds.

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
                return ATTENTION_OP.run(replaced, spec, lse=True)

            # The kernel's own gradient, with that of its log-sum-exp: any kernel serves in a
            # ring, and has no form of its own for it.
            (o_part, lse_part), pull_back = jax.vjp(attend, *arrays)
            # The part is computed again by forward. Kept, the outputs of all stops would take as
            # many times the memory as there are devices.
            share_BTN = jnp.exp(lse_part - finite_lse(whole_lse_BTN))
            along_BTN = jnp.sum(do_BTNV * o_part.astype(jnp.float32), axis=-1) - delta_BTN
            do_part = (share_BTN[..., None] * do_BTNV).astype(o_part.dtype)
            gradients: tuple[Array, Array, Array] = pull_back((do_part, share_BTN * along_BTN))
            return gradients

        return self._either(stop, tile, see)

    def _either(self, stop: Stop, tile: Tile, see: Callable[[AttentionSpec | None], T]) -> T:
        """Return what this device, by its rank, sees of a tile."""
        # No branch where both sides are alike, as in zigzag: hardware without branches computes
        # both.
        if tile.behind == tile.around:
            return see(tile.behind)
        is_behind = self.devices.rank >= stop.distance
        return branch(is_behind, lambda: see(tile.behind), lambda: see(tile.around))

    def _inputs(self, stop: Stop, tile: Tile, moving: _Moving) -> AttentionInputs:
        """Return a tile's queries with its keys, counted from the first of them."""
        part = self.part
        queries = (part.q_BTNH, part.q_segments_BT, part.k_start_BT, part.k_end_BT)
        q, q_segments, *key_range = tile.of_queries(queries)
        k, v, k_segments = tile.of_keys(moving)

        def count(places_BT: Array) -> Array:
            rank = (self.devices.rank - stop.distance) % self.devices.num
            held = self.layout.keys_before(places_BT.astype(jnp.int32), rank)
            return jnp.clip(held - tile.first_key, 0, tile.length)

        return AttentionInputs(q, k, v, q_segments, k_segments, *jax.tree.map(count, key_range))
