"""A compiled program, parsed from the text that XLA prints of it: shapes, instructions, modules."""

import math
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import attrs

from axcore.module import Module
from axcore.module.rng import format_path
from axcore.module.stacked_module import index_of

_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](\{[^}]*\})?")
_SPACE = re.compile(r"S\((\d+)\)")
_ORDER = re.compile(r"\{([\d,]+)")
_TILE = re.compile(r"T\(([\d,]+)\)")

DEVICE_MEMORY = 0

_BITS = {"pred": 8, "token": 0, "opaque": 0}


@attrs.frozen
class Shape:
    """One array, or a tuple of shapes.

    Args:
        dtype: As XLA names it; empty for a tuple.
        dims: Sizes; empty for a scalar or a tuple.
        stored_dims: Sizes as they are stored, rounded up to full tiles; in another order.
        space: Memory space: 0 the device's own, others smaller ones on the chip, or the host's.
        parts: Of a tuple.
    """

    dtype: str
    dims: tuple[int, ...] = ()
    stored_dims: tuple[int, ...] = ()
    space: int = 0
    parts: tuple[Any, ...] = ()

    @property
    def arrays(self) -> tuple["Shape", ...]:
        """The arrays that it is made of, itself if it is one."""
        if not self.parts and self.dtype:
            return (self,)
        return tuple(array for part in self.parts for array in part.arrays)

    @property
    def size(self) -> int:
        """Number of elements of an array."""
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, without padding of layouts."""
        return sum(array.size * bits(array.dtype) // 8 for array in self.arrays)

    @property
    def device_bytes(self) -> int:
        """Bytes of the arrays that are in the device's own memory, without padding."""
        return sum(array.nbytes for array in self.arrays if array.space == DEVICE_MEMORY)

    @property
    def stored_bytes(self) -> int:
        """Bytes that an array takes in memory."""
        return math.prod(self.stored_dims) * bits(self.dtype) // 8

    def __str__(self) -> str:
        if self.dtype:
            return f"{self.dtype}[{','.join(map(str, self.dims))}]"
        return f"({', '.join(map(str, self.parts))})"


def bits(dtype: str) -> int:
    """Return the bits of an element: those that its name ends in, or start with for `f8e4m3`."""
    if dtype in _BITS:
        return _BITS[dtype]
    number = re.match(r"[a-z]+(\d+)", dtype)
    return int(number[1]) if number else 8


def parse_shape(text: str) -> tuple[Shape, str]:
    """Return the shape that `text` begins with, and the rest of the text."""
    if not text.startswith("("):
        found = _ARRAY.match(text)
        assert found is not None, text
        dims = tuple(int(size) for size in re.findall(r"\d+", found[2]))
        layout = found[3] or ""
        space = _SPACE.search(layout)
        shape = Shape(found[1], dims, _stored(dims, layout), int(space[1]) if space else 0)
        return shape, text[found.end() :]
    parts = []
    rest = text[1:]
    while not rest.startswith(")"):
        part, rest = parse_shape(rest.lstrip(", "))
        parts.append(part)
    return Shape("", parts=tuple(parts)), rest[1:]


