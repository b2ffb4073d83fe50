"""The cheapest change by which a step fits, found by compiling.

Changes are written as `--modify` takes them. They are tried in groups, from what costs least: first
what layers compute again, then batches in more parts, then meshes that split layers' width. A group
is tried whole, and the first group that has a change that fits is the last.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from axcore.aot.report.report import Report
from axcore.errors import AxcoreError
from axcore.modifiers import with_changes
from axcore.plugins import Hardware

UNCHANGED: tuple[str, ...] = ()
REMATS = ("none", "minimal", "save_heads", "save_attention", "full")
"""From most memory to most computation."""

FULL_REMAT = "remat(policy=full)"
FACTORS = (2, 4, 8, 16)


@attrs.frozen
class Attempt:
    """One change that was compiled.

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


def groups(cfg: Any, hardware: Hardware) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Yields the groups of changes of a config, in the order in which they are tried."""
    yield (UNCHANGED,)
    yield tuple(_less_memory(cfg, hardware))
    lean = tuple(one for one in (FULL_REMAT,) if _changes(cfg, (one,), hardware))
    yield tuple((*lean, f"accumulate(factor={factor})") for factor in FACTORS)
    yield tuple(
        (*lean, f"mesh_shape(mesh={{'fsdp': -1, 'model': {ways}}})")
        for ways in FACTORS
        if hardware.num_devices % ways == 0 and ways < hardware.num_devices
    )


def _less_memory(cfg: Any, hardware: Hardware) -> Iterator[tuple[str, ...]]:
    """Yields the presets that keep less than a config does; all of them where it has none."""
    remats = tuple((f"remat(policy={policy})",) for policy in REMATS)
    own = [place for place, one in enumerate(remats) if not _changes(cfg, one, hardware)]
    yield from remats[own[-1] + 1 :] if own else remats


def _changes(cfg: Any, changes: tuple[str, ...], hardware: Hardware) -> bool:
    """Returns whether changes would change a config."""
    try:
        return bool(with_changes(cfg, changes, hardware) != cfg)
    except AxcoreError:
        return False


def search(
    cfg: Any,
    hardware: Hardware,
    compile_one: Callable[[Any], Report],
    *,
    announce: Callable[[str], None] = lambda changes: None,
) -> tuple[Attempt, ...]:
    """Returns what was tried, in order; the last group holds what fits, if anything does.

    Args:
        cfg: A trainer's config with the hardware's mesh rule applied.
        hardware: The target.
        compile_one: Compiles a config for it.
        announce: Called with the name of the change that is compiled next.
    """
    tried: list[Attempt] = []
    for group in groups(cfg, hardware):
        for changes in group:
            announce(" ".join(changes) or "as it is")
            tried.append(_attempt(cfg, changes, hardware, compile_one))
        if any(attempt.fits for attempt in tried):
            break
    return tuple(tried)


def cheapest(attempts: Sequence[Attempt]) -> Attempt | None:
    """Returns what fits with the shortest predicted step, the first of equals; None if nothing."""
    fitting = [attempt for attempt in attempts if attempt.fits]
    return min(fitting, key=lambda attempt: attempt.step_s) if fitting else None


def _attempt(
    cfg: Any, changes: tuple[str, ...], hardware: Hardware, compile_one: Callable[[Any], Report]
) -> Attempt:
    try:
        return Attempt(changes, compile_one(with_changes(cfg, changes, hardware)))
    except AxcoreError as error:
        return Attempt(changes, None, error.what)
