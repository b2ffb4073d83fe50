"""A loop's trip count: the compiler's own annotation, or what its counter implies.

A loop carries a tuple. One part of it is the counter, which its condition compares with a constant,
its body adds a constant to, and its caller starts. Compilers hide each in fusions and copies, and
take rounds off a loop to run them before it, so that it need not start at 0.
"""

import re
from collections.abc import Callable, Iterator

import attrs

from axcore.aot.hlo.program import Computation, Instruction, Program

_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_SAME = ("bitcast", "convert", "copy", "copy-done", "copy-start", "optimization-barrier", "reshape")
_TURNED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE", "EQ": "EQ"}


@attrs.frozen
class Scalar:
    """A constant, or what a loop carries and a constant more.

    Args:
        amount: The constant.
        carried: The place in the loop's tuple, None for a constant alone.
    """

    amount: int
    carried: int | None = None


def trip_count(program: Program, loop: Instruction, within: Computation) -> int | None:
    """Return a `while` loop's trip count, None where the text does not show it.

    Args:
        program: The program.
        loop: The instruction.
        within: The computation that contains it.
    """
    known = _TRIP_COUNT.search(loop.text)
    if known:
        return int(known[1])
    limit = _limit(program, program.computations[loop.called["condition"]])
    if limit is None:
        return None
    place, direction, end = limit
    body = program.computations[loop.called["body"]]
    start = _part(program, within, loop.operands[0], place)
    after = _part(program, body, body.root.name, place)
    if start is None or start.carried is not None or after is None or after.carried != place:
        return None
    return _rounds(end - start.amount, after.amount, direction)


def _rounds(way: int, step: int, direction: str) -> int | None:
    """Return how many steps stay below a limit at distance `way`."""
    if direction in ("GT", "GE"):
        way, step = -way, -step
    if direction in ("LE", "GE"):
        way += 1
    if step <= 0 or direction == "EQ" or (direction == "NE" and way % step):
        return None
    return max(0, -(-way // step))


def _limit(program: Program, condition: Computation) -> tuple[int, str, int] | None:
    """Return the counter's place, how it is compared, and with what; None for any other test."""
    found = _compared(program, condition, condition.root.name, lambda place: None)
    if found is None:
        return None
    left, direction, right = found
    if left.carried is None:
        left, direction, right = right, _TURNED[direction], left
    if left.carried is None or right.carried is not None:
        return None
    return left.carried, direction, right.amount - left.amount


_Arguments = Callable[[int], Scalar | None]


def _compared(
    program: Program, within: Computation, name: str, arguments: _Arguments
) -> tuple[Scalar, str, Scalar] | None:
    one = within.by_name[name]
    if one.opcode == "fusion":
        inner = program.computations[one.called["calls"]]
        return _compared(
            program, inner, inner.root.name, _operands_of(program, one, within, arguments)
        )
    if one.opcode in _SAME:
        return _compared(program, within, one.operands[0], arguments)
    direction = one.attribute("direction")
    if one.opcode != "compare" or direction is None:
        return None
    left, right = (_scalar(program, within, operand, arguments) for operand in one.operands)
    return None if left is None or right is None else (left, direction, right)


def _part(program: Program, within: Computation, name: str, place: int) -> Scalar | None:
    """Return one part of a tuple, in the body of a loop or where no loop is around."""
    one = within.by_name[name]
    while one.opcode in _SAME:
        one = within.by_name[one.operands[0]]
    if one.opcode != "tuple":
        return None
    return _scalar(program, within, one.operands[place], lambda place: None)


def _scalar(
    program: Program, within: Computation, name: str, arguments: _Arguments
) -> Scalar | None:
    """Return what a number is, None where it is neither constant nor carried.

    Args:
        program: The program.
        within: Where it is computed.
        name: The instruction that computes it.
        arguments: From a parameter's number to its value, in a fusion.
    """
    one = within.by_name[name]
    if one.opcode == "constant":
        return Scalar(int(one.arguments)) if re.fullmatch(r"-?\d+", one.arguments) else None
    if one.opcode == "parameter":
        return arguments(int(one.arguments))
    if one.opcode in _SAME:
        return _scalar(program, within, one.operands[0], arguments)
    if one.opcode == "get-tuple-element":
        return _element(program, within, one, arguments)
    if one.opcode == "fusion":
        return _result(program, within, one, arguments, place=None)
    if one.opcode not in ("add", "subtract"):
        return None
    left, right = (_scalar(program, within, operand, arguments) for operand in one.operands)
    return None if left is None or right is None else _sum(left, right, one.opcode)


def _sum(left: Scalar, right: Scalar, opcode: str) -> Scalar | None:
    if left.carried is not None and right.carried is not None:
        return None
    if opcode == "add":
        carried = right.carried if left.carried is None else left.carried
        return Scalar(left.amount + right.amount, carried)
    if right.carried is not None:
        return None
    return Scalar(left.amount - right.amount, left.carried)


def _element(
    program: Program, within: Computation, one: Instruction, arguments: _Arguments
) -> Scalar | None:
    """Return a part of what a loop carries, or of what a fusion returns."""
    place = int(one.attribute("index") or 0)
    whole = within.by_name[one.operands[0]]
    if whole.opcode == "parameter":
        return Scalar(0, carried=place)
    if whole.opcode == "fusion":
        return _result(program, within, whole, arguments, place=place)
    return None


def _result(
    program: Program,
    within: Computation,
    fusion: Instruction,
    arguments: _Arguments,
    *,
    place: int | None,
) -> Scalar | None:
    inner = program.computations[fusion.called["calls"]]
    name = inner.root.name if place is None else inner.root.operands[place]
    return _scalar(program, inner, name, _operands_of(program, fusion, within, arguments))


def _operands_of(
    program: Program, fusion: Instruction, within: Computation, arguments: _Arguments
) -> _Arguments:
    return lambda number: _scalar(program, within, fusion.operands[number], arguments)


# -- Executions ------------------------------------------------------------------------------------
#
# How often each instruction of a program runs: the call graph, with loops counted.


CALLS = ("call", "async-start")


@attrs.frozen
class Execution:
    """A scheduled instruction, and how often a run of the program executes it.

    Args:
        instruction: A fusion counts as one, whatever is inside of it.
        computation: The computation that contains it.
        times: How often it runs.
    """

    instruction: Instruction
    computation: Computation
    times: int


def executions(program: Program) -> Iterator[Execution]:
    """Yield every scheduled instruction in the order of the program's text of execution.

    Bodies of loops count as often as the loop goes round, or once where that cannot be read off.
    Every branch of a conditional counts, though one alone is taken.
    """
    yield from _within(program, program.entry, 1)


def _within(program: Program, computation: Computation, times: int) -> Iterator[Execution]:
    for one in computation.instructions:
        yield Execution(one, computation, times)
        if one.opcode == "while":
            rounds = times * (trip_count(program, one, computation) or 1)
            yield from _within(program, program.computations[one.called["condition"]], rounds)
            yield from _within(program, program.computations[one.called["body"]], rounds)
        elif one.opcode in CALLS:
            called = one.called.get("calls") or one.called["to_apply"]
            yield from _within(program, program.computations[called], times)
        elif one.opcode == "conditional":
            for branch in one.branches:
                yield from _within(program, program.computations[branch], times)


def unknown_loops(program: Program) -> int:
    """Return how many loops run a number of times that cannot be read off, and count as one."""
    return sum(
        one.opcode == "while" and trip_count(program, one, computation) is None
        for computation in program.computations.values()
        for one in computation.instructions
    )
