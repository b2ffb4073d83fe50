"""What NVIDIA's disassembler shows of a kernel: its instructions, and one round of its main loop.

The main loop is the innermost one that multiplies. Of its ways from top to bottom the cheapest is
taken, so that masks that most rounds skip are left out. Control words say for how many cycles a
warp waits at least before its next instruction: their sum is what a round takes where nothing else
is waited for.
"""

import heapq
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_LINE = re.compile(
    r":(?P<stall>\d\d)\s+/\*[0-9a-f]+\*/\s+(?P<guard>@\S+ )?(?P<opcode>[A-Z][A-Za-z0-9_.]*)"
    r"(?P<operands>[^;]*)"
)
_LABEL = re.compile(r"^(\.L_x_\d+):")
_PRODUCT = re.compile(r"[HIQ]GMMA\.64x(\d+)x\d+")

EXPONENTIAL = "MUFU.EX2"
COUNTED = {
    "waits_for_products": ("WARPGROUP.DEPBAR",),
    "exponentials": (EXPONENTIAL,),
    "float32": ("FFMA", "FMUL", "FADD", "FMNMX"),
    "copies_in": ("UTMALDG",),
    "copies_out": ("UTMASTG", "UTMAREDG"),
    "loads": ("LDG",),
    "stores": ("STG",),
    "shared_loads": ("LDS",),
    "shared_stores": ("STS", "STSM"),
    "spills": ("LDL", "STL"),
}
"""Beginnings of instructions, by what they are called here."""

COMMITS = "gsb0"
"""What the last product of a group names, and what waits for groups."""


class Instruction(NamedTuple):
    """One instruction of a warp."""

    opcode: str
    operands: str
    is_guarded: bool
    stall: int

    @property
    def product(self) -> str | None:
        """Its shape, where it multiplies."""
        found = _PRODUCT.match(self.opcode)
        return found[0] if found else None

    @property
    def product_cycles(self) -> float:
        """How long a multiprocessor's matrix units take, at most half a column a cycle."""
        found = _PRODUCT.match(self.opcode)
        return int(found[1]) / 2 if found else 0.0


class Listing(NamedTuple):
    """A kernel's instructions, and which of them labels precede."""

    instructions: Sequence[Instruction]
    labels: Mapping[str, int]

    @classmethod
    def of(cls, text: str) -> "Listing":
        """Return what `nvdisasm` printed with control words."""
        instructions: list[Instruction] = []
        labels = {}
        for line in text.splitlines():
            if label := _LABEL.match(line):
                labels[label[1]] = len(instructions)
            elif (found := _LINE.search(line)) and found["opcode"] != "NOP":
                operands = found["operands"].strip()
                is_guarded = bool(found["guard"]) or bool(re.match(r"!?U?P\d", operands))
                stall = int(found["stall"])
                instructions.append(Instruction(found["opcode"], operands, is_guarded, stall))
        return cls(instructions, labels)

    def counts(self) -> dict[str, Any]:
        """Return how many instructions there are of each kind, and products by shape."""
        products = Counter(one.product for one in self.instructions if one.product)
        return {"instructions": len(self.instructions), "products": dict(products)} | {
            name: sum(one.opcode.startswith(kinds) for one in self.instructions)
            for name, kinds in COUNTED.items()
        }

    def main_loop(self) -> Sequence[Instruction]:
        """Return the cheapest round of the innermost loop that multiplies; nothing without one."""
        rounds = []
        for at, one in enumerate(self.instructions):
            target = self._target(one)
            if target is not None and target <= at:
                cycles, path = self._cheapest(target, at)
                if any(self.instructions[place].product for place in path):
                    rounds.append((cycles, path))
        return [self.instructions[place] for place in min(rounds)[1]] if rounds else []

    def _target(self, one: Instruction) -> int | None:
        if not one.opcode.startswith("BRA"):
            return None
        (label,) = re.findall(r"\.L_x_\d+", one.operands)
        return self.labels[label]

    def _next(self, at: int) -> Iterator[int]:
        one = self.instructions[at]
        target = self._target(one)
        if target is not None:
            yield target
        ends = target is not None or one.opcode == "EXIT"
        if (one.is_guarded or not ends) and at + 1 < len(self.instructions):
            yield at + 1

    def _cheapest(self, start: int, end: int) -> tuple[int, list[int]]:
        """Return the cycles of the cheapest way between two places, and the way; none if none."""
        queue, before = [(0, start, -1)], dict[int, int]()
        while queue:
            cycles, at, came_from = heapq.heappop(queue)
            if at in before:
                continue
            before[at] = came_from
            if at == end:
                path = [at]
                while before[path[-1]] >= 0:
                    path.append(before[path[-1]])
                return cycles, path[::-1]
            for place in self._next(at):
                heapq.heappush(queue, (cycles + self.instructions[at].stall, place, at))
        return 0, []


class Overlap(NamedTuple):
    """Products that are begun together, and what runs before they are waited for."""

    products: Counter[str]
    instructions: int
    exponentials: int


def overlaps(path: Sequence[Instruction]) -> list[Overlap]:
    """Return the groups of products that one round of a loop begins, in their order."""
    found: list[tuple[int, Overlap]] = []
    pending: list[tuple[Counter[str], int, int]] = []
    products, exponentials = Counter[str](), 0
    for at, one in enumerate([*path, *path, *path]):  # what a round begins the next may wait for
        exponentials += one.opcode.startswith(EXPONENTIAL)
        if one.product:
            products[one.product] += 1
            if COMMITS in one.operands:
                pending.append((products, at, exponentials))
                products = Counter()
        elif one.opcode.startswith("WARPGROUP.DEPBAR"):
            still = int(one.operands.rpartition("0x")[2], 16)
            done, pending = pending[: len(pending) - still], pending[len(pending) - still :]
            for group, began, before in done:
                overlap = Overlap(group, at - began - 1, exponentials - before)
                found.append((began, overlap))
    size = len(path)
    return [overlap for began, overlap in found if size <= began < 2 * size]


def round_figures(path: Sequence[Instruction]) -> dict[str, Any]:
    """Return what a round of a loop takes of a warp, and of what its warp groups share."""
    return {
        "instructions": len(path),
        "issue_cycles": sum(one.stall for one in path),
        "product_cycles": sum(one.product_cycles for one in path),
        "exponentials": sum(one.opcode.startswith(EXPONENTIAL) for one in path),
        "under_products": [
            {
                "products": dict(one.products),
                "instructions": one.instructions,
                "exponentials": one.exponentials,
            }
            for one in overlaps(path)
        ],
    }
