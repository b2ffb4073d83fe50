"""`Ledger`: what every second of a job was spent on, in `goodput.json`. It loads no jax.

Marks say what begins; the time up to the next one belongs to its label, so that labels add up to
the time from the first mark to the last. Steps that run again after a restart move their first
time from "step" to "lost_work".
"""

import json
import os
import time
import warnings
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import attrs

from axcore.config.json_files import read_json_file

Label = Literal[
    "start",
    "compile",
    "restore",
    "data_wait",
    "step",
    "evaluation",
    "save",
    "hang",
    "lost_work",
    "idle",
]
LABELS: tuple[Label, ...] = get_args(Label)
_USEFUL: Label = "step"


GOODPUT_NAME = "goodput.json"

# A run of months with a report each minute would otherwise rewrite megabytes each second.
_MAX_MARKS = 1000


@attrs.define
class Ledger:
    """Seconds of a job by label.

    Args:
        time: Of the newest mark, in seconds since the epoch.
        label: What time is spent on from there.
        seconds: By label, up to the newest mark.
        progress: Steps done, each with the useful seconds up to it; thinned where there are many.
        starts: How often the job's processes were started.
    """

    time: float
    label: Label = "start"
    seconds: dict[Label, float] = attrs.field(factory=lambda: dict.fromkeys(LABELS, 0.0))
    progress: list[tuple[int, float]] = attrs.field(factory=lambda: [(0, 0.0)])
    starts: int = 1

    def mark(self, time: float, label: Label) -> None:
        """Spend the time since the newest mark on its label; from here on it goes to another.

        A clock that was set back spends nothing.
        """
        # The wall clock, since processes of several starts share it; so it may be set back.
        self.seconds[self.label] += max(0.0, time - self.time)
        self.time = max(time, self.time)
        self.label = label

    # Before `progress`, which takes useful seconds up to this moment.
    def reach(self, time: float, step: int) -> None:
        """Say that a step is done."""
        self.mark(time, self.label)
        if step > self.progress[-1][0]:
            self.progress.append((step, self.seconds[_USEFUL]))
        if len(self.progress) > _MAX_MARKS:
            # Every second one, with the newest; `_useful_until`
            # interpolates between those that stay.
            self.progress = [*self.progress[:-1:2], self.progress[-1]]

    def go_back(self, step: int) -> None:
        """Count as lost what steps after `step` took: they will run again."""
        useful = self._useful_until(step)
        # Their seconds stay in the sum, so that labels always add up to the wall clock.
        self.seconds["lost_work"] += self.seconds[_USEFUL] - useful
        self.seconds[_USEFUL] = useful
        if step < self.progress[-1][0]:
            before = [one for one in self.progress if one[0] < step]
            # Step 0 is always in the list: it is what `bisect` finds when a run starts over.
            self.progress = [*before, (step, useful)] if step else [(0, 0.0)]

    def append(self, newer: "Ledger", died: tuple[float, Label] | None = None) -> None:
        """Add the ledger of the processes that were started after those of this one.

        Args:
            newer: Has made no step yet.
            died: As for `restart`.
        """
        self.restart(newer.time - newer.wall_s, died)
        for label in LABELS:
            self.seconds[label] += newer.seconds[label]
        self.time, self.label = newer.time, newer.label

    def restart(self, time: float, died: tuple[float, Label] | None = None) -> None:
        """Resume the ledger of a job whose processes start again.

        Args:
            time: When the new ones started.
            died: When the old ones ended, and what they did since their newest mark; where that is
                not known, they were idle.
        """
        ended, label = (self.time, self.label) if died is None else died
        self.label = label
        # The old processes cannot have died after the new
        # ones started, whatever the supervisor's clock said.
        self.mark(min(ended, time), "idle")
        self.mark(time, "start")
        self.starts += 1

    @property
    def wall_s(self) -> float:
        """Seconds from the first mark to the newest."""
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float:
        """The share of useful seconds, 0 to 1."""
        return self.seconds[_USEFUL] / self.wall_s if self.wall_s else 0.0

    def losses(self) -> list[tuple[Label, float]]:
        """Return what time was lost to, the largest first."""
        lost = [(label, self.seconds[label]) for label in LABELS if label != _USEFUL]
        return sorted((one for one in lost if one[1] > 0), key=lambda one: -one[1])

    def summary(self, most: int = 3) -> str:
        """Return one line: goodput, and the largest losses."""
        shown = ", ".join(f"{label} {_duration(s)}" for label, s in self.losses()[:most])
        head = f"goodput {self.goodput:.1%} of {_duration(self.wall_s)}"
        starts = "" if self.starts == 1 else f" in {self.starts} starts"
        return f"{head}{starts}; lost: {shown or 'nothing'}"

    def as_dict(self) -> dict[str, Any]:
        """Return what `from_dict` makes an equal ledger of, with sums for readers."""
        fields = attrs.asdict(self, recurse=False)
        return {"goodput": self.goodput, "wall_s": self.wall_s, **fields}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Ledger":
        """Return the ledger that `as_dict` made the data of.

        Raises:
            ValueError: The data are not a ledger.
        """
        try:
            return cls(
                time=float(data["time"]),
                label=_label(data["label"]),
                seconds={label: _seconds(data["seconds"][label]) for label in LABELS},
                progress=_progress(data["progress"]),
                starts=int(data["starts"]),
            )
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"no ledger: {type(error).__name__}: {error}") from error

    def _useful_until(self, step: int) -> float:
        at = bisect_right(self.progress, step, key=lambda one: one[0])
        before, useful = self.progress[at - 1]
        if at == len(self.progress):  # what came after the last report
            return useful if step == before else self.seconds[_USEFUL]
        after, more = self.progress[at]
        return useful + (more - useful) * (step - before) / (after - before)


def write_ledger(directory: Path, ledger: Ledger) -> None:
    """Write the file; a reader, or the kill of this process, sees the old one or the new."""
    path = directory / GOODPUT_NAME
    draft = path.with_name(f"{path.name}.tmp")
    # No sync: a file that is written every second would wait
    # for the disk each time, and a power cut loses a second.
    draft.write_text(json.dumps(ledger.as_dict()) + "\n", encoding="utf-8")
    os.replace(draft, path)


def read_ledger(directory: Path | str) -> Ledger | None:
    """Return the ledger of a run; None where it has none, and with a warning if it is damaged."""
    path = Path(directory) / GOODPUT_NAME
    try:
        return Ledger.from_dict(read_json_file(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        # A report about a run must not keep the run from starting.
        warnings.warn(f"{path} is damaged, so goodput starts at zero: {error}", stacklevel=2)
        return None


def _label(text: str) -> Label:
    return LABELS[LABELS.index(text)]


def _seconds(value: Any) -> float:
    if not 0 <= float(value) < float("inf"):
        raise ValueError(f"expected seconds, got {value!r}")
    return float(value)


def _progress(pairs: Sequence[Sequence[Any]]) -> list[tuple[int, float]]:
    found = [(int(step), _seconds(useful)) for step, useful in pairs]
    # `bisect` needs them sorted; a file that somebody
    # edited would give wrong numbers without a word.
    if found[0] != (0, 0.0) or found != sorted(found):
        raise ValueError("progress goes back")
    return found


def _duration(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest:.0f} s" if minutes else f"{rest:.1f} s"


def process_start() -> float:
    """Return when this process started, since the epoch; now, where the system does not say."""
    try:
        # The name of the program may have spaces and
        # parentheses, so fields count from the last one.
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return time.time()
    # Both are counted since boot, so the wall clock's jumps between then and now do not matter.
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - age
