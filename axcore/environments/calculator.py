"""`calculate`: arithmetic that a policy asks for, without Python's `eval`."""

import ast
import math
import operator
from collections.abc import Callable
from fractions import Fraction

_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
}
_MAX_CHARS, _MAX_EXPONENT, _MAX_BITS = 200, 1000, 4000
"""Bounds: a power of a power would otherwise fill the memory."""


def calculate(expression: str) -> str:
    """Compute an expression of numbers with + - * / // % ** and brackets, exactly.

    Args:
        expression: Such as `(3 + 4) * 12`.

    Returns:
        A whole number, or a decimal of up to 12 digits.

    Raises:
        ValueError: It is not such an expression, or its numbers are too large.
        ZeroDivisionError: It divides by 0.
    """
    if len(expression) > _MAX_CHARS:
        raise ValueError(f"the expression has {len(expression)} characters; at most {_MAX_CHARS}")
    try:
        parsed = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{expression!r} is not an expression of numbers") from None
    value = _value(parsed, expression)
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.12g}"


def _value(node: ast.expr, expression: str) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        number: float = node.value
        if not math.isfinite(number):
            raise ValueError(f"{expression!r} has a number that is too large")
        # As it is written: 0.1 is a tenth, and not the nearest binary number.
        return Fraction(repr(number))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _value(node.operand, expression)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _power(_value(node.left, expression), _value(node.right, expression))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        first, second = _value(node.left, expression), _value(node.right, expression)
        return _bounded(_BINARY[type(node.op)](first, second))
    raise ValueError(f"{expression!r} is not an expression of numbers")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        return Fraction(repr(float(base) ** float(exponent)))
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent) > _MAX_EXPONENT or bits * abs(exponent) > _MAX_BITS:
        raise ValueError(f"a power to the {exponent} is too large")
    return _bounded(Fraction(base ** int(exponent)))


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise ValueError("a number is too large")
    return value