def _stored(dims: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Return sizes from the outermost to the innermost in memory, rounded up to full tiles."""
    order, tile = _ORDER.search(layout), _TILE.search(layout)
    if order is None:
        return dims
    stored = [dims[int(dim)] for dim in reversed(order[1].split(","))]
    sizes = [int(size) for size in tile[1].split(",")] if tile else []
    for place, size in enumerate(reversed(sizes), start=1):
        if place <= len(stored):
            stored[-place] = -(-stored[-place] // size) * size
    return tuple(stored)


# -- Programs --------------------------------------------------------------------------------------
#
# Only what reports need is read. A line is one instruction,
#
#     %name = SHAPE opcode(%operand, ...), calls=%other, metadata={op_name="..."}, ...
#
# and a computation is a header line that ends in `{`, its instructions in the order of execution,
# and a line `}`.


_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r" ?([a-z][\w\-]*)\(")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"(calls|to_apply|condition|body|async_execution_thread)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"(?:branch_computations|called_computations)=\{([^}]*)\}")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_COMMENT = re.compile(r"/\*.*?\*/")


@attrs.frozen(kw_only=True)
class Instruction:
    """One line of a computation.

    Args:
        name: Unique in the program.
        opcode: What it does, `fusion` or `all-gather-start` for example.
        shape: What it returns.
        operands: Names of the instructions whose results it takes.
        text: The full line after the operands: attributes, metadata, backend config.
        is_root: Whether its result is the computation's.
    """

    name: str
    opcode: str
    shape: Shape
    operands: tuple[str, ...]
    arguments: str
    text: str
    is_root: bool

    @property
    def op_name(self) -> str:
        """The path of scopes and primitives under which it was traced; empty if unknown."""
        found = _OP_NAME.search(self.text)
        return found[1] if found else ""

    @property
    def called(self) -> Mapping[str, str]:
        """Computations that it names, by role: `calls`, `to_apply`, `condition`, `body`."""
        return dict(_CALLED.findall(self.text))

    @property
    def branches(self) -> tuple[str, ...]:
        """Computations of which it runs one."""
        found = _BRANCHES.search(self.text)
        return tuple(_NAME.findall(found[1])) if found else ()

    def attribute(self, name: str) -> str | None:
        """Return an attribute's text up to the next comma or blank, or None."""
        found = re.search(rf"[ ,]{name}=([^, ]+)", self.text)
        return found[1] if found else None

    def number(self, key: str) -> int | None:
        """Return a number of the backend config, written as `"key":"123"` or `"key":123`."""
        found = re.search(rf'"{key}":"?(\d+)', self.text)
        return int(found[1]) if found else None


@attrs.frozen
class Computation:
    """Instructions in the order in which they are executed."""

    name: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        """Instructions by name."""
        return {one.name: one for one in self.instructions}

    @cached_property
    def users(self) -> Mapping[str, tuple[Instruction, ...]]:
        """Who takes an instruction's result, by its name."""
        found: dict[str, list[Instruction]] = {}
        for one in self.instructions:
            for name in one.operands:
                found.setdefault(name, []).append(one)
        return {name: tuple(users) for name, users in found.items()}

    @property
    def root(self) -> Instruction:
        """The instruction whose result is the computation's."""
        return next(one for one in self.instructions if one.is_root)


@attrs.frozen
class Program:
    """The computations of a compiled program, by name."""

    computations: Mapping[str, Computation]
    entry: Computation

    def scopes(self, instruction: Instruction) -> str:
        """Return the scopes of an instruction; of a fusion without any, those within it.

        Compilers that merge or move an instruction may leave it a name of their own.
        """
        named = instruction.op_name
        if "/" in named or instruction.opcode != "fusion":
            return named
        within = self.computations[instruction.called["calls"]].instructions
        return next((one.op_name for one in reversed(within) if "/" in one.op_name), named)

    def scopes_around(self, instruction: Instruction, within: Computation) -> str:
        """Return the scopes of an instruction; where it has none, of the first that takes it."""
        near = (instruction, *within.users.get(instruction.name, ()))
        return next((found for found in map(self.scopes, near) if "/" in found), "")


def parse_program(text: str) -> Program:
    """Return the program that XLA printed as `text`."""
    found: dict[str, Computation] = {}
    entry = ""
    name = ""
    lines: list[str] = []
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            name, lines = header[2], []
            entry = name if header[1] else entry
        elif line == "}" and name:
            found[name] = Computation(name, tuple(map(_parse_instruction, lines)))
            name, lines = "", []
        elif _INSTRUCTION.match(line):
            lines.append(line)
        elif name and lines:
            lines[-1] += line  # a kernel's metadata may go over several lines
    return Program(found, found[entry])


def _parse_instruction(line: str) -> Instruction:
    head = _INSTRUCTION.match(line)
    assert head is not None
    shape, rest = parse_shape(_COMMENT.sub("", line[head.end() :]))
    opcode = _OPCODE.match(rest)
    assert opcode is not None, line
    arguments = _in_parentheses(rest[opcode.end() :])
    return Instruction(
        name=head[2],
        opcode=opcode[1],
        shape=shape,
        operands=tuple(_NAME.findall(arguments)),
        arguments=arguments,
        text=rest[opcode.end() + len(arguments) + 1 :],
        is_root=head[1] is not None,
    )


def _in_parentheses(text: str) -> str:
    """Return the start of `text` up to the parenthesis that closes one opened before it."""
    depth = 1
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            return text[:place]
    return text


# -- Modules by scope ------------------------------------------------------------------------------
#
# A scope is the last step of a module's path, and scopes nest as calls do: attention that a
# residual connection calls is in `attention_residual/attention`, though both are parts of a layer.
# What a gradient is made of is in the scopes of the forward pass.


OUTSIDE_MODULES = "(outside of modules)"
LEARNER = "learner"
"""The scope of the update of parameters."""

_WRAPPED = re.compile(r"^\w+\((.*)\)$")
_MERGED = re.compile(r"\(([^():]*):[^()]*\)")

Path = tuple[str, ...]


def module_paths(model: Module) -> frozenset[Path]:
    """Return the paths of all modules of a tree as the scopes that they open."""
    return frozenset(_scopes(place.path) for place in index_of(model).values())


def _scopes(path: Iterable[str | int]) -> Path:
    steps: list[str] = []
    for step in path:
        if isinstance(step, int):
            steps[-1] = f"{steps[-1]}_{step}"
        else:
            steps.append(step)
    return tuple(steps)


class ModuleNames:
    """The module that an operation belongs to, by its scopes."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = frozenset(paths)
        self._found: dict[str, str] = {}

    def __call__(self, op_name: str) -> str:
        """Return the path of the innermost module that an operation's scopes lead to."""
        if op_name not in self._found:
            self._found[op_name] = self._resolved(op_name)
        return self._found[op_name]

    def _resolved(self, op_name: str) -> str:
        here: Path = ()
        is_inside = False
        for scope in map(_unwrapped, _MERGED.sub(r"\1", op_name).split("/")):
            if scope == LEARNER and not is_inside:
                return LEARNER
            is_inside = is_inside or scope == "model"
            deeper = self._below(here, scope)
            if deeper is not None:
                here, is_inside = deeper, True
        if here:
            return format_path(here)
        return "model" if is_inside else OUTSIDE_MODULES

    def _below(self, here: Path, scope: str) -> Path | None:
        """Return the nearest module of that scope, a part of where we are or of what is around."""
        for length in range(len(here), -1, -1):
            if (*here[:length], scope) in self._paths:
                return (*here[:length], scope)
        return None


def _unwrapped(scope: str) -> str:
    """Return a scope without the transformations around it: `transpose(jvp(head))` is `head`."""
    found = _WRAPPED.match(scope)
    return _unwrapped(found[1]) if found else scope


def is_backward(op_name: str) -> bool:
    """Return whether an operation is of the backward pass, recomputation not counted."""
    return "transpose(" in op_name and "rematted_computation" not in op_name
