"""The meter: what it costs to have a feature in N models of M variants each, and how that grows.

The definition is written out in `docs/loc-complexity.md`.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import attrs
import numpy as np

from axcore.complexity.family import LARGEST, model_family
from axcore.complexity.growth import CONSTANT_BELOW, Growth, fit_growth, measure_growth
from axcore.complexity.imports import modules_that_import
from axcore.complexity.kinds import glue_lines, known_kinds, unseen_kinds
from axcore.complexity.lines import lines_to_write
from axcore.complexity.trace import trace_model
from axcore.config import is_config
from axcore.errors import ComplexityError
from axcore.plugins import Feature, Hardware

MOST_LINES = 10
"""The most lines that a feature may cost, however many models there are."""


@attrs.frozen
class MissingFeature:
    """A model that does not have a feature after it was added.

    Args:
        model: Its name.
        reason: Why it was found not to have it.
    """

    model: str
    reason: str


@attrs.frozen
class KindCosts:
    """What an implementation knows of kinds of models; a feature that fits all knows nothing.

    Args:
        glue: Its lines that are there for some kinds only.
        unseen: How many kinds were made up.
        lacks: Models of these that lack the feature.
    """

    glue: int
    unseen: int
    lacks: tuple[MissingFeature, ...]


@attrs.frozen
class Measurement:
    """What a feature costs.

    Args:
        feature: What was measured.
        lines: Lines that add it, imports counted.
        existing: Modules outside of its implementation that import it.
        kinds: What its implementation knows of kinds of models.
        models: How many models it was added to.
        lacks: Models that do not have it although those lines were run on them.
        growth: How lines grow: each model that lacks it costs the lines once more, at least one.
    """

    feature: Feature
    lines: int
    existing: tuple[str, ...]
    kinds: KindCosts
    models: int
    lacks: tuple[MissingFeature, ...]
    growth: Growth

    def problems(self) -> tuple[str, ...]:
        """Return why the feature does not pass the gate; nothing where it does."""
        found = []
        if self.lines > MOST_LINES:
            found.append(f"takes {self.lines} lines; at most {MOST_LINES} are allowed")
        if self.existing:
            found.append(f"is named in existing modules: {', '.join(self.existing)}")
        if self.kinds.glue:
            found.append(f"has {self.kinds.glue} lines in its implementation for some kinds only")
        if lacks := self.kinds.lacks:
            found.append(
                f"is not in {len(lacks)} kinds that nobody named; {lacks[0].model}: "
                f"{lacks[0].reason}"
            )
        if self.lacks:
            first = self.lacks[0]
            found.append(f"is not in {len(self.lacks)} models; {first.model}: {first.reason}")
        if self.growth.exponent >= CONSTANT_BELOW:
            found.append(f"grows with the models, exponent {self.growth.exponent:.2f}")
        return tuple(found)


@attrs.frozen
class VariantGrowth:
    """What several variants of one feature cost together, such as kinds of positions.

    Args:
        feature: What they are variants of.
        names: Of the variants.
        growth: Lines by the numbers of models and of these variants, all of which each model has
            one after the other.
    """

    feature: str
    names: tuple[str, ...]
    growth: Growth


def variant_growths(measured: Iterable[Measurement]) -> tuple[VariantGrowth, ...]:
    """Return the growth in variants of each feature of which several were measured.

    Here M is the number of the feature's variants, and not of models' variants: N models are to
    have M kinds of positions, say. An exponent of 1 in variants and 0 in models says that each
    variant costs its own lines, whatever models there are; both 1, that each costs them again
    in every model.
    """
    groups: dict[str, list[Measurement]] = {}
    for one in measured:
        groups.setdefault(one.feature.variant_of or one.feature.name, []).append(one)
    return tuple(
        VariantGrowth(name, tuple(one.feature.name for one in group), _growth_of(group))
        for name, group in sorted(groups.items())
        if len(group) > 1
    )


def _growth_of(group: list[Measurement]) -> Growth:
    """Fits lines by (models, variants of the feature); there are two variants of each model."""
    sizes = [size for size in group[0].growth.lines if size[1] == 2]
    return fit_growth(
        {
            (size[0], count): sum(one.growth.lines[size] for one in group[:count])
            for size in sizes
            for count in range(1, len(group) + 1)
        }
    )


def measure_feature(
    feature: Feature, *, models: int = LARGEST, variants: int = LARGEST
) -> Measurement:
    """Add a feature to every model of a family, and look for it in each one's trace.

    Args:
        feature: What to add.
        models: Models of the family, 3 to `LARGEST`.
        variants: Variants of each, 3 to `LARGEST`.
    """
    apply = feature.apply.resolve() if feature.apply else _unchanged
    lines = lines_to_write(apply) if feature.apply else 0
    kinds = measure_kinds(feature)
    reasons = dict(_reasons(feature, apply, model_family(models, variants)))
    is_lacking = np.reshape([reason is not None for reason in reasons.values()], (models, variants))

    def count(num_models: int, num_variants: int) -> int:
        return lines + max(1, lines) * int(is_lacking[:num_models, :num_variants].sum())

    return Measurement(
        feature=feature,
        lines=lines,
        existing=modules_that_import(feature.implementation),
        kinds=kinds,
        models=models * variants,
        lacks=tuple(
            MissingFeature(name, reason) for name, reason in reasons.items() if reason is not None
        ),
        growth=measure_growth(count, models=models, variants=variants),
    )


def measure_kinds(feature: Feature) -> KindCosts:
    """Add a feature to models of known kinds and of kinds that are made up, and watch it."""
    apply = feature.apply.resolve() if feature.apply else _unchanged
    hardware = Hardware.parse(feature.target)
    runs = [partial(_reason, feature, apply, cfg, hardware) for _, cfg in known_kinds()]
    reasons = dict(_reasons(feature, apply, unseen_kinds()))
    return KindCosts(
        glue=glue_lines(apply, feature.implementation, runs) if feature.apply else 0,
        unseen=len(reasons),
        lacks=tuple(
            MissingFeature(name, reason) for name, reason in reasons.items() if reason is not None
        ),
    )


def why_not_in(feature: Feature, cfg: Any, hardware: Hardware) -> str | None:
    """Return None where a training config's traced model contains a feature, or why it does not."""
    reason: str | None = feature.call("evidence", trace_model(cfg, hardware), returns=str | None)
    return reason


def check_gate(measurements: Iterable[Measurement]) -> None:
    """Check that every feature costs a constant, small number of lines.

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
    """Yield each model's name, and why it lacks the feature; None where it has it."""
    hardware = Hardware.parse(feature.target)
    for name, cfg in family:
        yield name, _reason(feature, apply, cfg, hardware)


def _reason(
    feature: Feature, apply: Callable[[Any], Any], cfg: Any, hardware: Hardware
) -> str | None:
    """Add a feature to a model; returns why the model lacks it then, None where it has it."""
    try:
        changed = apply(cfg)
        if not is_config(changed):
            raise feature.wrong_return("apply", changed, "a training config")
        return why_not_in(feature, changed, hardware)
    except Exception as error:  # any failure is why a model lacks the feature
        first_line, _, _ = str(error).partition("\n")
        return f"{type(error).__name__}: {first_line}"
