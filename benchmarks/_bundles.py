"""What libtpu schedules for a Pallas kernel: instruction bundles of its grid loop, by branch.

Compiled HLO carries no estimate for custom kernels, but libtpu writes their final schedules to a
folder when it is started with `dump_flags`. A kernel becomes one loop over its grid; each `pl.when`
becomes a stretch that a branch skips. A bundle takes a cycle where nothing waits for memory, and
the compiler has put empty ones where the matrix units are busy.
"""

import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from _apart import measured_apart

_LINE = re.compile(r"^\s*(0x[0-9a-f]+|0)\s+(?:L[HBE]|P[BF]|CT)?\s*:")
_BRANCH = re.compile(r"sbr\.rel (?:\([^)]*\) )?target = \$region(\d+)")
_TARGET = re.compile(r"(?:Start|Start/End empty) region (\d+)")


class Schedule(NamedTuple):
    """Bundles of one kernel: of every step of the grid, and of each branch, in program order."""

    every_step: int
    branches: tuple[int, ...]

    def cycles(self, num_steps: float, taken: tuple[float, ...]) -> float:
        """Return the cycles of a grid, from how often each branch is taken.

        Raises:
            ValueError: The kernel has other branches than expected.
        """
        if len(taken) != len(self.branches):
            raise ValueError(f"{len(taken)} branches are expected; there are {self.branches}")
        pairs = zip(self.branches, taken, strict=True)
        return num_steps * self.every_step + sum(size * times for size, times in pairs)

    def no_less(self, branches: tuple[int, ...], cycles: float) -> "Schedule":
        """Return the schedule with some branches of no fewer cycles than their products take.

        Matrix units may wait for each other where the schedule does not show it.
        """
        pairs = enumerate(self.branches)
        sizes = (max(size, round(cycles)) if at in branches else size for at, size in pairs)
        return self._replace(branches=tuple(sizes))


def dump_flags(folder: Path) -> str:
    """Return what `LIBTPU_INIT_ARGS` must say, so that schedules are written to a folder."""
    return (
        f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true "
        "--xla_jf_dump_llo_pass_label_regex=final_bundles"
    )


def scheduled_apart(script: str, target: str) -> dict[str, Any]:
    """Return the figures of one target, which `script --target T --folder F` prints."""
    with tempfile.TemporaryDirectory() as folder:
        command = (script, "--target", target, "--folder", folder)
        return measured_apart(target, *command, libtpu_flags=dump_flags(Path(folder)))


def schedule_of(folder: Path, kernel: str) -> Schedule:
    """Return the schedule of the one Pallas kernel in a folder with `kernel` in its name.

    Raises:
        ValueError: There is no such kernel, or there are several.
    """
    found = list(folder.glob(f"*-*{kernel}*-[0-9]*-final_bundles.txt"))
    if len(found) != 1:
        raise ValueError(f"{len(found)} kernels named {kernel}: {[path.name for path in found]}")
    return _read(found[0])


def _read(path: Path) -> Schedule:
    branches, targets, address = [], {}, 0
    for line in path.read_text(encoding="utf-8").splitlines():
        if found := _LINE.match(line):
            address = int(found[1], 16)
        for region in _TARGET.findall(line):
            targets.setdefault(region, address)
        branches += [(address, region) for region in _BRANCH.findall(line)]
    jumps = [(start, targets[region]) for start, region in branches if region in targets]
    loop_end, loop_start = max((j for j in jumps if j[1] <= j[0]), key=lambda j: j[0] - j[1])
    skips = [j for j in jumps if loop_start < j[0] < j[1] <= loop_end]
    step = max(skips, key=lambda j: j[1] - j[0])
    inner = [j for j in skips if step[0] < j[0] and j[1] <= step[1]]
    top = [j for j in inner if not any(o[0] < j[0] and j[1] <= o[1] for o in inner)]
    sizes = tuple(end - start for start, end in sorted(top))
    return Schedule(loop_end - loop_start - sum(sizes), sizes)
