"""The meter: what it costs to have a feature in N models of M variants each, and how that grows.

The definition is written out in `docs/loc-complexity.md`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs
import numpy as np

from axcore.complexity.family import LARGEST, model_family
from axcore.complexity.growth import CONSTANT_BELOW, Growth, measure_growth
from axcore.complexity.imports import modules_that_import
from axcore.complexity.lines import lines_to_write
from axcore.complexity.trace import trace_model
from axcore.config import is_config
from axcore.errors import ComplexityError
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
        models: How many models it was added to.
        lacks: Models that do not have it although those lines were run on them.
        growth: How lines grow: each model that lacks it costs the lines once more, at least one.
    """

    feature: Feature
    lines: int
    existing: tuple[str, ...]
    models: int
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


def measure_feature(
    feature: Feature, *, models: int = LARGEST, variants: int = LARGEST
) -> Measurement:
    """Adds a feature to every model of a family, and looks for it in each one's trace.

    Args:
        feature: What to add.
        models: Models of the family, 3 to `LARGEST`.
        variants: Variants of each, 3 to `LARGEST`.
    """
    apply = feature.apply.resolve() if feature.apply else _unchanged
    lines = lines_to_write(apply) if feature.apply else 0
    reasons = dict(_reasons(feature, apply, model_family(models, variants)))
    is_lacking = np.reshape([reason is not None for reason in reasons.values()], (models, variants))

    def count(num_models: int, num_variants: int) -> int:
        return lines + max(1, lines) * int(is_lacking[:num_models, :num_variants].sum())

    return Measurement(
        feature=feature,
        lines=lines,
        existing=modules_that_import(feature.implementation),
        models=models * variants,
        lacks=tuple(Lack(name, reason) for name, reason in reasons.items() if reason is not None),
        growth=measure_growth(count, models=models, variants=variants),
    )


def why_not_in(feature: Feature, cfg: Any, hardware: Hardware) -> str | None:
    """Returns None where a training config's traced model holds a feature, or why it does not."""
    reason: str | None = feature.call("evidence", trace_model(cfg, hardware), returns=str | None)
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
            hint="let a feature live in modules of its own that `replace_config` puts in place",
        )


def _unchanged(cfg: Any) -> Any:
    return cfg


def _reasons(
    feature: Feature, apply: Callable[[Any], Any], family: Iterable[tuple[str, Any]]
) -> Iterator[tuple[str, str | None]]:
    """Yields each model's name, and why it lacks the feature; None where it has it."""
    hardware = Hardware.parse(feature.target)
    for name, cfg in family:
        try:
            changed = apply(cfg)
            if not is_config(changed):
                raise feature.wrong_return("apply", changed, "a training config")
            yield name, why_not_in(feature, changed, hardware)
        except Exception as error:  # any failure is why a model lacks the feature
            yield name, f"{type(error).__name__}: {str(error).splitlines()[0]}"
