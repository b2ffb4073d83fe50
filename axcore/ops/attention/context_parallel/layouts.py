"""Which tokens of a row each device of a ring works on, and what it computes at each stop.

At stop `i` the device of rank `r` holds the keys of rank `r - i`, or of rank `r - i + n` where that
is below zero; T is the number of tokens that each of `n` devices has.

`Contiguous` leaves each device the part that it has. The distance between its queries and the keys
at hand is one of two numbers known before anything runs: kernels see static offsets, parts that
causality and window hide cost nothing, and stops at which no device would see anything are left
out. But under causality alone a device sees keys of lower ranks only, and each stop takes as long
as the device that sees the most: `n - 1/2` blocks of T x T.

`Zigzag` is for causality alone. Of `2n` half parts, device `r` works on number `r`, its low half,
and on number `2n - 1 - r`, its high half. At every stop all devices then see as much: the high half
of the queries sees the low half of the keys; and the low half of the queries that of the keys where
these come from a lower rank, the high half of the queries that of the keys where they come from a
higher one. Both are whole squares, so the ring takes `n/2` blocks, without a branch.

Source: Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2 (zigzag).
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple, TypeVar

import attrs
import jax
import jax.numpy as jnp
from jax import Array, lax

from axcore.ops.attention.types import AttentionSpec

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
        """Returns the tile's part of arrays of queries, `[B, T, ...]`."""
        return self._part(tree, self.first_query)

    def of_keys(self, tree: T) -> T:
        """Returns the tile's part of arrays of keys, `[B, T, ...]`."""
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
        """Returns those along the mesh axes."""
        return cls(names, num, lax.axis_index(names))

    def moved(self, tree: T, shift: int) -> T:
        """Returns what the device `shift` ranks before held."""
        if shift % self.num == 0:
            return tree
        return self.sent(tree, [(rank, (rank + shift) % self.num) for rank in range(self.num)])

    def sent(self, tree: T, pairs: Route) -> T:
        """Returns what this device gets where the first rank of each pair sends to the second."""
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
        """Returns arrays `[B, T, ...]` of the tokens to work on, for those of the device's part."""
        return tree

    def restored(self, tree: T) -> T:
        """Returns arrays of the device's part, for those of the tokens that it worked on."""
        return tree

    def keys_before(self, places: Array, rank: Array) -> Array:
        """Returns how many keys of a rank are before places in the row."""
        return jnp.clip(places - rank * self.length, 0, self.length)

    def stops(self) -> Iterator[Stop]:
        """Yields the stops at which any device sees anything; the first is a device's own keys."""
        for distance in range(self.devices.num):
            behind = around = _seen(self.spec, distance * self.length, self.length)
            if distance:
                offset = (distance - self.devices.num) * self.length
                around = _seen(self.spec, offset, self.length)
            if behind is not None or around is not None:
                yield Stop(distance, (Tile(0, 0, self.length, behind, around),))


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
        """Returns arrays `[B, T, ...]` of the tokens to work on, for those of the device's part."""
        arranged: T = jax.tree.map(lambda x: self._low_first(self._sent(x, self._routes())), tree)
        return arranged

    def restored(self, tree: T) -> T:
        """Returns arrays of the device's part, for those of the tokens that it worked on."""
        back = [[(owner, rank) for rank, owner in route] for route in self._routes()]
        restored: T = jax.tree.map(lambda x: self._sent(self._low_first(x), back), tree)
        return restored

    def keys_before(self, places: Array, rank: Array) -> Array:
        """Returns how many keys of a rank are before places in the row."""
        starts = (rank * self.half, (2 * self.devices.num - 1 - rank) * self.half)
        low, high = (jnp.clip(places - start, 0, self.half) for start in starts)
        return low + high

    def stops(self) -> Iterator[Stop]:
        """Yields the stops; the first is a device's own keys."""
        yield Stop(0, (Tile(0, 0, self.length, self.spec, self.spec),))
        whole = attrs.evolve(self.spec, right=None)
        for distance in range(1, self.devices.num):
            same = jnp.where(self.devices.rank >= distance, 0, self.half)
            tiles = (
                Tile(self.half, 0, self.half, whole, whole),
                Tile(same, same, self.half, whole, whole),
            )
            yield Stop(distance, tiles)

    def _routes(self) -> list[Route]:
        """Returns where each rank sends the first half of its part, and where the second.

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
        """Returns an array with its halves swapped where the rank, and so the low one, is odd."""
        return jnp.where(self.devices.rank % 2 == 1, jnp.roll(x, self.half, axis=1), x)


Layout = Contiguous | Zigzag


def layout_for(devices: Devices, spec: AttentionSpec, length: int) -> Layout:
    """Returns the layout in which a call takes the least time.

    Args:
        devices: The ring.
        spec: The static choices of the whole call.
        length: Number of tokens that each device has.
    """
    is_causal_alone = spec.left is None and spec.right == 0
    kind = Zigzag if is_causal_alone and length % 2 == 0 else Contiguous
    return kind(devices, spec, length)
