"""Random streams: keys folded by path, so that a module's siblings never change its keys.

A name is folded in by a stable hash, an index (of a tuple's item or of a scanned layer) by its
number. So the third layer of an unrolled stack and the third step of a scan get the same key.
"""

import zlib
from collections.abc import Iterable

import jax
from jaxtyping import Array

Key = Array
"""A typed jax random key (`jax.random.key`)."""

Step = str | int
Path = tuple[Step, ...]


def fold(key: Key, step: "Step | Array") -> Key:
    """Returns the key of one step below: of a name, or of an index that may be traced."""
    data = zlib.crc32(step.encode()) if isinstance(step, str) else step
    folded: Array = jax.random.fold_in(key, data)
    return folded


def fold_path(key: Key, path: Iterable[Step]) -> Key:
    """Returns the key of a path below `key`."""
    for step in path:
        key = fold(key, step)
    return key


def as_key(rng: "Array | int") -> Key:
    """Returns a typed key from a typed key, a raw `uint32[2]` key or an int seed, traced or not."""
    if not isinstance(rng, int) and jax.numpy.issubdtype(rng.dtype, jax.dtypes.prng_key):
        return rng
    if jax.numpy.ndim(rng) == 0:
        return jax.random.key(rng)
    key: Array = jax.random.wrap_key_data(jax.numpy.asarray(rng))
    return key


def format_path(path: Iterable[Step]) -> str:
    """Returns a module path as text, `decoder.layer[3].attention`; the root is empty."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
