"""What a kernel returned, checked against what its op asks for, so that the kernel is named.

The checks run while an op is traced, and compare shapes and dtypes in Python: they add nothing to
the program. An op declares its results by `ResultSpec`s, which tests compare with its reference.
"""

from collections.abc import Iterator
from typing import Any

import attrs
import jax
import jax.numpy as jnp
from jax import Array

from axcore.errors import KernelError
from axcore.ops.dispatch.registry import op_kernels
from axcore.plugins import Kernel
from axcore.registration.returns import CORE

_CORRECT = "correct what the kernel returns"


@attrs.frozen
class _Problem:
    """What is wrong with one array, and what the kernel's author is to do."""

    what: str
    fix: str = _CORRECT


@attrs.frozen
class ResultSpec:
    """What an op asks of one array that a kernel returns.

    Args:
        name: What the op calls the array.
        shape: Its shape.
        dtype: Name of its dtype.
        is_optional: Whether a kernel may return None in its place.
        may_be_wider: Whether float32 is taken where the dtype is a narrower float.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_optional: bool = False
    may_be_wider: bool = False

    @classmethod
    def like(cls, name: str, array: Array) -> "ResultSpec":
        """Return the spec of a result with the shape and dtype of an array."""
        return cls(name, array.shape, array.dtype.name)

    def problem(self, returned: Any) -> "_Problem | None":
        """Return what is wrong with what was returned in the array's place; None if nothing is."""
        if returned is None:
            missing = _Problem(f"{self.name} is missing; expected {self}")
            return None if self.is_optional else missing
        is_shaped = getattr(returned, "shape", None) == self.shape
        dtype = getattr(returned, "dtype", None)
        may_be = {self.dtype, "float32"} if self.may_be_wider else {self.dtype}
        if is_shaped and str(dtype) in may_be:
            return None
        fix = f"cast it in the kernel: .astype({self.dtype!r})" if is_shaped else _CORRECT
        return _Problem(f"{self.name} is {_described(returned)}; expected {self}", fix)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def checked_outputs(kernel: Kernel, returned: Any, wanted: Any) -> Any:
    """Return what a forward kernel returned.

    Args:
        kernel: Its record.
        returned: A tree of arrays.
        wanted: The same tree of `ResultSpec`s.

    Raises:
        KernelError: It is another tree, or an array has another shape or dtype.
    """
    problems = list(_problems(returned, wanted))
    if problems:
        raise _wrong(kernel, problems)
    return _strongly_typed(returned)


def checked_gradients(kernel: Kernel, returned: Any, inputs: Any) -> Any:
    """Return what a backward kernel returned: a gradient for each floating input of a call.

    What is returned for integers, or for inputs that the call lacks, has no meaning.

    Raises:
        KernelError: It is another tree than the inputs, a gradient is missing, or one has another
            shape or a dtype that loses precision.
    """
    # Kernels that the op splits may sum in float32: it casts what all devices added up.
    is_wide = kernel.partitioned_by == "op"
    wanted = type(inputs)(
        *(_gradient_spec(*one, may_be_wider=is_wide) for one in inputs._asdict().items())
    )
    problems = list(_problems(returned, wanted))
    if problems:
        raise _wrong(kernel, problems)
    return _strongly_typed(returned)


def result_names(wanted: Any) -> tuple[str, ...]:
    """Return the names of a tree of `ResultSpec`s, but for those that a kernel may leave out."""
    specs = jax.tree.leaves(wanted, is_leaf=lambda node: isinstance(node, ResultSpec))
    return tuple(spec.name for spec in specs if not spec.is_optional)


def _gradient_spec(name: str, array: Array | None, *, may_be_wider: bool) -> ResultSpec | None:
    if array is None or not jnp.issubdtype(array.dtype, jnp.floating):
        return None
    spec = ResultSpec.like(f"the gradient of {name}", array)
    return attrs.evolve(spec, may_be_wider=may_be_wider)


def _problems(returned: Any, wanted: Any) -> Iterator[_Problem]:
    """Yield what is wrong with a tree; where nothing is wanted, anything may be."""
    if wanted is None:
        return
    if isinstance(wanted, ResultSpec):
        problem = wanted.problem(returned)
        if problem is not None:
            yield problem
    elif type(returned) is not type(wanted) or len(returned) != len(wanted):
        yield _Problem(f"the result is {_described(returned)}; expected {_described(wanted)}")
    else:
        for one, below in zip(returned, wanted, strict=True):
            yield from _problems(one, below)


def _strongly_typed(tree: Any) -> Any:
    """Return arrays whose dtype is their own: a weak one would give way to what it is added to."""
    return jax.tree.map(
        lambda x: jax.lax.convert_element_type(x, x.dtype) if jax.typeof(x).weak_type else x, tree
    )


def _wrong(kernel: Kernel, problems: list[_Problem]) -> KernelError:
    authors = "axcore" if kernel.plugin in ("", CORE) else kernel.plugin
    found = "; ".join(one.what for one in problems)
    return KernelError(
        f"the kernel {kernel.key!r} of plugin {kernel.plugin!r} ({kernel.forward.target}) returned "
        f"something else than the op {kernel.op!r} asks for: {found}",
        where=f"plugin {kernel.plugin!r}",
        hint=f"{problems[0].fix}; report it to the authors of {authors}; "
        f"{how_to_continue_without(kernel)}",
    )


def how_to_continue_without(kernel: Kernel) -> str:
    """Return what a user can write so that another kernel serves."""
    others = [one for one in op_kernels(kernel.op) if one.plugin == CORE and one.key != kernel.key]
    names = [one.name for one in others if one.name == "portable" or one.priority == 0]
    if not names:
        return f"to continue without it, set AXCORE_BLOCK={kernel.plugin}"
    pin = f'--set "kernels.pins={ {kernel.op: names[0]} }"'
    in_python = f'KernelPolicy(pins={{"{kernel.op}": "{names[0]}"}})'
    return f"to continue without it, pin another kernel: {pin}, or in Python {in_python}"


def _described(tree: Any) -> str:
    """Return a tree as text, with the dtype and the shape of each array in its place."""
    if isinstance(tree, tuple):
        names = getattr(tree, "_fields", None)
        parts = [_described(one) for one in tree]
        if names is not None:
            parts = [f"{name}={part}" for name, part in zip(names, parts, strict=True)]
        return f"{type(tree).__name__ if names else ''}({', '.join(parts)})"
    if hasattr(tree, "shape") and hasattr(tree, "dtype"):
        return f"{tree.dtype}[{','.join(map(str, tree.shape))}]"
    return repr(tree)
