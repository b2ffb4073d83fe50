"""Random streams: keys folded by path, so that a module's siblings never change its keys.

A name is folded in by a stable hash, an index (of a tuple's item or of a scanned layer) by its
number. So the third layer of an unrolled stack and the third step of a scan get the same key.
"""

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

Key = Array
"""A typed jax random key (`jax.random.key`)."""

Step = str | int
Path = tuple[Step, ...]


def fold(key: Key, step: "Step | Array") -> Key:
    """Return the key of one step below: of a name, or of an index that may be traced."""
    folded: Array = jax.random.fold_in(key, _data(step) if isinstance(step, str) else step)
    return folded


def _data(step: Step) -> int:
    # CRC-32, as Python's `hash` of a string differs in every process.
    return zlib.crc32(step.encode()) if isinstance(step, str) else step


def fold_path(key: Key, path: Iterable[Step]) -> Key:
    """Return the key of a path below `key`."""
    for step in path:
        key = fold(key, step)
    return key


def fold_paths(key: Key, paths: Sequence[Sequence[Step]]) -> Key:
    """Return the keys of paths below `key`, as an array; equal to `fold_path` of each.

    All are folded at once: hashing step by step would be most of what compiles of a first state.
    """
    # Padded to the longest path, with a mask: one scan for
    # all keys, instead of a program of hashes for each.
    depth = max((len(path) for path in paths), default=0)
    data, is_step = np.zeros((depth, len(paths)), np.uint32), np.zeros((depth, len(paths)), bool)
    for place, path in enumerate(paths):
        data[: len(path), place] = [_data(step) for step in path]
        is_step[: len(path), place] = True

    def below(keys: Key, step: Any) -> tuple[Key, None]:
        data, is_step = step
        return jnp.where(is_step, jax.vmap(jax.random.fold_in)(keys, data), keys), None

    keys, _ = jax.lax.scan(below, jnp.broadcast_to(key, len(paths)), (data, is_step))
    return keys


def as_key(rng: "Array | int") -> Key:
    """Return a typed key from a typed key, a raw `uint32[2]` key or an int seed, traced or not."""
    if not isinstance(rng, int) and jax.numpy.issubdtype(rng.dtype, jax.dtypes.prng_key):
        return rng
    # A plain array of shape [] is a seed, one of shape [2] a raw key of jax's older kind.
    if jax.numpy.ndim(rng) == 0:
        return jax.random.key(rng)
    key: Array = jax.random.wrap_key_data(jax.numpy.asarray(rng))
    return key


def format_path(path: Iterable[Step]) -> str:
    """Return a module path as text, `decoder.layer[3].attention`; the root is empty."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
