"""How long a step waits for transfers: its schedule, played with one queue of each.

Work runs in the order of the program. A transfer goes off where it is started, behind those that
are on their way, and whoever needs it waits until it is there. What a loop starts, it awaits in the
same round. That transfers slow the work beside them down, as they share memory with it, is left
out.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import attrs

from axcore.aot.hlo.executions import CALLS
from axcore.aot.hlo.loops import trip_count
from axcore.aot.hlo.program import Computation, Instruction, Program


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
    """Returns how long each transfer is waited for when it runs once.

    Args:
        program: The program.
        work_s: Seconds that an instruction takes in one run, by name; what is missing takes none.
        transfers: Its collectives.
    """
    player = _Player(program, work_s, transfers)
    player.duration(program.entry)
    return tuple(player.waits.get(place, 0.0) for place in range(len(transfers)))


class _Player:
    """Plays computations, each once, from a time at which nothing is on its way."""

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
        """Returns how long a computation takes, waits included."""
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
