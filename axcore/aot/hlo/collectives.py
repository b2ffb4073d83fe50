"""What devices send one another: kind, bytes and module of every collective of a program.

Over slices, hosts carry it out: XLA has a `send` to the host and a `recv` from it then, whose
attributes name the collective.
"""

import math
import re
from collections.abc import Iterator

import attrs
import numpy as np

from axcore.aot.hlo.loops import Execution, executions
from axcore.aot.hlo.program import Computation, Instruction, Program
from axcore.errors import AotError
from axcore.plugins import Hardware

KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_CHANNEL = re.compile(r"channel_id=(\d+)")
_OVER_SLICES = re.compile(r'_megascale_target="\{([\d,:]+)\}x.*_megascale_transfer_type="(\w+)"')
_BY_HOSTS = {
    "ALL_GATHER": "all-gather",
    "ALL_REDUCE": "all-reduce",
    "ALL_TO_ALL": "all-to-all",
    "ONE_TO_ONE": "collective-permute",
    "REDUCE_SCATTER": "reduce-scatter",
}
_RENDEZVOUS = re.compile(r'_host_transfer_rendezvous="([^"]*)"')


@attrs.frozen(kw_only=True)
class Collective:
    """One collective of a program.

    Args:
        kind: One of `KINDS`.
        op_name: Under which scopes it was traced.
        nbytes: Size of the full array on a device: gathered, or before it is scattered.
        group: How many devices take part together.
        islands: Over how many groups of devices with one interconnect those are spread.
        times: How often it runs.
        started: Name of the instruction that starts it.
        awaited: Name of the instruction after which it is there.
        is_hidden: Whether other work can run meanwhile: it is started and awaited apart, or fused
            with work.
    """

    kind: str
    op_name: str
    nbytes: int
    group: int
    islands: int = 1
    times: int
    started: str = ""
    awaited: str = ""
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


@attrs.frozen
class _Found:
    """A collective in the text, and between which instructions of the schedule it runs."""

    instruction: Instruction
    within: Computation
    started: Execution
    awaited: str
    is_hidden: bool


def collectives(program: Program, hardware: Hardware) -> Iterator[Collective]:
    """Yield the collectives of a program; one that several fusions share out counts once.

    Such fusions have the same channel. So do all collectives that JAX writes for a `shard_map`,
    which are not the same.
    """
    found: dict[tuple[str, str], _Found] = {}
    inside = _asynchronous(program)
    for one in executions(program):
        if one.computation.name in inside:
            continue
        for new in _found(program, one):
            is_fused = one.instruction.opcode == "fusion"
            channel = _CHANNEL.search(new.instruction.text) if is_fused else None
            key = (one.computation.name, channel[1] if channel else new.instruction.name)
            first = found.setdefault(key, new)
            found[key] = attrs.evolve(first, awaited=new.awaited)
    yield from (_collective(one, hardware) for one in found.values())


def _found(program: Program, one: Execution) -> Iterator[_Found]:
    """Yield the collectives that a scheduled instruction starts or, as a fusion, is part of."""
    instruction, name = one.instruction, one.instruction.name
    if instruction.opcode == "async-start":
        started = program.computations[instruction.called["calls"]]
        for inner in started.instructions:
            if _kind(inner) in KINDS:
                yield _Found(inner, started, one, _awaited(instruction, one.computation), True)
    elif instruction.opcode == "send" and _OVER_SLICES.search(instruction.text):
        awaited = _received(instruction, one.computation)
        yield _Found(instruction, one.computation, one, awaited, True)
    elif _kind(instruction) in KINDS:
        awaited = _awaited(instruction, one.computation)
        yield _Found(instruction, one.computation, one, awaited, awaited != name)
    elif instruction.opcode == "fusion":
        yield from (
            _Found(inner, within, one, name, True)
            for inner, within in _fused(program, instruction.called["calls"])
        )


def _fused(program: Program, name: str) -> Iterator[tuple[Instruction, Computation]]:
    within = program.computations[name]
    for one in within.instructions:
        if _kind(one) in KINDS:
            yield one, within
        elif one.opcode == "fusion":
            yield from _fused(program, one.called["calls"])


def _awaited(started: Instruction, within: Computation) -> str:
    """Return the name of the instruction that awaits what another starts; its own for none."""
    names = {started.name}
    for one in within.instructions:
        if names.intersection(one.operands[:1]):
            if one.opcode.endswith("-done"):
                return one.name
            if one.opcode in ("async-update", "get-tuple-element", "bitcast"):
                names.add(one.name)
    return started.name


def _received(send: Instruction, within: Computation) -> str:
    """Return the name of the instruction that awaits what hosts make of what a device sends."""
    place = _RENDEZVOUS.findall(send.text)
    for one in within.instructions:
        if one.opcode == "recv" and _RENDEZVOUS.findall(one.text) == place:
            return _awaited(one, within)
    return send.name


def _asynchronous(program: Program) -> frozenset[str]:
    """Return the computations that are started, and run while others do."""
    return frozenset(
        one.called["calls"]
        for computation in program.computations.values()
        for one in computation.instructions
        if one.opcode == "async-start"
    )


def _collective(found: _Found, hardware: Hardware) -> Collective:
    one = found.instruction
    over_slices = _OVER_SLICES.search(one.text)
    if over_slices:
        return _by_hosts(found, *over_slices.groups())
    group = first_group(one.text, hardware.num_devices)
    return Collective(
        kind=_kind(one),
        op_name=one.op_name or found.started.instruction.op_name,
        nbytes=_whole_bytes(one, found.within),
        group=len(group),
        islands=_num_islands(one, group, hardware),
        times=found.started.times,
        started=found.started.instruction.name,
        awaited=found.awaited,
        is_hidden=found.is_hidden,
    )


