"""How long a step takes: the compiler's cycles where it gives them, else a roofline.

`step = compute + kernels + collectives`. Compute is the estimated cycles, with loops counted, over
the clock, and the bytes of gathered rows, of which a compiler may give none, over the bandwidth.
Without cycles each instruction takes the longer of its FLOPs over the peak and its bytes over the
memory's bandwidth, both times the `Hardware.achievable_fraction` that programs reach. So do kernels
that the compiler did not write. Collectives count as far as steps wait for them, which `timeline`
computes; a ring takes what a device sends over the slower of the links to its neighbours and the
network of those of the group that share its interconnect.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import attrs

from axcore.aot.cost.operations import CustomKernel, Product, bytes_moved, dtype_name, products
from axcore.aot.hlo.collectives import KINDS, Collective
from axcore.aot.hlo.loops import CALLS, Execution, executions, trip_count
from axcore.aot.hlo.program import Computation, Instruction, Program
from axcore.plugins import Hardware

CYCLES = "estimated_cycles"


@attrs.frozen(kw_only=True)
class Cost:
    """What a scheduled instruction takes in all its runs.

    Args:
        name: The instruction's.
        op_name: The scopes under which it was traced.
        times: How often it runs.
        flops: Of its products.
        nbytes: Moved in the device's memory.
        cycles: The compiler's estimate; 0 where there is none.
        seconds: By cycles or roofline; None where the hardware's figures are not known.
        is_product: Whether a roofline's products take longer than its bytes.
    """

    name: str
    op_name: str
    times: int
    flops: float
    nbytes: float
    cycles: int
    seconds: float | None
    is_product: bool = False


def costs(
    program: Program, hardware: Hardware, kernels: Sequence[CustomKernel] = ()
) -> tuple[Cost, ...]:
    """Return what each scheduled instruction takes.

    Args:
        program: The program.
        hardware: What it runs on.
        kernels: Those whose time is counted apart.
    """
    ran = tuple(executions(program))
    has_cycles = any(one.instruction.number(CYCLES) for one in ran)
    apart = {kernel.name for kernel in kernels}
    return tuple(
        _cost(program, one, hardware, has_cycles=has_cycles, is_apart=one.instruction.name in apart)
        for one in ran
    )


def _cost(
    program: Program, one: Execution, hardware: Hardware, *, has_cycles: bool, is_apart: bool
) -> Cost:
    made = tuple(products(program, one.instruction, one.computation))
    nbytes = bytes_moved(program, one.instruction, one.computation)
    cycles = one.instruction.number(CYCLES) or 0
    is_product = False
    seconds: float | None = 0.0
    if has_cycles:
        seconds = cycles / hardware.clock_hz if hardware.clock_hz else None
        if seconds == 0.0 and _is_moved_without_estimate(program, one):
            seconds = roofline_s((), nbytes, hardware)
    elif not is_apart and one.instruction.opcode.removesuffix("-start") not in KINDS:
        seconds = roofline_s(made, nbytes, hardware)
        is_product = bool(made) and seconds is not None and seconds == products_s(made, hardware)
    return Cost(
        name=one.instruction.name,
        op_name=(made[0].op_name if made else "")
        or program.scopes_around(one.instruction, one.computation),
        times=one.times,
        flops=sum(product.flops for product in made) * one.times,
        nbytes=float(nbytes * one.times),
        cycles=cycles * one.times,
        seconds=None if seconds is None else seconds * one.times,
        is_product=is_product,
    )


def _is_moved_without_estimate(program: Program, one: Execution) -> bool:
    """Return whether an instruction gathers rows or lays them out again, without cycles."""
    instruction = one.instruction
    if instruction.opcode != "fusion":
        return instruction.opcode in ("reshape", "gather")
    fused = program.computations[instruction.called["calls"]]
    return any(inner.opcode == "gather" for inner in fused.instructions)


def roofline_s(
    made: Sequence[Product], nbytes: float, hardware: Hardware, *, role: str = ""
) -> float | None:
    """Return the longer of the time of products and that of bytes; None without figures.

    Args:
        made: The products.
        nbytes: Bytes moved.
        hardware: What runs them.
        role: As what `Hardware.achievable_fraction` may name them, a kernel behind a slash before
            its op; they count by their dtype otherwise.
    """
    if hardware.memory_bandwidth is None or not hardware.peak_flops:
        return None
    bandwidth = hardware.memory_bandwidth * hardware.achievable_fraction.get("memory", 1.0)
    return max(
        products_s(made, hardware, role=role), nbytes / (bandwidth / hardware.devices_per_chip)
    )


def products_s(made: Sequence[Product], hardware: Hardware, *, role: str = "") -> float:
    """Return how long products take, at the share of the peak that is reached."""
    return sum(product.flops / _speed(product.dtype, hardware, role) for product in made)


def kernel_s(kernel: CustomKernel, hardware: Hardware) -> float | None:
    """Return the time of a kernel that the compiler did not write."""
    product = Product(kernel.flops, kernel.dtype, kernel.op_name)
    return roofline_s((product,), kernel.nbytes, hardware, role=kernel.role)


def waiting_s(
    program: Program,
    found: Sequence[Collective],
    work: Sequence[Cost],
    kernels: Sequence[CustomKernel],
    hardware: Hardware,
) -> tuple[float, ...] | None:
    """Return how long a step waits for each collective; None where figures are missing.

    Args:
        program: The program.
        found: Its collectives.
        work: What its instructions take.
        kernels: Those that take time of their own.
        hardware: What it runs on.
    """
    if hardware.num_devices == 1:
        return (0.0,) * len(found)
    timed = [(one.name, one.times, one.seconds) for one in work]
    timed += [(one.name, one.times, kernel_s(one, hardware)) for one in kernels]
    transfers = []
    for one in found:
        alone = transfer_s(one, hardware)
        if alone is None:
            return None
        transfers.append(Transfer(started=one.started, awaited=one.awaited, seconds=alone))
    work_s = _of_one_run(timed)
    if work_s is None:
        return None
    waited = waits_s(program, work_s, transfers)
    return tuple(seconds * one.times for seconds, one in zip(waited, found, strict=True))


def _of_one_run(timed: Sequence[tuple[str, int, float | None]]) -> Mapping[str, float] | None:
    """Return seconds of one run by name; None where one is not known."""
    work_s: dict[str, float] = {}
    for name, _, seconds in timed:
        if seconds is None:
            return None
        work_s.setdefault(name, 0.0)
    for name, times, seconds in timed:
        if seconds and times:
            work_s[name] += seconds / times
    return work_s


def transfer_s(one: Collective, hardware: Hardware) -> float | None:
    """Return how long one run of a collective takes by itself; None without figures."""
    if one.times == 0 or one.sent_bytes == 0:
        return 0.0
    if hardware.interconnect_bandwidth is None:
        return None
    sent = one.sent_bytes / one.times
    links = hardware.interconnect_bandwidth * hardware.achievable_fraction.get("interconnect", 1.0)
    seconds = sent / (links / hardware.devices_per_chip)
    if one.islands == 1:
        return seconds
    if hardware.network_bandwidth is None:
        return None
    network = hardware.network_bandwidth * hardware.achievable_fraction.get("network", 1.0)
    return max(seconds, _outside(one, sent) / (network / hardware.devices_per_chip))


def _outside(one: Collective, sent: float) -> float:
    """Return what a device sends beyond its interconnect of what it sends in all.

    A ring enters and leaves an interconnect once, and its devices' networks share that.
    """
    if one.kind == "collective-permute":
        return sent
    linked = one.group / one.islands
    if one.kind.endswith("all-to-all"):
        return sent * (one.group - linked) / (one.group - 1)
    return sent / linked


def _speed(dtype: str, hardware: Hardware, role: str) -> float:
    """Return FLOP/s that a device reaches; float32 runs as narrowly as JAX lets it by default."""
    name = dtype_name(dtype)
    wanted = ("tensorfloat32", "bfloat16") if name == "float32" else (name,)
    widest = max(hardware.peak_flops, key=lambda one: hardware.peak_flops[one])
    found = next((one for one in wanted if one in hardware.peak_flops), widest)
    shares = hardware.achievable_fraction
    names = (role, role.partition("/")[0], found)
    share = next((shares[name] for name in names if name in shares), 1.0)
    return hardware.peak_flops[found] * share / hardware.devices_per_chip


def has_unknown_loops(mfu: float | None, num_unknown: int) -> bool:
    """Return whether a step is predicted faster than its chips can be, for loops counted once.

    Args:
        mfu: Model FLOPs over the peak in the predicted time.
        num_unknown: Loops whose rounds could not be read off.
    """
    return num_unknown > 0 and mfu is not None and mfu > 1.0


# -- Waiting for transfers -------------------------------------------------------------------------
#
# The schedule is played with one queue for each kind of transfer. Work runs in the order of the
# program. A transfer goes off where it is started, behind those that are on their way, and whoever
# needs it waits until it is there. What a loop starts, it awaits in the same round. That transfers
# slow the work that runs meanwhile down, as they share memory with it, is left out.


@attrs.frozen(kw_only=True)
class Transfer:
    """One collective on its way.

    Args:
        started: Name of the instruction that starts it.
        awaited: Name of the one after which it is there; the same where nothing runs meanwhile.
        seconds: How long it takes alone.
    """

    started: str
    awaited: str
    seconds: float


def waits_s(
    program: Program, work_s: Mapping[str, float], transfers: Sequence[Transfer]
) -> tuple[float, ...]:
    """Return how long each transfer is waited for when it runs once.

    Args:
        program: The program.
        work_s: Seconds that an instruction takes in one run, by name; what is missing takes none.
        transfers: Its collectives.
    """
    player = _Player(program, work_s, transfers)
    player.duration(program.entry)
    return tuple(player.waits.get(place, 0.0) for place in range(len(transfers)))


class _Player:
    """A simulation of the schedule, from a time at which no transfer is on its way."""

    def __init__(
        self, program: Program, work_s: Mapping[str, float], transfers: Sequence[Transfer]
    ) -> None:
        self.program = program
        self.work_s = work_s
        self.transfers = transfers
        self.starting: dict[str, list[int]] = defaultdict(list)
        self.ending: dict[str, list[int]] = defaultdict(list)
        for place, one in enumerate(transfers):
            self.starting[one.started].append(place)
            self.ending[one.awaited].append(place)
        self.waits: dict[int, float] = {}
        self._durations: dict[str, float] = {}

    def duration(self, computation: Computation) -> float:
        """Return how long a computation takes, waits included."""
        if computation.name not in self._durations:
            self._durations[computation.name] = self._play(computation)
        return self._durations[computation.name]

    def _play(self, computation: Computation) -> float:
        clock = free = 0.0
        arrivals: dict[int, float] = {}
        for one in computation.instructions:
            for place in self.starting.get(one.name, ()):
                free = max(clock, free) + self.transfers[place].seconds
                arrivals[place] = free
            clock += self.work_s.get(one.name, 0.0) + self._called(one, computation)
            for place in self.ending.get(one.name, ()):
                self.waits[place] = max(0.0, arrivals[place] - clock)
                clock += self.waits[place]
        return clock

    def _called(self, one: Instruction, within: Computation) -> float:
        if one.opcode == "while":
            rounds = trip_count(self.program, one, within) or 1
            return rounds * (self._named(one.called["condition"]) + self._named(one.called["body"]))
        if one.opcode in CALLS:
            return self._named(one.called.get("calls") or one.called["to_apply"])
        if one.opcode == "conditional":
            return sum(self._named(branch) for branch in one.branches)
        return 0.0

    def _named(self, name: str) -> float:
        return self.duration(self.program.computations[name])
