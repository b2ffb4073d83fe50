"""Arrays of a flax module as parameters and buffers of an axcore module.

They have a path, a key folded from it, and a place in checkpoints and shardings. The name of each
is its path in flax, `Dense_0/kernel`.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from axcore.config import evolve
from axcore.errors import ConfigError
from axcore.module import Initializer, Module, Param

FlaxPath = tuple[str, ...]
"""A collection (`params`, `batch_stats`) and the names below it."""


@attrs.frozen(kw_only=True)
class Leaf:
    """One array of a flax module.

    Args:
        name: As the axcore module declares it.
        shape: Its shape.
        dtype: Its dtype.
        axes: Logical axes, where flax knows any.
        init: Draws its first value.
        is_buffer: Whether it is kept but not trained.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[str | None, ...] | None
    init: Initializer
    is_buffer: bool


class FlaxArrays:
    """The arrays that an axcore module declares for a flax module, by their paths in flax."""

    def __init__(self, module: Module, leaves: Mapping[FlaxPath, Leaf]) -> None:
        self.leaves = dict(leaves)
        for leaf in leaves.values():
            axes = leaf.axes or (None,) * len(leaf.shape)
            param: Any = Param(
                leaf.shape,
                axes=axes,
                init=leaf.init,
                is_buffer=leaf.is_buffer,
                dtype=leaf.dtype,
            )
            setattr(module, leaf.name, param)

    def read(self, module: Module) -> dict[FlaxPath, Any]:
        """Returns the arrays, while the module is at work."""
        return {path: getattr(module, leaf.name) for path, leaf in self.leaves.items()}

    def update(self, module: Module, new: Mapping[FlaxPath, Any]) -> None:
        """Sets the next values of the buffers."""
        for path, leaf in self.leaves.items():
            if leaf.is_buffer and path in new:
                module.update(leaf.name, new[path])


def sized(call: Any, arguments: tuple[str, ...], dim: int) -> Any:
    """Returns the call with `dim` as each of the named arguments.

    Raises:
        ConfigError: It is no config of a call.
    """
    if not hasattr(call, "build"):
        raise ConfigError(
            f"module is {call!r}; expected a config of a call",
            hint="module=config_for(nn.Dense, features=8)",
        )
    return evolve(call, **dict.fromkeys(arguments, dim)) if arguments else call


def leaf_of(
    abstract: Any, *, name: str, init: Initializer, is_buffer: bool, axes: Any = None
) -> Leaf:
    """Returns the leaf of an abstract array."""
    return Leaf(
        name=name,
        shape=abstract.shape,
        dtype=str(abstract.dtype),
        axes=axes,
        init=init,
        is_buffer=is_buffer,
    )


def flat(tree: Any, above: FlaxPath = ()) -> dict[FlaxPath, Any]:
    """Returns the leaves of nested mappings by their paths."""
    if not isinstance(tree, Mapping):
        return {above: tree}
    return {
        path: leaf
        for name, below in tree.items()
        for path, leaf in flat(below, (*above, str(name))).items()
    }


def nested(flat: Mapping[FlaxPath, Any]) -> dict[str, Any]:
    """Returns leaves by their paths as nested dicts."""
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        node = tree
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = leaf
    return tree
