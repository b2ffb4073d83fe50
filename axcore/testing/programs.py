"""What a program consists of: a traced one of equations and constants, a lowered one of operations.

`program_digest` says what a lowered program is, whatever its source looks like. jax hands a module
of StableHLO to the compiler. In addition to the program, it says where each line of it was written
and what Python's functions are called. Kernels are modules of their own within custom calls,
written as bytes, and say the same. None of that changes what comes out, so here it is taken away;
what is left is hashed, with the compiler's options and the devices.

Two kinds of names are left, since reports and tests read them in what was compiled: scopes
(`jax.named_scope`, and so the paths of layers), and what kernels are called (`pallas_call(name=)`).
"""

import base64
import functools
import hashlib
import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from axcore._jax_compat import mlir_ir, read_mlir_bytecode

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


BYTECODE = b"ML\xefR"
"""How MLIR's bytecode begins."""

_IN_BASE64 = re.compile(base64.b64encode(BYTECODE)[:5] + rb"[A-Za-z0-9+/]*=*")
_LOCATIONS_IN_JSON = re.compile(rb', "debug_locations": "[^"]*"')  # of jax 0.12 and newer
_OF_LOCATIONS = frozenset({"kernel_hash"})
"""Parts of a kernel's config that are made of its bytes, and change with a comment."""

_SYMBOL = re.compile(r'(?<=sym_name = )"[^"]*"|@"[^"]*"|@[\w.$-]+')
_RESULT_NAME = re.compile(r'jax\.(?:result|arg)_info = "(?:[^"\\]|\\.)*"')
_FUNCTION_NAME = re.compile(r"\bp?jit\([^()]*\)")


def program_digest(module: Any, options: bytes) -> str:
    """Return a digest of a lowered program, the same wherever and in whatever names it is written.

    Args:
        module: As `jax.stages.Lowered.compiler_ir("stablehlo")` gives it; it isn't changed.
        options: All else that the compiler's result depends on.
    """
    digest = hashlib.sha256(options)
    digest.update(program_text(module).encode())
    return digest.hexdigest()[:32]


def program_text(module: Any) -> str:
    """Return what `program_digest` hashes of a module, to look for what differs in two."""
    with module.context:
        copy = module.operation.clone()
    _walk(copy, _show_kernels)
    text = copy.get_asm(print_generic_op_form=True)  # without locations
    scopes: list[str] = []
    _walk(copy, lambda operation: scopes.append(_scope(operation.location)))
    return "\n".join((_RESULT_NAME.sub("", _with_numbers_for_names(text)), *scopes))


def _walk(operation: Any, see: Any) -> None:
    advance = mlir_ir().WalkResult.ADVANCE

    def step(inner: Any) -> Any:
        see(inner)
        return advance

    operation.walk(step)


def _show_kernels(operation: Any) -> None:
    """Write a custom call's kernels as text without locations, in place of their bytes."""
    if operation.name != "stablehlo.custom_call":
        return
    ir = mlir_ir()
    for name in ("backend_config", "mhlo.backend_config"):
        if name in operation.attributes:
            shown = "\n".join(_shown(operation.attributes[name]))
            with operation.context:
                operation.attributes[name] = ir.StringAttr.get(shown)


def _shown(attribute: Any) -> Iterator[str]:
    ir = mlir_ir()
    if isinstance(attribute, ir.DictAttr):
        for part in attribute:
            if part.name not in _OF_LOCATIONS:
                yield f"{part.name}:"
                yield from _shown(part.attr)
    elif isinstance(attribute, ir.StringAttr):
        held = attribute.value_bytes
        if held.startswith(BYTECODE):
            yield _kernel_digest(held)
        else:
            yield repr(_IN_BASE64.sub(_digest_of_base64, _LOCATIONS_IN_JSON.sub(b"", held)))
    else:
        yield str(attribute)


def _digest_of_base64(found: re.Match[bytes]) -> bytes:
    return _kernel_digest(base64.b64decode(found[0])).encode()


@functools.lru_cache(maxsize=256)
def _kernel_digest(bytecode: bytes) -> str:
    text: str = read_mlir_bytecode(bytecode).operation.get_asm(print_generic_op_form=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _with_numbers_for_names(text: str) -> str:
    """Return a module's text with its symbols numbered in the order in which they appear."""
    numbers: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        name = found[0].lstrip("@").strip('"')
        return numbers.setdefault(name, f"@{len(numbers)}")

    return _SYMBOL.sub(number, text)


def _scope(location: Any) -> str:
    """Return the scopes that an operation is in, without the names of functions."""
    is_named = isinstance(location, mlir_ir().NameLoc)
    return _FUNCTION_NAME.sub("jit", location.name_str) if is_named else ""
