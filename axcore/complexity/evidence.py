"""What counts as proof that a feature is in a model: functions from a trace to None or a reason."""

from collections.abc import Callable

from axcore.complexity.trace import Operation, Trace, modules_of, trace_serving
from axcore.module import Module

Evidence = Callable[[Trace], str | None]
"""From a trace to None where the feature is in it, or why it is not."""


def runs(*kinds: type[Module]) -> Evidence:
    """Proof by modules: there are some of these classes, and the loss depends on each of them."""

    def evidence(trace: Trace) -> str | None:
        return _why_idle(trace.model, trace.operations, kinds, "the loss")

    return evidence


def serves(*kinds: type[Module]) -> Evidence:
    """Proof by modules of the model that serves in a model's place: its logits depend on each."""

    def evidence(trace: Trace) -> str | None:
        return _why_idle(*trace_serving(trace.model), kinds, "what is served")

    return evidence


def multiplies(dtype: str) -> Evidence:
    """Proof by operations: the loss depends on a product of two arrays of a dtype.

    Args:
        dtype: How the dtype begins: `int8`, or `float8` for each of its kinds.
    """

    def is_such(operation: Operation) -> bool:
        return operation.name == "dot_general" and all(
            operand.startswith(dtype) for operand in operation.dtypes
        )

    def evidence(trace: Trace) -> str | None:
        if any(map(is_such, trace.operations)):
            return None
        return f"the traced loss contains no product of {dtype}"

    return evidence


def chooses(op: str, *kernels: str) -> Evidence:
    """Proof by the kernel plan: every call of an op is served by one of these kernels."""

    def evidence(trace: Trace) -> str | None:
        chosen = trace.kernels.get(op, frozenset())
        if chosen and chosen <= set(kernels):
            return None
        served = ", ".join(sorted(chosen)) or "no kernel"
        return f"{op} is served by {served}, not by {' or '.join(kernels)}"

    return evidence


def _why_idle(
    model: Module, operations: frozenset[Operation], kinds: tuple[type[Module], ...], what: str
) -> str | None:
    """Return None where a model has modules of some classes and all of them are at work."""
    found = [path for path, module in modules_of(model) if isinstance(module, kinds)]
    if not found:
        return f"the model has no {' or '.join(kind.__qualname__ for kind in kinds)}"
    scopes = {operation.scope for operation in operations}
    idle = [path for path in found if not any(_is_within(scope, path) for scope in scopes)]
    return f"{what} does not depend on {'.'.join(idle[0])}" if idle else None


def _is_within(scope: tuple[str, ...], path: tuple[str, ...]) -> bool:
    """Whether a scope contains a path's steps in their order.

    Scopes hold more: a layer that a residual connection calls is below the connection.
    """
    steps = iter(scope)
    return all(step in steps for step in path)
