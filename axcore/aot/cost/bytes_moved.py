"""Bytes that an instruction reads from and writes to a device's memory.

A fusion reads its operands and writes its results once, whatever is inside. Where it takes or puts
only a slice of an operand, as the body of a loop does with stacked layers, the slice counts; of an
array into which it scatters, what it puts there. A kernel that is given more than it reads says
what it moves by `moved_bytes_scope`. Smaller memories on the chip are left out.
"""

from collections.abc import Sequence
from typing import TypeVar

from axcore.aot.hlo.program import Computation, Instruction, Program
from axcore.aot.hlo.shapes import Shape
from axcore.ops import moved_bytes_of

T = TypeVar("T")

_FREE = (
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "while",
    "call",
    "conditional",
    "after-all",
    "partition-id",
    "replica-id",
    "optimization-barrier",
)


def bytes_moved(program: Program, instruction: Instruction, within: Computation) -> int:
    """Returns the bytes that one run of a scheduled instruction moves."""
    opcode = instruction.opcode
    if opcode in _FREE or opcode.endswith("-done") or 'target="AllocateBuffer"' in instruction.text:
        return 0
    operands = [within.by_name[name].shape for name in instruction.operands]
    if opcode == "fusion":
        return _fusion_bytes(program.computations[instruction.called["calls"]], operands)
    if opcode in ("dynamic-slice", "slice", "gather"):
        return 2 * instruction.shape.device_bytes
    if opcode in _COPIES_STARTED:
        return _started_bytes(instruction, operands[0])
    if opcode == "dynamic-update-slice":
        return 2 * operands[1].device_bytes
    if opcode == "scatter":
        return 2 * sum(shape.device_bytes for shape in _updates(operands))
    given = instruction.shape.device_bytes + sum(shape.device_bytes for shape in operands)
    stated = moved_bytes_of(instruction.op_name) if opcode == "custom-call" else None
    return given if stated is None else min(stated, given)


_COPIES_STARTED = ("copy-start", "slice-start")


def _started_bytes(instruction: Instruction, source: Shape) -> int:
    """Returns the bytes of a copy on its way; its shape holds the source beside the target."""
    made = instruction.shape.arrays
    target = made[0] if instruction.opcode == "copy-start" else made[len(source.arrays)]
    return target.device_bytes + (target.nbytes if source.device_bytes else 0)


_IN_PLACE = ("dynamic-update-slice", "scatter")


def _fusion_bytes(fused: Computation, operands: list[Shape]) -> int:
    read = sum(
        _read_bytes(fused, parameter, operands[int(parameter.arguments)])
        for parameter in fused.instructions
        if parameter.opcode == "parameter"
    )
    return read + sum(_written_bytes(fused, name) for name in _results(fused))


def _read_bytes(fused: Computation, parameter: Instruction, shape: Shape) -> int:
    """Counts slices where an operand is only sliced, and nothing where a slice is put into it."""
    same = _same_array(fused, parameter)
    read = 0
    for user in _users(fused, parameter.name):
        if user.opcode in ("dynamic-slice", "gather"):
            read += user.shape.device_bytes
        elif user.opcode not in _IN_PLACE or user.operands[0] not in same:
            return shape.device_bytes
    return min(read, shape.device_bytes)


def _users(fused: Computation, name: str) -> list[Instruction]:
    """Returns what uses a value, looking through bitcasts."""
    users = []
    for one in fused.instructions:
        if name in one.operands:
            users += _users(fused, one.name) if one.opcode == "bitcast" else [one]
    return users


def _same_array(fused: Computation, parameter: Instruction) -> set[str]:
    names = {parameter.name}
    for one in fused.instructions:
        if one.opcode == "bitcast" and one.operands[0] in names:
            names.add(one.name)
    return names


def _results(fused: Computation) -> tuple[str, ...]:
    root = fused.root
    return root.operands if root.opcode == "tuple" else (root.name,)


def _written_bytes(fused: Computation, name: str) -> int:
    one = fused.by_name[name]
    while one.opcode == "bitcast":
        one = fused.by_name[one.operands[0]]
    if one.opcode == "dynamic-update-slice":
        return fused.by_name[one.operands[1]].shape.device_bytes
    if one.opcode == "scatter" and _is_given(fused, one.operands[0]):
        return sum(fused.by_name[given].shape.device_bytes for given in _updates(one.operands))
    return 0 if one.opcode == "parameter" else one.shape.device_bytes


def _is_given(fused: Computation, name: str) -> bool:
    """Returns whether a value is a parameter, which is then written in place."""
    one = fused.by_name[name]
    while one.opcode == "bitcast":
        one = fused.by_name[one.operands[0]]
    return one.opcode == "parameter"


def _updates(operands: Sequence[T]) -> Sequence[T]:
    """Returns what a scatter puts in: its operands are arrays, indices, and as many updates."""
    return operands[len(operands) // 2 + 1 :]