def _by_hosts(found: _Found, slices: str, transfer: str) -> Collective:
    """Return a collective that hosts carry out over slices, one device of each."""
    one = found.instruction
    if transfer not in _BY_HOSTS:
        raise AotError(
            f"hosts carry out {transfer} over slices, whose cost is not known",
            where=one.name,
            hint="name a target of one slice, or shard over slices what is summed alone",
        )
    received = found.within.by_name[found.awaited].shape.parts[0].nbytes
    group = sum(_length(part) for part in slices.split(","))
    return Collective(
        kind=_BY_HOSTS[transfer],
        op_name=one.op_name or found.started.instruction.op_name,
        nbytes=max(one.shape.parts[0].nbytes, received),
        group=group,
        islands=group,
        times=found.started.times,
        started=one.name,
        awaited=found.awaited,
        is_hidden=True,
    )


def _length(part: str) -> int:
    """Return how many slices `3` or `0:31` means."""
    first, _, last = part.partition(":")
    return int(last or first) - int(first) + 1


def _kind(instruction: Instruction) -> str:
    return instruction.opcode.removesuffix("-start")


def _whole_bytes(one: Instruction, within: Computation) -> int:
    if _kind(one) in ("all-reduce", "reduce-scatter"):
        return sum(within.by_name[name].shape.nbytes for name in one.operands)
    if one.opcode.endswith("-start") and len(one.shape.parts) > 1:
        return int(one.shape.parts[1].nbytes)  # the first part names what is sent
    return one.shape.nbytes


def _num_islands(one: Instruction, group: tuple[int, ...], hardware: Hardware) -> int:
    """Return how many interconnects a group is on; 2 for a permutation that leaves one."""
    linked = hardware.linked_devices
    if _kind(one) == "collective-permute":
        pairs = source_target_pairs(one.text)
        return 2 if any(here // linked != there // linked for here, there in pairs) else 1
    return len({device // linked for device in group})


# -- Groups of devices -----------------------------------------------------------------------------
#
# XLA writes them in three ways. Every device once, as `{{0,1},{2,3}}`; an iota, reshaped and
# transposed, as `[2,4]<=[4,2]T(1,0)`; or by axes of a mesh, as `mesh['x'=2,'y'=4] {'y'}`, where
# `'y':(2)2` is a part of an axis: 2 large, with steps of 4 / (2 * 2). Groups of one collective are
# alike: the first represents all.


_LISTED = re.compile(r"replica_groups=\{(?:\{([\d,]*)\})?")
_COUNTED = re.compile(r"replica_groups=\[\d+,(\d+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)")
_MESH = re.compile(
    r"replica_groups=mesh\[([^\]]*)\]"
    r"(?:, ?device_ids=\((\[[\d,]+\](?:T\([\d,]+\))?)\))? ?\{([^}]*)\}"
)
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_IOTA = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\))?")
_AXIS = re.compile(r"'(\w+)'=(\d+)")
_USED = re.compile(r"'(\w+)'(?::\((\d+)\)(\d+))?")


def first_group(text: str, num_devices: int) -> tuple[int, ...]:
    """Return the devices of the first group: all of them where the text names none.

    Args:
        text: The attributes of the collective.
        num_devices: Of the full program.
    """
    mesh = _MESH.search(text)
    if mesh:
        return _of_mesh(*mesh.groups())
    counted = _COUNTED.search(text)
    if counted:
        return tuple(int(one) for one in _iota(counted[2])[: int(counted[1])])
    listed = _LISTED.search(text)
    if listed and listed[1]:
        return tuple(int(one) for one in listed[1].split(","))
    return tuple(range(num_devices))


def source_target_pairs(text: str) -> tuple[tuple[int, int], ...]:
    """Return who sends to whom in a permutation."""
    found = _PAIRS.search(text)
    numbers = [int(one) for one in re.findall(r"\d+", found[1])] if found else []
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _iota(text: str) -> np.ndarray:
    """Return the devices that `[2,4]T(1,0)` counts: 0 to 7 as two rows of four, by columns."""
    found = _IOTA.match(text)
    assert found is not None, text
    dims = [int(size) for size in found[1].split(",")]
    devices = np.arange(math.prod(dims)).reshape(dims)
    if found[2]:
        devices = devices.transpose([int(dim) for dim in found[2].split(",")])
    return devices.reshape(-1)


def _of_mesh(axes: str, devices: str | None, used: str) -> tuple[int, ...]:
    sizes = {name: int(size) for name, size in _AXIS.findall(axes)}
    parts: dict[str, list[tuple[int, int]]] = {name: [] for name in sizes}
    for name, before, size in _USED.findall(used):
        parts[name].append((int(before or 1), int(size or sizes[name])))
    dims: list[int] = []
    is_used: list[bool] = []
    for name, whole in sizes.items():
        passed = 1
        for before, size in sorted(parts[name]):
            dims += [before // passed, size]
            is_used += [False, True]
            passed = before * size
        dims.append(whole // passed)
        is_used.append(False)
    ids = _iota(devices) if devices else np.arange(math.prod(sizes.values()))
    first = ids.reshape(dims)[tuple(slice(None) if one else 0 for one in is_used)]
    return tuple(int(one) for one in first.reshape(-1))
