"""Which buffers are alive where a program needs most memory, followed through its schedule.

The compiler's own totals are exact; this lists what they are made of. A result lives from where it
is computed to where it is last read. Loops, calls, tuples and updates in place make no new buffer.
What is passed in or out belongs to the caller.
"""

from collections.abc import Iterator

import attrs

from axcore.aot.hlo.program import DEVICE_MEMORY, Computation, Instruction, Program, Shape

_ALIASES = ("bitcast", "optimization-barrier", "copy-done", "async-done", "add-dependency")
_NOTHING = ("constant", "after-all", "partition-id", "replica-id")


@attrs.frozen(eq=False)
class Buffer:
    """One array in the device's memory.

    Args:
        shape: Its shape.
        op_name: The scopes under which it was made, or what is put into it.
        instruction: The name of the instruction that made it.
        last_use: The scopes under which it is read last.
    """

    shape: Shape
    op_name: str
    instruction: str
    last_use: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes that it takes, padding included."""
        return self.shape.stored_bytes


@attrs.frozen
class MemoryPeak:
    """The buffers alive at a program's peak, largest first, and where that is."""

    buffers: tuple[Buffer, ...]
    op_name: str

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(buffer.nbytes for buffer in self.buffers)


def peak_of(program: Program) -> MemoryPeak:
    """Return the buffers alive at the peak, without arguments and results."""
    peak = _Lifetimes(program, program.entry).peak()
    return MemoryPeak(tuple(sorted(peak.buffers, key=lambda one: -one.nbytes)), peak.op_name)


class _Lifetimes:
    """The buffers of one computation, from first to last use."""

    def __init__(self, program: Program, computation: Computation) -> None:
        self.program = program
        self.computation = _inlined(program, computation)
        self.held: dict[str, tuple[tuple[Buffer, ...], ...]] = {}
        self.births: dict[Buffer, int] = {}
        self.deaths: dict[Buffer, int] = {}
        self.written: dict[Buffer, str] = {}
        for place, one in enumerate(self.computation.instructions):
            self._add(place, one)
        for buffers in self.held[self.computation.root.name]:
            for buffer in buffers:
                self.births.pop(buffer, None)

    def _add(self, place: int, one: Instruction) -> None:
        result = self._result(one)
        read = [result] if one.opcode == "get-tuple-element" else map(self._held, one.operands)
        for parts in read:
            for buffers in parts:
                for buffer in buffers:
                    self.deaths[buffer] = place
        self.held[one.name] = result
        for buffers in result:
            for buffer in buffers:
                if buffer.instruction == one.name:
                    self.births[buffer] = place
                    self.deaths[buffer] = place

    def _result(self, one: Instruction) -> tuple[tuple[Buffer, ...], ...]:
        """Return the buffers of a result: one group for each part of a tuple."""
        if one.opcode == "parameter" or one.opcode in _NOTHING:
            return tuple(() for _ in one.shape.parts or (one.shape,))
        given = [self._held(name) for name in one.operands]
        if one.opcode == "tuple":
            return tuple(tuple(buffer for part in parts for buffer in part) for parts in given)
        if one.opcode == "get-tuple-element":
            index = int(one.attribute("index") or 0)
            return (given[0][index],) if index < len(given[0]) else ((),)
        if one.opcode == "while":
            self._name_by_writers(one, given[0])
            return given[0]
        if one.opcode in _ALIASES or one.opcode.endswith("-done"):
            return given[0][:1]
        if self._is_in_place(one):
            return tuple(_matching(shape, given) for shape in one.shape.arrays)
        return tuple(
            (Buffer(shape, self._op_name(one), one.name),) if _counts(shape) else ()
            for shape in _new_arrays(one)
        )

    def _held(self, name: str) -> tuple[tuple[Buffer, ...], ...]:
        return self.held.get(name, ((),))

    def _name_by_writers(self, loop: Instruction, parts: tuple[tuple[Buffer, ...], ...]) -> None:
        for op_name, part in zip(writers(self.program, loop), parts, strict=False):
            for buffer in part:
                if op_name and buffer not in self.written and _is_empty(buffer):
                    self.written[buffer] = op_name

    def _op_name(self, one: Instruction) -> str:
        """Return the scopes of an instruction; those of what it copies, where it has none."""
        if one.opcode.startswith("copy"):
            copied = next(iter(self._held(one.operands[0])[0]), None)
            if copied is not None:
                return self.written.get(copied, copied.op_name)
        while not self.program.scopes(one) and one.operands:
            one = self.computation.by_name[one.operands[0]]
        return self.program.scopes(one)

    def _is_in_place(self, one: Instruction) -> bool:
        if one.opcode == "dynamic-update-slice":
            return True
        if one.opcode != "fusion":
            return False
        root = self.program.computations[one.called["calls"]].root
        while root.opcode in ("bitcast", "convert") and root.operands:
            inside = self.program.computations[one.called["calls"]].by_name
            root = inside[root.operands[0]]
        return root.opcode == "dynamic-update-slice"

    def peak(self) -> MemoryPeak:
        best = MemoryPeak((), "")
        ends: dict[int, list[Buffer]] = {}
        starts: dict[int, list[Buffer]] = {}
        for buffer, birth in self.births.items():
            starts.setdefault(birth, []).append(buffer)
            ends.setdefault(self.deaths[buffer], []).append(buffer)
        alive: dict[Buffer, None] = {}
        alive_bytes = 0
        best_bytes = -1
        for place, one in enumerate(self.computation.instructions):
            for buffer in starts.get(place, ()):
                alive[buffer] = None
                alive_bytes += buffer.nbytes
            inner = self._inner(one)
            if alive_bytes + inner.nbytes > best_bytes:
                best_bytes = alive_bytes + inner.nbytes
                named = (self._named(buffer) for buffer in alive)
                best = MemoryPeak((*named, *inner.buffers), inner.op_name or one.op_name)
            for buffer in ends.get(place, ()):
                del alive[buffer]
                alive_bytes -= buffer.nbytes
        return best

    def _named(self, buffer: Buffer) -> Buffer:
        reader = self.computation.instructions[self.deaths[buffer]]
        return attrs.evolve(
            buffer,
            op_name=self.written.get(buffer, buffer.op_name),
            last_use=_scopes_of(self.program, reader),
        )

    def _inner(self, one: Instruction) -> MemoryPeak:
        """Return the peak inside of what an instruction calls."""
        peaks = [
            _Lifetimes(self.program, self.program.computations[name]).peak()
            for name in _called(one)
        ]
        return max(peaks, key=lambda peak: peak.nbytes, default=MemoryPeak((), ""))


