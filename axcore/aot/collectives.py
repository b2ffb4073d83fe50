"""What devices send one another: kind, bytes and module of every collective of a program."""

import re
from collections.abc import Iterator

import attrs

from axcore.aot.executions import executions
from axcore.aot.program import Computation, Instruction, Program

KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_GROUPS = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_IOTA_GROUPS = re.compile(r"replica_groups=\[\d+,(\d+)\]<=")
_MESH_GROUPS = re.compile(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}")
_CHANNEL = re.compile(r"channel_id=(\d+)")


@attrs.frozen(kw_only=True)
class Collective:
    """One collective of a program.

    Args:
        kind: One of `KINDS`.
        op_name: Under which scopes it was traced.
        nbytes: Size of the whole array on a device: gathered, or before it is scattered.
        group: How many devices take part together.
        times: How often it runs.
        is_hidden: Whether other work runs meanwhile: it is started and awaited, or fused with work.
    """

    kind: str
    op_name: str
    nbytes: int
    group: int
    times: int
    is_hidden: bool

    @property
    def sent_bytes(self) -> float:
        """Bytes that a device sends, in all its runs, by the best algorithm there is.

        Source: Thakur et al. 2005, "Optimization of collective communication operations in MPICH":
        a ring sends `(n - 1) / n` of the array, and a reduction to all devices twice that.
        """
        if self.kind == "collective-permute":
            return float(self.nbytes * self.times)
        rounds = 2 if self.kind == "all-reduce" else 1
        return rounds * self.nbytes * self.times * (self.group - 1) / max(1, self.group)


def collectives(program: Program, num_devices: int) -> Iterator[Collective]:
    """Yields the collectives of a program; one that several fusions share out counts once."""
    seen: set[tuple[str, str]] = set()
    for one in executions(program):
        for found, within, is_hidden in _found(program, one.instruction, one.computation):
            channel = _CHANNEL.search(found.text)
            key = (one.computation.name, channel[1] if channel else found.name)
            if key in seen:
                continue
            seen.add(key)
            kind = _kind(found)
            sizes = [array.nbytes for array in found.shape.arrays]
            operands = [within.by_name[name].shape.nbytes for name in found.operands]
            whole = sum(operands) if kind in ("all-reduce", "reduce-scatter") else max(sizes)
            if kind == "all-gather" and not found.opcode.endswith("-start"):
                whole = sum(sizes)
            yield Collective(
                kind=kind,
                op_name=found.op_name or one.instruction.op_name,
                nbytes=whole,
                group=_group_size(found, num_devices),
                times=one.times,
                is_hidden=is_hidden,
            )


def _kind(instruction: Instruction) -> str:
    return instruction.opcode.removesuffix("-start")


def _found(
    program: Program, instruction: Instruction, within: Computation
) -> Iterator[tuple[Instruction, Computation, bool]]:
    if _kind(instruction) in KINDS:
        yield instruction, within, instruction.opcode.endswith("-start")
    elif instruction.opcode == "fusion":
        called = program.computations[instruction.called["calls"]]
        for inner in called.instructions:
            for found, place, _ in _found(program, inner, called):
                yield found, place, True


def _group_size(instruction: Instruction, num_devices: int) -> int:
    """Returns how many devices take part together: all of them where the text names no groups."""
    listed = _GROUPS.search(instruction.text)
    if listed:
        return len(listed[1].split(",")) if listed[1] else num_devices
    iota = _IOTA_GROUPS.search(instruction.text)
    if iota:
        return int(iota[1])
    mesh = _MESH_GROUPS.search(instruction.text)
    if mesh:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        group = 1
        for axis in re.findall(r"'(\w+)'", mesh[2]):
            group *= int(sizes[axis])
        return group
    return num_devices
