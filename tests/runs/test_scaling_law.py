"""Scaling laws: coefficients are found again, and what cannot be fitted is refused."""

import math

import numpy as np
import pytest

from axcore.errors import ConfigError
from axcore.runs.scaling_law import Point, ScalingLaw, fit_scaling_law, left_out_losses

CHINCHILLA = ScalingLaw(1.69, 406.4, 0.34, 410.7, 0.28)


def points_of(law, noise=0.0):
    shifts = np.random.default_rng(0).normal(0.0, noise, 12) if noise else np.zeros(12)
    sizes = [(size, length) for size in (1e7, 1e8, 1e9) for length in (1e9, 4e9, 2e10, 1e11)]
    return [
        Point(f"run-{index}", *size, law.loss(*size) * math.exp(shifts[index]))
        for index, size in enumerate(sizes)
    ]


def test_the_coefficients_behind_losses_are_found_again():
    law = fit_scaling_law(points_of(CHINCHILLA))
    assert law.irreducible == pytest.approx(1.69, rel=0.02)
    assert law.params_exponent == pytest.approx(0.34, rel=0.02)
    assert law.tokens_exponent == pytest.approx(0.28, rel=0.02)
    assert law.loss(7e10, 1.4e12) == pytest.approx(CHINCHILLA.loss(7e10, 1.4e12), rel=2e-3)


def test_the_best_size_for_some_flops_has_the_lowest_loss_of_all_with_these_flops():
    size, length = CHINCHILLA.best_sizes(1e21)
    assert 6 * size * length == pytest.approx(1e21)
    best = CHINCHILLA.loss(size, length)
    assert all(CHINCHILLA.loss(size * factor, length / factor) > best for factor in (0.9, 1.1))


def test_laws_without_one_run_spread_by_the_noise_of_runs():
    exact = left_out_losses(points_of(CHINCHILLA), CHINCHILLA, 1e10, 2e11)
    noisy = left_out_losses(points_of(CHINCHILLA, noise=0.01), CHINCHILLA, 1e10, 2e11)
    assert len(exact) == 12
    assert max(noisy) - min(noisy) > 3 * (max(exact) - min(exact))


@pytest.mark.parametrize("keep", [slice(0, 5), slice(0, 8)])
def test_too_few_runs_or_sizes_are_refused(keep):
    with pytest.raises(ConfigError, match="do not determine"):
        fit_scaling_law(points_of(CHINCHILLA)[keep])


def test_a_run_that_diverged_is_named():
    points = [*points_of(CHINCHILLA), Point("diverged", 1e7, 1e9, math.nan)]
    with pytest.raises(ConfigError, match="diverged"):
        fit_scaling_law(points)
