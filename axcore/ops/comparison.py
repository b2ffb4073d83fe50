"""`KernelComparison`: every op computed by its kernel and by the core's own, to find one at fault.

Both get the same inputs, so a wrong kernel does not make those after it look wrong. It is for a few
steps of a run that fails, not for training: each op costs twice as much, and its gradient more.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal, cast

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from axcore._jax_compat import user_context
from axcore.module.context import current
from axcore.module.rng import format_path
from axcore.plugins import Kernel
from axcore.registration import CORE

Part = Literal["result", "gradient"]

LIMITS = {"float32": (2e-3, 2e-3), "other": (8e-3, 2e-2)}
"""How far the root of the mean square of a result's error, and of a gradient's, may be from 0, as a
share of that of the reference: float32 allows for products that round to 11 bits, as some hardware
does."""

WORST = 10
"""How many times the limit the worst number may be off, as a share of the largest."""


@attrs.frozen(kw_only=True)
class Difference:
    """An op's call in which a kernel and the core's own gave different numbers.

    Args:
        kernel: The kernel.
        reference: The core's.
        module: Path of the module that called the op; layers under a scan share one.
        array: What differs: a result, or the gradient of an input.
        what: In which way, with numbers.
        num_wrong: In how many of the calls that were compared.
        num_calls: How many those were.
    """

    kernel: Kernel
    reference: Kernel
    module: str
    array: str
    what: str
    num_wrong: int
    num_calls: int

    def __str__(self) -> str:
        calls = f"{self.num_wrong} of {self.num_calls} calls"
        return (
            f"{self.kernel.key} of plugin {self.kernel.plugin!r}, called by {self.module}: "
            f"{self.array} {self.what} {self.reference.key}, in {calls}"
        )


@attrs.frozen(eq=False)
class _Watched:
    """One call of an op as it stands in the program."""

    kernels: dict[Part, Kernel]
    reference: Kernel
    module: str
    names: dict[Part, tuple[str, ...]]
    limits: dict[Part, float]
    seen: dict[Part, list[np.ndarray]] = attrs.field(factory=lambda: {"result": [], "gradient": []})


class KernelComparison:
    """What was compared so far; hashable, to be a part of jit's cache key."""

    def __init__(self) -> None:
        self._watched: list[_Watched] = []

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels that are compared."""
        keys = [kernel.key for one in self._watched for kernel in one.kernels.values()]
        return tuple(dict.fromkeys(keys))

    def differences(self) -> list[Difference]:
        """Return the calls that differ, in the order in which the model makes them."""
        return [
            found
            for part in ("result", "gradient")
            for one in self._watched
            for found in _differences(one, part)
        ]

    def watch(
        self,
        function: Callable[[Any, Any], Any],
        by_core: Callable[[Any, Any], Any],
        *,
        kernel: Kernel,
        backward: Kernel | None,
        reference: Kernel,
        results: tuple[str, ...],
    ) -> Callable[[Any, Any], Any]:
        """Return an op `(inputs, spec)` that also computes it by the core's kernel, and compares.

        Args:
            function: The op by the kernels chosen.
            by_core: The op by the core's.
            kernel: The forward kernel chosen.
            backward: The backward kernel; None where the forward kernel brings its own gradient.
            reference: The core's kernel.
            results: Names of the op's results.
        """
        if kernel.plugin == CORE and (backward is None or backward.plugin == CORE):
            return function

        def watched(inputs: Any, spec: Any) -> Any:
            context = current.get()
            dtypes = {x.dtype for x in jax.tree.leaves(inputs)}
            is_half = any(jnp.issubdtype(one, jnp.floating) and one != "float32" for one in dtypes)
            limits = LIMITS["other" if is_half else "float32"]
            one = _Watched(
                kernels={"result": kernel, "gradient": backward or kernel},
                reference=reference,
                module="a function" if context is None else format_path(context.path),
                names={"result": results, "gradient": _names(inputs)},
                limits={"result": limits[0], "gradient": limits[1]},
            )
            self._watched.append(one)

            # Around both, so that the comparison has no gradient of its own, and backward sees
            # the inputs of forward.
            @jax.custom_vjp
            def run(inputs: Any) -> Any:
                outputs = function(inputs, spec)
                _compare(one, "result", outputs, by_core(inputs, spec))
                return outputs

            def forward(inputs: Any) -> tuple[Any, Any]:
                return run(inputs), inputs

            def gradient(inputs: Any, cotangents: Any) -> tuple[Any]:
                gradients = [
                    jax.vjp(lambda x, by=by: by(x, spec), inputs)[1](cotangents)[0]
                    for by in (function, by_core)
                ]
                _compare(one, "gradient", *gradients)
                return (gradients[0],)

            run.defvjp(forward, gradient)
            return run(inputs)

        return watched


_comparison = user_context(None)


def comparing_kernels(comparison: KernelComparison) -> AbstractContextManager[None]:
    """Return a context in which ops that are traced compare their kernels with the core's."""
    return cast(AbstractContextManager[None], _comparison(comparison))


