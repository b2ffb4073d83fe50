"""The change by which a step fits and is predicted to be fastest, found by compiling.

A search is at a setting on each of three axes: what layers compute again, how many rows run at
once, and the mesh. It climbs along one after the other, as long as the step gets faster (where
nothing fits yet, until something does), and goes around until no axis helps or its compiles are
used up. Changes are written as `--modify` takes them.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from axcore.aot.report.report import Report
from axcore.errors import AxcoreError
from axcore.modifiers import with_changes
from axcore.parallel import MESH_AXES, mesh_sizes
from axcore.plugins import Hardware

REMATS = ("none", "minimal", "save_gate", "save_heads", "save_attention", "full")
"""From most memory to most computation."""

_WAYS = (2, 4, 8, 16)
"""How many times as many devices an axis of the mesh may take."""

_MAX_COMPILES = 20


@attrs.frozen
class Attempt:
    """One setting that was compiled.

    Args:
        changes: As `--modify` takes them, one after the other; none is the config as it is.
        report: The report of compiling it; None where the change cannot be made.
        reason: Why it cannot.
    """

    changes: tuple[str, ...]
    report: Report | None
    reason: str = ""

    @property
    def fits(self) -> bool:
        """Whether the step fits with this change."""
        return self.report is not None and self.report.fits is True

    @property
    def step_s(self) -> float:
        """The predicted step, infinite where there is none."""
        time = self.report.time if self.report else None
        return float("inf") if time is None or time.step_s is None else time.step_s


@attrs.frozen
class Axis:
    """One thing that a search may change.

    Args:
        settings: The changes that it chooses from, from most memory to least; an empty one is the
            config as it is.
    """

    settings: tuple[str, ...]

    @property
    def start(self) -> int:
        """The place of the config as it is."""
        return self.settings.index("")


def axes(cfg: Any, hardware: Hardware) -> tuple[Axis, ...]:
    """Return what a search may change of a trainer's config, in the order of its walk."""
    return (_remats(cfg, hardware), _rows(cfg, hardware), _meshes(cfg, hardware))


def _remats(cfg: Any, hardware: Hardware) -> Axis:
    """Return the presets, of which the config's own is the config as it is.

    Settings of its own, which are not a preset, have presets of more and of less memory around
    them.
    """
    changes = [f"remat(policy={policy})" for policy in REMATS]
    settings = [one if _changes(cfg, one, hardware) else "" for one in changes]
    middle = len(settings) // 2
    own = () if "" in settings else ("",)
    return Axis((*settings[:middle], *own, *settings[middle:]))


