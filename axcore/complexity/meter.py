"""The meter: what it costs to have a feature in N models of M variants each, and how that grows.

The definition is written out in `docs/loc-complexity.md`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from axcore.complexity.family import LARGEST, model_family
from axcore.complexity.growth import CONSTANT_BELOW, GRID, Growth, Size, fit_growth
from axcore.complexity.imports import modules_that_import
from axcore.complexity.lines import lines_to_write
from axcore.complexity.trace import trace_model
from axcore.errors import AxcoreError, ComplexityError
from axcore.plugins import Feature, Hardware

MOST_LINES = 10
"""The most lines that a feature may cost, however many models there are."""


@attrs.frozen
class Lack:
    """A model that does not have a feature after it was added.

    Args:
        model: Its name.
        reason: Why it was found not to have it.
    """

    model: str
    reason: str


@attrs.frozen
class Measurement:
    """What a feature costs.

    Args:
        feature: What was measured.
        lines: Lines that add it, imports counted.
        existing: Modules outside of its implementation that import it.
        lacks: Models that do not have it although those lines were run on them.
        growth: How lines grow: each model that lacks it costs the lines once more.
    """

    feature: Feature
    lines: int
    existing: tuple[str, ...]
    lacks: tuple[Lack, ...]
    growth: Growth

    def problems(self) -> tuple[str, ...]:
        """Returns why the feature does not pass the gate; nothing where it does."""
        found = []
        if self.lines > MOST_LINES:
            found.append(f"takes {self.lines} lines; at most {MOST_LINES} are allowed")
        if self.existing:
            found.append(f"is named in existing modules: {', '.join(self.existing)}")
        if self.lacks:
            first = self.lacks[0]
            found.append(f"is not in {len(self.lacks)} models; {first.model}: {first.reason}")
        if self.growth.exponent >= CONSTANT_BELOW:
            found.append(f"grows with the models, exponent {self.growth.exponent:.2f}")
        return tuple(found)


def measure_feature(feature: Feature, *, largest: Size = LARGEST) -> Measurement:
    """Adds a feature to every model of the largest family, and looks for it in each one's trace.

    Args:
        feature: What to add.
        largest: Models and variants of the largest family; those of `GRID` within it are counted.
    """
    apply = feature.apply.resolve()
    lines = lines_to_write(apply)
    lacking = {name: reason for name, reason in _lacking(feature, apply, largest) if reason}
    sizes = [size for size in GRID if size[0] <= largest[0] and size[1] <= largest[1]]
    counts: Mapping[Size, int] = {
        size: lines * (1 + sum(name in lacking for name, _ in model_family(*size)))
        for size in sizes
    }
    return Measurement(
        feature=feature,
        lines=lines,
        existing=modules_that_import(feature.implementation),
        lacks=tuple(Lack(name, reason) for name, reason in lacking.items()),
        growth=fit_growth(counts),
    )


def why_not_in(feature: Feature, cfg: Any, hardware: Hardware) -> str | None:
    """Returns None where a training config's traced model holds a feature, or why it does not."""
    evidence = feature.evidence.resolve()
    reason: str | None = evidence(trace_model(cfg, hardware))
    return reason


def check_gate(measurements: Iterable[Measurement]) -> None:
    """Checks that every feature costs a constant, small number of lines.

    Raises:
        ComplexityError: Naming every feature that does not, and why.
    """
    problems = [
        f"{one.feature.name} {problem}" for one in measurements for problem in one.problems()
    ]
    if problems:
        raise ComplexityError(
            "the gate is closed:\n" + "\n".join(problems),
            mend="let a feature live in modules of its own that `replace_config` puts in place",
        )


def _lacking(
    feature: Feature, apply: Callable[[Any], Any], largest: Size
) -> Iterable[tuple[str, str | None]]:
    hardware = Hardware.parse(feature.target)
    for name, cfg in model_family(*largest):
        try:
            yield name, why_not_in(feature, apply(cfg), hardware)
        except AxcoreError as error:
            yield name, f"{type(error).__name__}: {error.what}"
