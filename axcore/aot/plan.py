"""On which hardware to train: an experiment compiled for several targets, and ranked.

Rank: what fits before what does not, then the cheapest where every candidate that fits has a price,
otherwise the soonest done.
"""

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import attrs

from axcore.aot.report.report import UNKNOWN, Report, show_seconds, without_unknown
from axcore.aot.report.text import verdict
from axcore.aot.search import Attempt, fastest
from axcore.config import suggest_names
from axcore.errors import AxcoreError, ConfigError
from axcore.plugins import Hardware
from axcore.report.table import columns

HOUR_S = 3600.0


@attrs.frozen(kw_only=True)
class Candidate:
    """An experiment on one target.

    Args:
        target: The hardware's name.
        chips: Chips that are paid for.
        steps: Steps of the run.
        price: Of a chip for an hour, in any currency; None where it is not known.
        report: Of the step; None where it could not be compiled.
        reason: Why it could not.
        error: The error that says so, where nothing but this was tried.
        rule: Whose mesh rule was applied, and what it changed; empty where none was.
        changes: What it takes beyond the rule to fit, or to be faster, as `--modify` takes it.
    """

    target: str
    chips: int
    steps: int
    price: float | None = None
    report: Report | None = None
    reason: str = ""
    error: AxcoreError | None = None
    rule: str = ""
    changes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None where the target's memory is not known."""
        return False if self.report is None else self.report.fits

    @property
    def step_s(self) -> float | None:
        """The predicted step; None where it does not fit, or figures of the target are missing."""
        time = self.report.time if self.report and self.fits is not False else None
        return None if time is None else time.step_s

    @property
    def hours(self) -> float | None:
        """Of the run, without restarts."""
        return None if self.step_s is None else self.step_s * self.steps / HOUR_S

    @property
    def cost(self) -> float | None:
        """Of the run, for all chips."""
        hours, price = self.hours, self.price
        return None if hours is None or price is None else hours * self.chips * price

    @property
    def state(self) -> str:
        """Whether it fits, in one line, or why it could not be compiled."""
        return self.reason if self.report is None else verdict(self.report)


def ranked(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return candidates, the best first; those that nothing distinguishes keep their order."""
    fitting = [one for one in candidates if one.fits is not False]
    by_cost = bool(fitting) and all(one.cost is not None for one in fitting)

    def rank(one: Candidate) -> tuple[int, float]:
        figure = one.cost if by_cost else one.hours
        place = {True: 0, None: 1, False: 2}[one.fits]
        return place, float("inf") if figure is None else figure

    return tuple(sorted(candidates, key=rank))


def candidate_for(
    hardware: Hardware,
    resolve: Callable[[Hardware], Any],
    *,
    compile_one: Callable[[Any], Report],
    tokens: int | None,
    price: float | None,
    search: Callable[[Any], tuple[Attempt, ...]] | None = None,
) -> Candidate:
    """Compile for one target.

    Args:
        hardware: The target.
        resolve: Returns the experiment resolved for it.
        compile_one: Compiles what `resolve` returned.
        tokens: Units of the data to train on; None takes the experiment's own steps.
        price: Of a chip for an hour.
        search: Tries changes of what `resolve` returned; None compiles it as it is.
    """
    own: dict[str, Any] = {"target": hardware.name, "chips": hardware.chips, "price": price}
    try:
        resolved = resolve(hardware)
        rule = resolved.mesh_rule_changes().strip()
        attempts = search(resolved) if search else (Attempt((), compile_one(resolved)),)
    except AxcoreError as error:
        # One target that cannot be compiled for takes no answer from the others.
        return Candidate(**own, steps=0, reason=error.what, error=error)
    chosen = fastest(attempts) or attempts[0]
    report = chosen.report
    if report is None:
        return Candidate(**own, steps=0, reason=chosen.reason, rule=rule)
    rows, units = (*report.batch.values(), 1)[:2]  # one number where a row is the unit itself
    steps = resolved.config.max_steps if tokens is None else -(-tokens // (rows * units))
    return Candidate(**own, steps=steps, report=report, rule=rule, changes=chosen.changes)


def price_of(prices: Mapping[str, float], target: str) -> float | None:
    """Return what a chip of a target costs for an hour: of the first pattern that matches it."""
    return next((price for name, price in prices.items() if fnmatchcase(target, name)), None)


def checked_prices(values: Any, targets: Sequence[str], where: str) -> dict[str, float]:
    """Return prices by pattern, as they were read from a file.

    Raises:
        ConfigError: They are not a mapping to positive numbers, or a pattern matches no target.
    """
    example = 'one line for each kind, as `"cpu-*": 0.1`'
    if not isinstance(values, Mapping):
        raise ConfigError("prices are not a mapping", where=where, hint=example)
    for name, price in values.items():
        is_number = isinstance(price, int | float) and not isinstance(price, bool)
        if not is_number or not 0 < price < float("inf"):
            raise ConfigError(
                f"the price of {name!r} is {price!r}, and not a number above 0",
                where=where,
                hint=example,
            )
        if not any(fnmatchcase(target, str(name)) for target in targets):
            raise ConfigError(
                f"{name!r} matches no target; {suggest_names(str(name), targets)}",
                where=where,
                hint="take the line out, or name such a target",
            )
    return {str(name): float(price) for name, price in values.items()}


def plan_text(candidates: Sequence[Candidate]) -> str:
    """Return a table of candidates, in their order, and what each of them needs."""
    header = ("TARGET", "CHIPS", "STEP", "MFU", "STEPS", "HOURS", "COST", "MEMORY")
    rows = [
        (
            one.target,
            f"{one.chips:,}",
            show_seconds(one.step_s),
            _share(one),
            f"{one.steps:,}" if one.steps else UNKNOWN,
            _figure(one.hours),
            _figure(one.cost),
            one.state,
        )
        for one in candidates
    ]
    lines = [columns(*without_unknown(header, rows))]
    for one in candidates:
        needed = "\n".join([one.rule, *(f'--modify "{change}"' for change in one.changes)]).strip()
        if needed:
            lines.append(f"\n{one.target}\n{textwrap.indent(needed, '  ')}")
    return "\n".join(lines)


def _share(one: Candidate) -> str:
    time = one.report.time if one.report else None
    return UNKNOWN if time is None or time.mfu is None else f"{100 * time.mfu:.1f} %"


def _figure(number: float | None) -> str:
    return UNKNOWN if number is None else f"{number:,.4g}"


def plan_json(candidates: Sequence[Candidate]) -> str:
    """Return candidates as JSON, in their order; times and costs that are not known are null."""
    return json.dumps([_fields(one) for one in candidates], indent=2)


def _fields(one: Candidate) -> dict[str, Any]:
    memory = one.report.memory if one.report else None
    return {
        "target": one.target,
        "chips": one.chips,
        "fits": one.fits,
        "state": one.state,
        "peak_bytes": memory.peak_bytes if memory else None,
        "step_s": one.step_s,
        "steps": one.steps or None,
        "hours": one.hours,
        "chip_hour": one.price,
        "cost": one.cost,
        "rule": one.rule,
        "changes": list(one.changes),
    }
