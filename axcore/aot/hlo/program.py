"""A compiled program, read from the text that XLA prints of it: instructions in computations.

Only what reports need is read. A line is one instruction,

    %name = SHAPE opcode(%operand, ...), calls=%other, metadata={op_name="..."}, ...

and a computation is a header line that ends in `{`, its instructions in the order of execution,
and a line `}`.
"""

import re
from collections.abc import Mapping
from functools import cached_property

import attrs

from axcore.aot.hlo.shapes import Shape, parse_shape

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
        text: The whole line after the operands: attributes, metadata, backend config.
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
        """Returns an attribute's text up to the next comma or blank, or None."""
        found = re.search(rf"[ ,]{name}=([^, ]+)", self.text)
        return found[1] if found else None

    def number(self, key: str) -> int | None:
        """Returns a number of the backend config, written as `"key":"123"` or `"key":123`."""
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
        """Returns the scopes of an instruction; of a fusion without any, those within it.

        Compilers that merge or move an instruction may leave it a name of their own.
        """
        named = instruction.op_name
        if "/" in named or instruction.opcode != "fusion":
            return named
        within = self.computations[instruction.called["calls"]].instructions
        return next((one.op_name for one in reversed(within) if "/" in one.op_name), named)

    def scopes_around(self, instruction: Instruction, within: Computation) -> str:
        """Returns the scopes of an instruction; where it has none, of the first that takes it."""
        near = (instruction, *within.users.get(instruction.name, ()))
        return next((found for found in map(self.scopes, near) if "/" in found), "")


def parse_program(text: str) -> Program:
    """Returns the program that XLA printed as `text`."""
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
    """Returns the start of `text` up to the parenthesis that closes one opened before it."""
    depth = 1
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            return text[:place]
    return text
