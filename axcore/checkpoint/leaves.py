"""The leaves of a state: their names, shapes and dtypes, and how they fit a template."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np

from axcore.config import did_you_mean
from axcore.errors import CheckpointError

# Enough to see a pattern in the names; a model of a thousand leaves would fill the screen.
_SHOWN = 8


@attrs.frozen
class LeafSpec:
    """Shape and dtype of one leaf."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def name_leaves(tree: Any, *, is_leaf: Callable[[Any], bool] | None = None) -> dict[str, Any]:
    """Return the leaves of a pytree by name, such as `opt.0.mu.decoder.weight`, in tree order.

    Args:
        tree: The pytree.
        is_leaf: What is not looked into.

    Raises:
        CheckpointError: Two leaves have one name.
    """
    named: dict[str, Any] = {}
    # With paths, because names are the format: the order of leaves may change with
    # jax or with the state's class, and a checkpoint must still be found by them.
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if name in named:
            raise CheckpointError(
                f"two leaves of the state are called {name!r}",
                where=name,
                hint="rename a key so that no key contains the path of another leaf",
            )
        named[name] = leaf
    return named


def name_arrays(state: Any) -> dict[str, jax.Array]:
    """Return the leaves of a state by name; numbers and numpy arrays become jax arrays.

    Raises:
        CheckpointError: A leaf is not an array, or jax would change its dtype.
    """
    return {name: _as_array(name, leaf) for name, leaf in name_leaves(state).items()}


def leaf_spec(leaf: Any) -> LeafSpec:
    """Return the shape and dtype of an array or of a description of one."""
    return LeafSpec(tuple(leaf.shape), str(leaf.dtype))


def describe(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return the description of a template's leaf; without a sharding, on the first device."""
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        # `local_devices`: the first device of all belongs
        # to process 0, and the others cannot address it.
        sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)  # type: ignore[no-untyped-call]


def mismatches(
    saved: Mapping[str, LeafSpec], wanted: Mapping[str, LeafSpec], *, partial: bool = False
) -> list[str]:
    """Return one sentence for each leaf that keeps a checkpoint from filling a template.

    Args:
        saved: The leaves of the checkpoint.
        wanted: The leaves of the template.
        partial: Whether the checkpoint may contain leaves that the template lacks.
    """
    missing = [name for name in wanted if name not in saved]
    unexpected = [] if partial else [name for name in saved if name not in wanted]
    # By dtype as well: an implicit cast would restore a master
    # copy in bfloat16 as float32 without the lost bits.
    different = [n for n, spec in wanted.items() if n in saved and saved[n] != spec]
    candidates = [name for name in saved if name not in wanted]
    lines = _shortened(f"{n} is saved as {saved[n]}; wanted {wanted[n]}" for n in different)
    lines += _shortened(_missing_line(name, candidates) for name in missing)
    lines += _shortened(f"{name} is in the checkpoint; nothing here has it" for name in unexpected)
    return lines


def _missing_line(name: str, candidates: list[str]) -> str:
    hint = did_you_mean(name, candidates)
    return f"{name} is not in the checkpoint" + (f"; {hint}" if hint else "")


def _shortened(lines: Iterable[str]) -> list[str]:
    every = list(lines)
    rest = len(every) - _SHOWN
    return every if rest <= 0 else [*every[:_SHOWN], f"... and {rest} more like it"]


def _as_array(name: str, leaf: Any) -> jax.Array:
    if isinstance(leaf, jax.Array):
        return leaf
    if not isinstance(leaf, (bool, int, float, complex, np.ndarray, np.generic)):
        raise CheckpointError(
            f"{name} is a {type(leaf).__qualname__}; only arrays and numbers can be saved",
            where=name,
            hint="leave it out of the state, or put it in `extra`",
        )
    # Without x64 jax makes float64 into float32 silently; for a number of Python
    # that is expected, for an array that somebody made in float64 it is a loss.
    held = jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype)
    if isinstance(leaf, (np.ndarray, np.generic)) and held != leaf.dtype:
        raise CheckpointError(
            f"{name} is a numpy array of {leaf.dtype}; jax holds it as {held}",
            where=name,
            hint=f"convert it to {held}, or set jax_enable_x64",
        )
    return jnp.asarray(leaf, dtype=held)
