"""`Emitter`: writes functions in LLVM's language, a vector of float32 numbers at a time.

Integers are of 64 bits. Offsets count numbers, not bytes.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from llvmlite import ir

from axl_cpu.llvm.processor import Processor

Value = Any
"""A value of llvmlite's: a number, a vector or a pointer."""

INT = ir.IntType(64)
FLOAT = ir.FloatType()
POINTER = ir.PointerType()
_SHORT = ir.IntType(32)

_STORED: dict[str, tuple[Any, int]] = {
    "float32": (FLOAT, 4),
    "bfloat16": (ir.IntType(16), 2),
    "float16": (ir.HalfType(), 2),
    "int8": (ir.IntType(8), 1),
    "int4": (ir.IntType(8), 1),
    "float8_e4m3fn": (ir.IntType(8), 1),
    "int32": (_SHORT, 4),
    "int64": (INT, 8),
    "pointer": (POINTER, 8),
}
"""Type and alignment of what is in memory."""


class Emitter:
    """Writes at the end of one function.

    Args:
        function: The function, without a block yet.
        processor: Whom it is for.
    """

    def __init__(self, function: ir.Function, processor: Processor) -> None:
        self.processor = processor
        self.lanes, self.num_vectors = processor.lanes, processor.num_vectors
        self.arguments: Sequence[Value] = function.args
        self._module = function.module
        self._builder = ir.IRBuilder(function.append_basic_block())

    # -- Integers ----------------------------------------------------------------------------

    def whole(self, value: int) -> Value:
        """Return a constant."""
        return ir.Constant(INT, value)

    def add(self, a: Value, b: Value | int) -> Value:
        """Return `a + b`."""
        return self._builder.add(a, self._as_int(b))

    def sub(self, a: Value, b: Value | int) -> Value:
        """Return `a - b`."""
        return self._builder.sub(a, self._as_int(b))

    def mul(self, a: Value, b: Value | int) -> Value:
        """Return `a * b`."""
        return self._builder.mul(a, self._as_int(b))

    def div(self, a: Value, b: Value | int) -> Value:
        """Return `a / b`, rounded towards 0."""
        return self._builder.sdiv(a, self._as_int(b))

    def rem(self, a: Value, b: Value | int) -> Value:
        """Return what is left of `a` by `b`."""
        return self._builder.srem(a, self._as_int(b))

    def min(self, a: Value, b: Value | int) -> Value:
        """Return the smaller one."""
        return self._call(f"llvm.smin.i{INT.width}", INT, a, self._as_int(b))

    def max(self, a: Value, b: Value | int) -> Value:
        """Return the larger one."""
        return self._call(f"llvm.smax.i{INT.width}", INT, a, self._as_int(b))

    def is_less(self, a: Value, b: Value | int) -> Value:
        """Return whether `a < b`."""
        return self._builder.icmp_signed("<", a, self._as_int(b))

    def _as_int(self, value: Value | int) -> Value:
        return ir.Constant(INT, value) if isinstance(value, int) else value

    # -- Memory ------------------------------------------------------------------------------

    def at(self, pointer: Value, offset: Value | int, dtype: str = "float32") -> Value:
        """Return the place of a number that is `offset` numbers after a place."""
        stored, _ = _STORED[dtype]
        return self._builder.gep(pointer, [self._as_int(offset)], source_etype=stored)

    def size(self, dtype: str) -> int:
        """Return the bytes of a number in memory."""
        return _STORED[dtype][1]

    def load(self, pointer: Value, dtype: str = "float32") -> Value:
        """Return the number at a place."""
        stored, align = _STORED[dtype]
        value = self._builder.load(pointer, typ=stored, align=align)
        return self._builder.sext(value, INT) if dtype == "int32" else value

    def load_vector(self, pointer: Value, dtype: str = "float32") -> Value:
        """Return the numbers at a place and after it, as they are stored."""
        stored, align = _STORED[dtype]
        return self._builder.load(pointer, typ=ir.VectorType(stored, self.lanes), align=align)

    def store(self, value: Value, pointer: Value) -> None:
        """Keep a number, or the numbers of a vector, at a place."""
        self._builder.store(value, pointer, align=4)

    def prefetch(self, pointer: Value, *, is_read_once: bool = False) -> None:
        """Ask for the line of memory at a place, which may be any.

        Args:
            pointer: The place.
            is_read_once: Whether caches need not keep it for later.
        """
        kind = ir.FunctionType(ir.VoidType(), [POINTER, _SHORT, _SHORT, _SHORT])
        read, keep, data = (ir.Constant(_SHORT, one) for one in (0, 0 if is_read_once else 3, 1))
        self._builder.call(self._function("llvm.prefetch.p0", kind), [pointer, read, keep, data])

    def room(self, count: int) -> Value:
        """Return the place of memory for so many float32 numbers, until the function returns."""
        kept = self._builder.alloca(ir.ArrayType(FLOAT, count))
        kept.type = POINTER
        # A line of cache, and the longest vector.
        kept.align = 64
        return kept

    # -- Vectors -----------------------------------------------------------------------------

    @property
    def vector(self) -> ir.VectorType:
        """The type of a vector."""
        return ir.VectorType(FLOAT, self.lanes)

    @property
    def int_vector(self) -> ir.VectorType:
        """The type of a vector of integers of 32 bits."""
        return ir.VectorType(_SHORT, self.lanes)

    def number(self, value: float) -> Value:
        """Return a constant number."""
        return ir.Constant(FLOAT, value)

    def full(self, value: float) -> Value:
        """Return a vector with one constant in all lanes."""
        return ir.Constant(self.vector, [ir.Constant(FLOAT, value)] * self.lanes)

    def splat(self, value: Value) -> Value:
        """Return a vector with a number, or a short integer, in all lanes."""
        kind = ir.VectorType(value.type, self.lanes)
        first = self._builder.insert_element(
            ir.Constant(kind, ir.Undefined), value, ir.Constant(_SHORT, 0)
        )
        return self.shuffle(first, first, [0] * self.lanes)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return `a * b + c`, rounded once where the processor can."""
        return self._call(f"llvm.fmuladd.v{self.lanes}f32", self.vector, a, b, c)

    def sum(self, value: Value) -> Value:
        """Return the sum over the lanes, in pairs."""
        name = f"llvm.vector.reduce.fadd.v{self.lanes}f32"
        kind = ir.FunctionType(FLOAT, [FLOAT, self.vector])
        return self._builder.call(
            self._function(name, kind), [self.number(0.0), value], fastmath=("reassoc",)
        )

    def sums(self, values: Sequence[Value]) -> Value:
        """Return the sum over the lanes of as many vectors as there are lanes, one in each."""
        if len(values) == 1:
            return values[0]
        half = len(values) // 2
        first, second = self.sums(values[:half]), self.sums(values[half:])
        # In pairs down to one vector: L vectors cost L - 1 additions, where sums one by one cost
        # L log L.
        even = self.shuffle(first, second, range(0, 2 * self.lanes, 2))
        odd = self.shuffle(first, second, range(1, 2 * self.lanes, 2))
        return self._builder.fadd(even, odd)

    def largest(self, value: Value) -> Value:
        """Return the largest lane."""
        return self._call(f"llvm.vector.reduce.fmax.v{self.lanes}f32", FLOAT, value)

    def maximum(self, a: Value, b: Value) -> Value:
        """Return the larger one in each lane."""
        return self._call(f"llvm.maxnum.v{self.lanes}f32", self.vector, a, b)

    def shuffle(self, a: Value, b: Value, lanes: Sequence[int]) -> Value:
        """Return lanes of two vectors, those of the second counted after those of the first."""
        kind = ir.VectorType(_SHORT, len(lanes))
        return self._builder.shuffle_vector(a, b, ir.Constant(kind, list(lanes)))

    def lane(self, value: Value, index: int) -> Value:
        """Return the number in a lane."""
        return self._builder.extract_element(value, ir.Constant(_SHORT, index))

    def with_lane(self, value: Value, index: int, number: Value) -> Value:
        """Return a vector with a number in a lane."""
        return self._builder.insert_element(value, number, ir.Constant(_SHORT, index))

    @property
    def build(self) -> ir.IRBuilder:
        """llvmlite's own builder, for all else."""
        return self._builder

    def short(self, value: int) -> Value:
        """Return a vector of integers of 32 bits with a constant in all lanes."""
        return ir.Constant(self.int_vector, [ir.Constant(_SHORT, value)] * self.lanes)

    def to_short(self, value: Value) -> Value:
        """Return an integer in 32 bits."""
        return self._builder.trunc(value, _SHORT)

    def to_float(self, value: Value) -> Value:
        """Return a vector of integers as float32 numbers."""
        return self._builder.sitofp(value, self.vector)

    # -- Control flow ------------------------------------------------------------------------

    def loop(
        self,
        start: Value | int,
        stop: Value | int,
        step: int,
        carried: Sequence[Value],
        body: Callable[[Value, Sequence[Value]], Sequence[Value]],
    ) -> Sequence[Value]:
        """Write `for i in range(start, stop, step)`; returns what is carried, at its end."""
        build = self._builder
        before = build.block
        head, inside, after = (build.append_basic_block() for _ in range(3))
        build.branch(head)
        build.position_at_end(head)
        i = build.phi(INT)
        i.add_incoming(self._as_int(start), before)
        values = [build.phi(value.type) for value in carried]
        for value, first in zip(values, carried, strict=True):
            value.add_incoming(first, before)
        build.cbranch(self.is_less(i, stop), inside, after)
        build.position_at_end(inside)
        new = body(i, values)
        following = self.add(i, step)
        i.add_incoming(following, build.block)
        for value, later in zip(values, new, strict=True):
            value.add_incoming(later, build.block)
        build.branch(head)
        build.position_at_end(after)
        return values

    def where(self, condition: Value) -> AbstractContextManager[Any]:
        """Inside, writes what is done only where a condition holds."""
        return self._builder.if_then(condition)

    def call(self, function: ir.Function, *arguments: Value) -> Value:
        """Write a call."""
        return self._builder.call(function, arguments)

    def give(self, value: Value | None = None) -> None:
        """End the function."""
        self._builder.ret_void() if value is None else self._builder.ret(value)

    def _call(self, name: str, kind: Any, *arguments: Value) -> Value:
        function = self._function(name, ir.FunctionType(kind, [one.type for one in arguments]))
        return self._builder.call(function, arguments)

    def _function(self, name: str, kind: ir.FunctionType) -> ir.Function:
        known = self._module.globals.get(name)
        return ir.Function(self._module, kind, name) if known is None else known