def current_comparison() -> KernelComparison | None:
    """Return the comparison that is made of what is traced now; None outside of any."""
    return cast(KernelComparison | None, _comparison.value)


def _names(inputs: Any) -> tuple[str, ...]:
    """Return the names of the gradients of a call's floating arrays."""
    paths = jax.tree_util.tree_leaves_with_path(inputs)
    return tuple(
        f"the gradient of {jax.tree_util.keystr(path, simple=True, separator='.')}"
        for path, leaf in paths
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    )


def _compare(one: _Watched, part: Part, got: Any, wanted: Any) -> None:
    """Add to the program that the errors of each array are handed to the host."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True)
    errors = [_errors(a, b) for a, b in pairs if jnp.issubdtype(a.dtype, jnp.floating)]
    # Three numbers for each array, and not the arrays: those would have to leave the device at
    # each call.
    jax.debug.callback(partial(_take, one.seen[part]), jnp.stack(errors))


def _take(seen: list[np.ndarray], errors: Any) -> None:
    seen.append(np.asarray(errors))


def _errors(got: Array, wanted: Array) -> Array:
    """Return the error's root of mean square and its maximum, and how many numbers are not finite.

    Both are shares of the reference's; where that is not finite nothing is compared.
    """
    got, wanted = (jax.lax.stop_gradient(x).astype(jnp.float32) for x in (got, wanted))
    is_finite = jnp.isfinite(wanted)
    num_lost = jnp.sum(is_finite & ~jnp.isfinite(got), dtype=jnp.float32)
    error = jnp.where(is_finite & jnp.isfinite(got), got - wanted, 0.0)
    size = jnp.where(is_finite, wanted, 0.0)
    least = jnp.float32(1e-20)
    # Of numbers far from 1 the squares would leave float32's range.
    largest = jnp.maximum(jnp.max(jnp.abs(size), initial=0.0), least)
    square = jnp.mean(jnp.square(error / largest)) / jnp.maximum(
        jnp.mean(jnp.square(size / largest)), least
    )
    return jnp.stack([jnp.sqrt(square), jnp.max(jnp.abs(error), initial=0.0) / largest, num_lost])


def _differences(one: _Watched, part: Part) -> Iterator[Difference]:
    if not one.seen[part]:
        return
    limit, calls = one.limits[part], np.stack(one.seen[part])
    for name, errors in zip(one.names[part], calls.swapaxes(0, 1), strict=True):
        mean, worst, lost = errors.T
        is_wrong = (mean > limit) | (worst > WORST * limit) | (lost > 0)
        if not is_wrong.any():
            continue
        if lost.any():
            what = f"is not finite in {lost.max():.0f} numbers that are finite by"
        else:
            what = (
                f"is off by {mean.max():.2%} on average and {worst.max():.2%} of the largest at "
                f"worst (rounding explains {limit:.1%} on average) from that of"
            )
        yield Difference(
            kernel=one.kernels[part],
            reference=one.reference,
            module=one.module,
            array=name,
            what=what,
            num_wrong=int(is_wrong.sum()),
            num_calls=len(calls),
        )
