"""What a traced program consists of: its equations and its constants, nested ones included."""

import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

_ADDRESS = re.compile(r"0x[0-9a-f]+")

ROUNDING = frozenset(
    {
        *("reduce_sum", "reduce_prod", "cumsum", "cumprod", "cumlogsumexp", "logsumexp"),
        *("exp", "exp2", "expm1", "log", "log1p", "pow", "integer_pow", "square", "div"),
        *("sqrt", "rsqrt", "cbrt", "logistic", "tanh", "erf", "erfc", "erf_inv", "sin", "cos"),
    }
)
"""Primitives that lose more than one rounding where their operands have 8 bits of mantissa."""


def equations(program: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr, and of those that its loops, calls and kernels hold."""
    for equation in getattr(program, "jaxpr", program).eqns:
        yield equation
        for inner in _inner(equation):
            yield from equations(inner)


def narrow_arithmetic(program: Any) -> list[str]:
    """Return the sums and functions of a jaxpr that are computed in 16 bits, each kind once."""
    found: dict[str, None] = {}
    for equation in equations(program):
        for variable in equation.outvars:
            dtype = str(getattr(variable.aval, "dtype", ""))
            if equation.primitive.name in ROUNDING and dtype in ("bfloat16", "float16"):
                found[f"{equation.primitive.name} of {dtype}"] = None
    return list(found)


def description(program: Any) -> tuple[str, list[bytes]]:
    """Return what distinguishes a jaxpr: its text without addresses, and its constants."""
    return _ADDRESS.sub("", str(program)), list(_constants(program))


def _inner(equation: Any) -> Iterator[Any]:
    for value in equation.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if hasattr(one, "eqns") or hasattr(one, "jaxpr"):
                yield one


def _constants(program: Any) -> Iterator[bytes]:
    for constant in getattr(program, "consts", ()):
        if not isinstance(constant, jax.core.Tracer):  # a kernel's arguments, since jax 0.12
            yield np.asarray(constant).tobytes()
    for equation in getattr(program, "jaxpr", program).eqns:
        for inner in _inner(equation):
            yield from _constants(inner)