def _rows(cfg: Any, hardware: Hardware) -> Axis:
    """Return rows of a device at a time, halved and doubled from what they are."""
    sizes = mesh_sizes(cfg.mesh, hardware.num_devices, slices=cfg.slices)
    by_axis = dict(zip(MESH_AXES, sizes, strict=True))
    rows = cfg.data.batch_size // math.prod(
        by_axis[one] for one in cfg.sharding.activation_rules["batch"]
    )
    at_once = max(1, rows // cfg.num_micro_batches)
    fewer = [at_once // 2**n for n in range(1, at_once.bit_length())]
    more = [at_once * 2**n for n in range(1, (rows // at_once).bit_length())]
    name = "micro_batches(rows_per_device={})".format
    return Axis((*map(name, reversed(more)), "", *map(name, fewer)))


def _meshes(cfg: Any, hardware: Hardware) -> Axis:
    """Return meshes that hold parameters more often, and such that split layers' width more."""
    if -1 not in cfg.mesh.values():
        return Axis(("",))
    return Axis(
        (
            *reversed(list(_wider(cfg.mesh, hardware, "data"))),
            "",
            *_wider(cfg.mesh, hardware, "model"),
        )
    )


def _wider(mesh: Mapping[str, int], hardware: Hardware, axis: str) -> Iterator[str]:
    own = mesh.get(axis, 1)
    for ways in (own * factor for factor in _WAYS):
        if own != -1 and hardware.num_devices % ways == 0 and ways < hardware.num_devices:
            yield f"mesh_shape(mesh={ {**mesh, axis: ways} })"


def _changes(cfg: Any, change: str, hardware: Hardware) -> bool:
    """Return whether a change would change a config."""
    try:
        return bool(with_changes(cfg, (change,), hardware) != cfg)
    except AxcoreError:
        return False


def search(
    cfg: Any,
    hardware: Hardware,
    compile_one: Callable[[Any], Report],
    *,
    announce: Callable[[str], None] = lambda changes: None,
    max_compiles: int = _MAX_COMPILES,
) -> tuple[Attempt, ...]:
    """Return what was tried, in order.

    Args:
        cfg: A trainer's config with the hardware's mesh rule applied.
        hardware: The target.
        compile_one: Compiles a config for it.
        announce: Called with the name of the change that is compiled next.
        max_compiles: How many settings are compiled at most.
    """

    def attempt(changes: tuple[str, ...]) -> Attempt:
        announce(" ".join(changes) or "as it is")
        try:
            return Attempt(changes, compile_one(with_changes(cfg, changes, hardware)))
        except AxcoreError as error:
            return Attempt(changes, None, error.what)

    walk = _Walk(axes(cfg, hardware), attempt, max_compiles)
    while sum(walk.climb(number) for number in range(len(walk.axes))):
        pass
    return tuple(walk.tried.values())


class _Walk:
    """A place on each axis, and what was compiled on the way there."""

    def __init__(
        self,
        walked: tuple[Axis, ...],
        attempt: Callable[[tuple[str, ...]], Attempt],
        max_compiles: int,
    ) -> None:
        self.axes = walked
        self.tried: dict[tuple[str, ...], Attempt] = {}
        self._attempt, self._max_compiles = attempt, max_compiles
        self._place = tuple(axis.start for axis in walked)
        self._best = self._at(self._place)

    def climb(self, number: int) -> bool:
        """Move along an axis while that helps; return whether it did."""
        if self._best.fits and self._best.step_s == float("inf"):
            return False  # there is no time to compare
        first = -1 if self._best.fits else 1
        return self._walk(number, first) or self._walk(number, -first)

    def _walk(self, number: int, way: int) -> bool:
        """Take steps one way, as long as they help; where nothing fits, until something does."""
        has_moved, at = False, self._place[number] + way
        while 0 <= at < len(self.axes[number].settings) and len(self.tried) < self._max_compiles:
            place = (*self._place[:number], at, *self._place[number + 1 :])
            found = self._at(place)
            if _rank(found) < _rank(self._best):
                self._best, self._place, has_moved = found, place, True
            elif self._best.fits or way < 0:
                break
            at += way
        return has_moved

    def _at(self, place: tuple[int, ...]) -> Attempt:
        chosen = (axis.settings[at] for axis, at in zip(self.axes, place, strict=True))
        remat, rows, mesh = chosen
        changes = tuple(one for one in (mesh, remat, rows) if one)  # rows count on the mesh
        if changes not in self.tried:
            self.tried[changes] = self._attempt(changes)
        return self.tried[changes]


def _rank(attempt: Attempt) -> tuple[bool, float]:
    """Return what is less the better an attempt is."""
    if attempt.fits:
        return False, attempt.step_s
    memory = attempt.report.memory if attempt.report else None
    return True, float("inf") if memory is None else float(memory.peak_bytes)


def fastest(attempts: Sequence[Attempt]) -> Attempt | None:
    """Return what fits with the shortest predicted step, the first of equals; None if nothing."""
    fitting = [attempt for attempt in attempts if attempt.fits]
    return min(fitting, key=lambda attempt: attempt.step_s) if fitting else None


def search_fields(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Return what a search chose and all that it tried, in order, as values that JSON holds."""
    best = fastest(attempts)
    return {
        "chosen": None if best is None else list(best.changes),
        "attempts": [_fields(attempt) for attempt in attempts],
    }


def _fields(attempt: Attempt) -> dict[str, Any]:
    report = attempt.report
    memory, time = (report.memory, report.time) if report else (None, None)
    return {
        "changes": list(attempt.changes),
        "fits": attempt.fits,
        "peak_bytes": memory.peak_bytes if memory else None,
        "capacity_bytes": memory.capacity_bytes if memory else None,
        "predicted_step_s": time.step_s if time else None,
        "compile_s": report.compile_s if report else None,
        "reason": attempt.reason,
    }
