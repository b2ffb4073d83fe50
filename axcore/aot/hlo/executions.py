"""How often each instruction of a program runs: the call graph, with loops counted."""

from collections.abc import Iterator

import attrs

from axcore.aot.hlo.loops import trip_count
from axcore.aot.hlo.program import Computation, Instruction, Program

CALLS = ("call", "async-start")


@attrs.frozen
class Execution:
    """A scheduled instruction, and how often a run of the program executes it.

    Args:
        instruction: A fusion counts as one, whatever is inside of it.
        computation: The computation that holds it.
        times: How often it runs.
    """

    instruction: Instruction
    computation: Computation
    times: int


def executions(program: Program) -> Iterator[Execution]:
    """Yields every scheduled instruction in the order of the program's text of execution.

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
    """Returns how many loops run a number of times that cannot be read off, and count as one."""
    return sum(
        one.opcode == "while" and trip_count(program, one, computation) is None
        for computation in program.computations.values()
        for one in computation.instructions
    )
