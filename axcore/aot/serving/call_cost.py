"""`CallCost`: what calls of a serving model's programs take."""

from collections.abc import Sequence
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class CallCost:
    """What a call of a program takes, or several, one after the other.

    Args:
        rows: Rows of a call.
        tokens: New tokens of each.
        seconds: The longer of `compiled_s` and `moved_s`; None where the target's figures are not
            known.
        compiled_s: By the compiler's cycles, or a roofline of each instruction, with kernels and
            waiting for collectives.
        moved_s: Bytes that the program moves over the memory's bandwidth.
        floor_s: Bytes of weights and of the caches that are read over the memory's bandwidth: no
            program that reads each once is faster.
        products_s: Products by the peak.
        waiting_s: Waiting for collectives, as far as their bytes take.
        num_collectives: How many run. What each takes to begin is counted nowhere.
        num_instructions: How many the device is given.
        temporaries_bytes: What the program allocates while it runs; of several the most.
        program_bytes: The program itself; of several the largest.
        copied_bytes: Caches that it copies where it should write in place.
        unknown_loops: Loops whose rounds cannot be read off, counted as one.
    """

    rows: int
    tokens: int
    seconds: float | None
    compiled_s: float | None
    moved_s: float | None
    floor_s: float | None
    products_s: float | None
    waiting_s: float | None
    num_collectives: int
    num_instructions: int
    temporaries_bytes: int
    program_bytes: int
    copied_bytes: int
    unknown_loops: int

    @property
    def tokens_per_s(self) -> float | None:
        """New tokens a second, of all rows."""
        return None if not self.seconds else self.rows * self.tokens / self.seconds

    @property
    def over_floor(self) -> float | None:
        """Predicted time over the least that its bytes can take."""
        return None if not self.seconds or not self.floor_s else self.seconds / self.floor_s

    @property
    def bound_by(self) -> str:
        """What takes most of the time: bandwidth, products, collectives, or instructions, each of
        which the compiler gives more time than its bytes and products need."""
        if self.seconds is None:
            return "not known"
        parts = {
            "bandwidth": self.moved_s,
            "products": self.products_s,
            "collectives": self.waiting_s,
        }
        name, longest = max(parts.items(), key=lambda part: part[1] or 0.0)
        return name if longest and longest >= self.seconds / 2 else "instructions"


_TIMES = ("seconds", "compiled_s", "moved_s", "floor_s", "products_s", "waiting_s")
_COUNTS = ("num_collectives", "num_instructions")
_LARGEST = ("temporaries_bytes", "program_bytes", "copied_bytes", "unknown_loops")


def sum_of_calls(costs: Sequence[CallCost], *, rows: int, tokens: int | None = None) -> CallCost:
    """Returns what calls take, one after the other.

    Args:
        costs: Of each call.
        rows: Rows that they are for.
        tokens: New tokens of each; None for those of the calls.
    """

    def time(name: str) -> float | None:
        parts = [getattr(one, name) for one in costs]
        return None if None in parts else sum(parts)

    fields: dict[str, Any] = {
        **{name: time(name) for name in _TIMES},
        **{name: sum(getattr(one, name) for one in costs) for name in _COUNTS},
        **{name: max(getattr(one, name) for one in costs) for name in _LARGEST},
    }
    num_tokens = sum(one.tokens for one in costs) if tokens is None else tokens
    return CallCost(rows=rows, tokens=num_tokens, **fields)


def shared_evenly(cost: CallCost, count: int) -> CallCost:
    """Returns an even part of what calls take: of those that draw so many tokens, of one token."""
    times = {name: getattr(cost, name) for name in _TIMES}
    fields: dict[str, Any] = {
        **{name: None if time is None else time / count for name, time in times.items()},
        **{name: round(getattr(cost, name) / count) for name in _COUNTS},
    }
    return attrs.evolve(cost, tokens=cost.tokens // count, **fields)
