"""Constant, linear and quadratic growth are distinguished by what was counted."""

import pytest

from axcore.complexity import (
    KindCosts,
    Measurement,
    fit_growth,
    measure_growth,
    variant_growths,
)
from axcore.plugins import Feature, Ref


@pytest.mark.parametrize(
    ("count", "in_models", "in_variants", "complexity"),
    [
        (lambda n, m: 7, 0, 0, "constant"),
        (lambda n, m: 0, 0, 0, "constant"),
        (lambda n, m: 3 * n, 1, 0, "linear"),
        (lambda n, m: 5 * m, 0, 1, "linear"),
        (lambda n, m: 2 * n * m, 1, 1, "quadratic"),
    ],
)
def test_exponents_of_exact_laws_are_exact(count, in_models, in_variants, complexity):
    growth = measure_growth(count)
    assert growth.in_models == pytest.approx(in_models, abs=1e-9)
    assert growth.in_variants == pytest.approx(in_variants, abs=1e-9)
    assert growth.complexity == complexity


def test_a_fixed_part_does_not_hide_growth():
    growth = measure_growth(lambda n, m: 10 + n)
    assert growth.complexity == "linear"
    assert 0.05 < growth.in_models < 1


def test_slow_growth_is_not_taken_for_none():
    assert measure_growth(lambda n, m: 10 + n // 4).complexity != "constant"


def test_sizes_that_grow_together_cannot_tell_models_from_variants():
    with pytest.raises(ValueError, match="vary each alone"):
        fit_growth({(2, 2): 4, (4, 4): 8, (8, 8): 16})


def measured(name, lines, *, group="positions"):
    """A feature that costs `lines(n)` in n models of n variants each."""
    ref = Ref("axcore.complexity.features:with_rope")
    return Measurement(
        feature=Feature(name=name, evidence=ref, variant_of=group, summary="For a test"),
        lines=lines(1),
        existing=(),
        kinds=KindCosts(glue=0, unseen=4, lacks=()),
        models=16,
        lacks=(),
        growth=measure_growth(lambda n, m: lines(n), models=8, variants=8),
    )


@pytest.mark.parametrize(
    ("lines", "in_models"), [(lambda n: 6, 0), (lambda n: 6 * n, 1)], ids=["once", "each model"]
)
def test_variants_of_a_feature_grow_apart_from_models(lines, in_models):
    every = [measured(name, lines) for name in ("rope", "yarn", "ntk", "longrope")]
    (found,) = variant_growths([*every, measured("moe", lines, group="")])
    assert (found.feature, len(found.names)) == ("positions", 4)
    assert found.growth.in_models == pytest.approx(in_models, abs=1e-9)
    assert found.growth.in_variants == pytest.approx(1, abs=1e-9)
