"""Fingerprints: integers by which the bits of sharded arrays are compared where they are.

A fingerprint is the sum, modulo 2**32, of a hash of each element's bits and its index in the
full array. A changed element changes it for certain, several do but for a chance of 2**-32. The
sum over an array's distinct shards does not depend on the sharding.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32
from numpy.typing import NDArray

Shape = tuple[int, ...]
Fingerprints = Mapping[int, tuple[int, ...]]
"""By the device's id: of each leaf's shard there, in the order of `jax.tree.leaves`."""

_SPREAD = np.uint32(0x9E3779B1)  # odd, so that distinct indexes stay distinct


class Fingerprinter:
    """A compiled program that takes the fingerprint of every shard where it is.

    Args:
        tree: Arrays, or shapes with shardings, over one mesh; others of their kind are taken later.
    """

    def __init__(self, tree: Any, mesh: jax.sharding.Mesh) -> None:
        leaves = jax.tree.leaves(tree)
        specs = [leaf.sharding.spec for leaf in leaves]
        shapes = [leaf.shape for leaf in leaves]

        def of_shards(*shards: Array) -> UInt32[Array, "1 leaves"]:
            sums = [
                _fingerprint(shard, shape, _offsets(shard.shape, spec))
                for shard, shape, spec in zip(shards, shapes, specs, strict=True)
            ]
            return jnp.stack(sums)[None]

        mapped = jax.shard_map(
            of_shards,
            mesh=mesh,
            in_specs=tuple(specs),
            out_specs=jax.sharding.PartitionSpec(mesh.axis_names),  # type: ignore[no-untyped-call]
            # Replicas are what is compared, so jax must not assume that they are equal.
            check_vma=False,
        )
        self._program = jax.jit(mapped).lower(*leaves).compile()

    def __call__(self, tree: Any) -> Fingerprints:
        """Return the fingerprints of the shards on this process's devices; wait for them."""
        rows = self._program(*jax.tree.leaves(tree))
        return {
            shard.device.id: tuple(np.asarray(shard.data)[0].tolist())
            for shard in rows.addressable_shards
        }


def _offsets(shape: Shape, spec: jax.P) -> list[UInt32[Array, ""]]:
    """Return where this device's shard begins in each dimension."""
    padded = (*spec, *(None for _ in shape[len(spec) :]))
    return [np.uint32(size) * _shard_index(axes) for size, axes in zip(shape, padded, strict=True)]


def _shard_index(axes: str | tuple[str, ...] | None) -> UInt32[Array, ""]:
    index: Array = jnp.uint32(0)
    for axis in (axes,) if isinstance(axes, str) else axes or ():
        size, at = jnp.uint32(jax.lax.axis_size(axis)), jax.lax.axis_index(axis)
        index = index * size + at.astype(jnp.uint32)
    return index


def _fingerprint(shard: Array, shape: Shape, offsets: list[UInt32[Array, ""]]) -> UInt32[Array, ""]:
    words = _words(shard)
    index = jnp.zeros(words.shape, jnp.uint32)
    for dim, start in enumerate(offsets):
        # Modulo 2**32: arrays may have more elements than that,
        # and a wrapped index still differs from its neighbors.
        stride = np.uint32(math.prod(shape[dim + 1 :]) % 2**32)
        index += (jax.lax.broadcasted_iota(jnp.uint32, words.shape, dim) + start) * stride
    total: Array = jnp.sum(_mixed(words + index * _SPREAD), dtype=jnp.uint32)
    return total


def _words(x: Array) -> UInt32[Array, "..."]:
    """Return the bits of each element; the halves of one of 64 bits are joined."""
    # A bool has no bits that can be cast.
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32)
    if (bits := _bits(x.dtype)) <= 32:
        return jax.lax.bitcast_convert_type(x, f"uint{bits}").astype(jnp.uint32)
    halves = jax.lax.bitcast_convert_type(x, jnp.uint32)
    joined: Array = halves[..., 0] + _mixed(halves[..., 1])
    return joined


def _bits(dtype: Any) -> int:
    info: Any = jnp.finfo if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo
    return int(info(dtype).bits)


def _mixed(x: Any) -> Any:
    """Return a bijection of 32-bit numbers, of jax or of numpy, without pattern.

    Source: Appleby 2011, MurmurHash3, the finaliser of 32 bits.
    """
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


# -- The same on the host, to distinguish wrong arithmetic from changed bits ------


def fingerprint_on_host(shard: NDArray[Any], shape: Shape, index: tuple[slice, ...]) -> int:
    """Return the fingerprint of a shard's bits as numpy computes it.

    Args:
        shard: Copied from a device.
        shape: Of the full array.
        index: Which part of the full array the shard is.
    """
    words = _words_on_host(shard)
    sums = np.zeros(words.shape, np.uint32)
    for dim, part in enumerate(index):
        stride = np.uint32(math.prod(shape[dim + 1 :]) % 2**32)
        steps = np.arange(*part.indices(shape[dim]), dtype=np.uint32) * stride
        sums += steps.reshape([-1 if one == dim else 1 for one in range(words.ndim)])
    return int(np.sum(_mixed(words + sums * _SPREAD), dtype=np.uint32))


def _words_on_host(x: NDArray[Any]) -> NDArray[np.uint32]:
    if x.dtype == np.bool_:
        return x.astype(np.uint32)
    if (bits := _bits(x.dtype)) <= 32:  # narrow elements have bytes of their own here
        return x.view(f"u{x.dtype.itemsize}").astype(np.uint32) & np.uint32(2**bits - 1)
    halves = np.ascontiguousarray(x)[..., None].view(np.uint32)
    return np.asarray(halves[..., 0] + _mixed(halves[..., 1]))