def _scopes_of(program: Program, one: Instruction) -> str:
    """Return the scopes of an instruction; of a loop without any, those of what it does last."""
    if one.op_name or one.opcode != "while":
        return program.scopes(one)
    within = program.computations[one.called["body"]].instructions
    return next((inner.op_name for inner in reversed(within) if inner.op_name), "")


def _called(one: Instruction) -> Iterator[str]:
    if one.opcode == "while":
        yield one.called["body"]
    elif one.opcode in ("call", "async-start"):
        yield one.called.get("calls") or one.called["to_apply"]
    elif one.opcode == "conditional":
        yield from one.branches


def _new_arrays(one: Instruction) -> tuple[Shape, ...]:
    """Return the arrays that an instruction makes; one that is started also names its operands."""
    arrays = one.shape.arrays
    if one.opcode.endswith("-start"):
        return arrays[:1] if one.opcode == "copy-start" else arrays[-1:]
    return arrays


def _is_empty(buffer: Buffer) -> bool:
    """Return whether a buffer starts out as an empty array, or a copy of one, to be filled."""
    return "dot_general" not in buffer.op_name and (
        "broadcast" in buffer.op_name
        or buffer.op_name == ""
        or "broadcast" in buffer.instruction
        or buffer.instruction.startswith("copy")
    )


def _counts(shape: Shape) -> bool:
    return shape.space == DEVICE_MEMORY


def _matching(shape: Shape, given: list[tuple[tuple[Buffer, ...], ...]]) -> tuple[Buffer, ...]:
    """Return the operand's buffer that a result of this shape is written into."""
    for parts in given:
        for part in parts:
            if any(buffer.shape.dims == shape.dims for buffer in part):
                return part
    return ()


# -- Inlined calls ---------------------------------------------------------------------------------
#
# A call's arguments and results are the caller's own buffers. XLA puts a small loop into a
# computation of its own, for example, and calls that.


def _inlined(program: Program, computation: Computation) -> Computation:
    """Return a computation that contains what its calls run in place of the calls."""
    return Computation(computation.name, tuple(_instructions(program, computation)))


def _instructions(program: Program, computation: Computation) -> Iterator[Instruction]:
    for one in computation.instructions:
        called = program.computations[one.called["to_apply"]] if one.opcode == "call" else None
        if called is None or called.root.opcode == "parameter":
            yield one
        else:
            yield from _of_call(one, _inlined(program, called))


def _of_call(call: Instruction, called: Computation) -> Iterator[Instruction]:
    """Yield what a call runs, under the call's names of its arguments and its result."""
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


# -- Who writes into the arrays that a loop carries ------------------------------------------------
#
# A stack of values, one a round, is made before the loop as an empty array, by nobody in
# particular, and so is a sum. What it contains was made by what is put into it.


_SAME = ("bitcast", "copy", "convert", "reshape", "transpose", "get-tuple-element")


def writers(program: Program, loop: Instruction) -> tuple[str, ...]:
    """Return, for each part of a loop's tuple, the scopes of what the loop puts into it.

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
    """Return the instruction that computed a value, looking through changes of its layout."""
    one = within.by_name[name]
    while one.opcode in _SAME and one.operands:
        one = within.by_name[one.operands[0]]
    return one
