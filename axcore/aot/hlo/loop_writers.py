"""Who writes into the arrays that a loop carries.

A stack of values, one a round, is made before the loop as an empty array, by nobody in particular,
and so is a sum. What it holds was made by what is put into it.
"""

from axcore.aot.hlo.program import Computation, Instruction, Program

_SAME = ("bitcast", "copy", "convert", "reshape", "transpose", "get-tuple-element")


def writers(program: Program, loop: Instruction) -> tuple[str, ...]:
    """Returns, for each part of a loop's tuple, the scopes of what the loop puts into it.

    Empty for a part that the loop leaves as it is.
    """
    body = program.computations[loop.called["body"]]
    if body.root.opcode != "tuple":
        return ()
    return tuple(_written(program, body, name) for name in body.root.operands)


def _written(program: Program, within: Computation, name: str) -> str:
    one = within.by_name[name]
    if one.opcode in _SAME and one.operands:
        return _written(program, within, one.operands[0])
    if one.opcode == "dynamic-update-slice":
        return _made(program, within, one.operands[1])
    if one.opcode != "fusion":
        return one.op_name
    fused = program.computations[one.called["calls"]]
    root = fused.root
    while root.opcode in _SAME and root.operands:
        root = fused.by_name[root.operands[0]]
    if root.opcode != "dynamic-update-slice":
        return one.op_name
    value = _source(fused, root.operands[1])
    if value.opcode != "parameter":
        return value.op_name or one.op_name
    return _made(program, within, one.operands[int(value.arguments)]) or one.op_name


def _made(program: Program, within: Computation, name: str) -> str:
    one = _source(within, name)
    if one.opcode == "fusion" and not one.op_name:
        return program.computations[one.called["calls"]].root.op_name
    return one.op_name


def _source(within: Computation, name: str) -> Instruction:
    """Returns the instruction that computed a value, looking through changes of its layout."""
    one = within.by_name[name]
    while one.opcode in _SAME and one.operands:
        one = within.by_name[one.operands[0]]
    return one
