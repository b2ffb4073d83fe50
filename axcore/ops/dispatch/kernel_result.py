"""What a kernel returned, held against what its op declares, so that the kernel is named."""

from collections.abc import Callable
from typing import Any

import attrs
import jax

from axcore.errors import PluginError
from axcore.parallel.shard_op import is_axes
from axcore.plugins import Kernel


def checked_outputs(kernel: Kernel, returned: Any, declared: Any) -> Any:
    """Returns what a forward kernel returned.

    Args:
        kernel: Its record.
        returned: A tree of arrays; a field of a named tuple may be None.
        declared: The tree of `OpSharding.outputs`: a tuple of logical axes for each array.

    Raises:
        PluginError: It is another tree, or an array has another number of dimensions.
    """
    if not _is_like(returned, declared, lambda got, axes: got.ndim == len(axes)):
        text = jax.tree.map(lambda axes: _Text(f"{len(axes)}-d"), declared, is_leaf=is_axes)
        raise _wrong(kernel, returned, text)
    return returned


def checked_gradients(kernel: Kernel, returned: Any, inputs: Any) -> Any:
    """Returns what a backward kernel returned: gradients of a call's inputs, None for some.

    Raises:
        PluginError: It is another tree than the inputs, or an array has another shape.
    """
    if not _is_like(returned, inputs, lambda got, given: got.shape == given.shape):
        raise _wrong(kernel, returned, _described(inputs))
    return returned


def _is_like(returned: Any, like: Any, fits: Callable[[Any, Any], bool]) -> bool:
    if not isinstance(like, tuple) or is_axes(like):
        return hasattr(returned, "shape") and like is not None and fits(returned, like)
    if not isinstance(returned, type(like)) or len(returned) != len(like):
        return False
    may_lack = hasattr(like, "_fields")
    return all(
        (one is None and may_lack) or _is_like(one, below, fits)
        for one, below in zip(returned, like, strict=True)
    )


def _wrong(kernel: Kernel, returned: Any, expected: Any) -> PluginError:
    return kernel.wrong_return(
        "forward", returned, repr(expected), shown=repr(_described(returned))
    )


def _described(tree: Any) -> Any:
    """Returns a tree with the dtype and the shape of each array in its place, as text."""
    return jax.tree.map(_array_text, tree)


def _array_text(leaf: Any) -> Any:
    if not hasattr(leaf, "shape"):
        return leaf
    return _Text(f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]")


@attrs.frozen(repr=False)
class _Text:
    """Text in the place of an array in the text of a tree, without quotes."""

    text: str

    def __repr__(self) -> str:
        return self.text
