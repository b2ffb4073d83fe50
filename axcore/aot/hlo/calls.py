"""Computations with their calls inlined.

A call's arguments and results are the caller's own buffers. XLA puts a small loop into a
computation of its own, for example, and calls that.
"""

from collections.abc import Iterator

import attrs

from axcore.aot.hlo.program import Computation, Instruction, Program


def inlined(program: Program, computation: Computation) -> Computation:
    """Returns a computation that holds what its calls run in place of the calls."""
    return Computation(computation.name, tuple(_instructions(program, computation)))


def _instructions(program: Program, computation: Computation) -> Iterator[Instruction]:
    for one in computation.instructions:
        called = program.computations[one.called["to_apply"]] if one.opcode == "call" else None
        if called is None or called.root.opcode == "parameter":
            yield one
        else:
            yield from _of_call(one, inlined(program, called))


def _of_call(call: Instruction, called: Computation) -> Iterator[Instruction]:
    """Yields what a call runs, under the call's names of its arguments and its result."""
    names = {one.name: f"{one.name}@{call.name}" for one in called.instructions}
    names[called.root.name] = call.name
    for one in called.instructions:
        if one.opcode == "parameter":
            names[one.name] = call.operands[int(one.arguments)]
        else:
            yield attrs.evolve(
                one,
                name=names[one.name],
                operands=tuple(names[name] for name in one.operands),
                is_root=one.is_root and call.is_root,
            )
