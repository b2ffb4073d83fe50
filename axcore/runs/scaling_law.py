"""Scaling laws: the loss of a model by its parameters and tokens, fitted to runs.

Letters: N parameters, D tokens, L loss; C FLOPs, taken as 6 N D.

Source: Hoffmann et al. 2022, arXiv:2203.15556, section 3.3 and appendix D.3.
"""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.errors import CheckpointError, ConfigError
from axcore.runs.run_facts import run_facts

# Of the paper: a loss that is off by more than 0.1 % counts by its distance, not by its square.
_HUBER_DELTA = 1e-3
_FLOPS_PER_TOKEN = 6
_NUM_COEFFICIENTS = 5
_MIN_SIZES = 3
# Where searches begin; the best of all is taken, as the error has several minima.
_STARTS = ((0.0, 10.0), (0.0, 10.0), (-1.0, 1.0), (0.2, 0.6), (0.2, 0.6))


@attrs.frozen
class Point:
    """One run, as a law sees it.

    Args:
        name: Of the run.
        num_params: N.
        num_tokens: D, all that it was trained on.
        loss: L, in nats.
    """

    name: str
    num_params: float
    num_tokens: float
    loss: float


@attrs.frozen
class ScalingLaw:
    """`L(N, D) = E + A / N^alpha + B / D^beta`.

    Args:
        irreducible: E, the loss that no size and no number of tokens goes below.
        params_factor: A.
        params_exponent: alpha.
        tokens_factor: B.
        tokens_exponent: beta.
    """

    irreducible: float
    params_factor: float
    params_exponent: float
    tokens_factor: float
    tokens_exponent: float

    def loss(self, num_params: float, num_tokens: float) -> float:
        """Return the loss of a model of some size after some tokens."""
        by_params: float = self.params_factor / num_params**self.params_exponent
        by_tokens: float = self.tokens_factor / num_tokens**self.tokens_exponent
        return self.irreducible + by_params + by_tokens

    def best_sizes(self, flops: float) -> tuple[float, float]:
        """Return the parameters and tokens of the lowest loss for some FLOPs of training.

        Source: Hoffmann et al. 2022, arXiv:2203.15556, eq. 4.
        """
        alpha, beta = self.params_exponent, self.tokens_exponent
        balance = alpha * self.params_factor / (beta * self.tokens_factor)
        token_params = flops / _FLOPS_PER_TOKEN
        num_params = balance ** (1 / (alpha + beta)) * token_params ** (beta / (alpha + beta))
        return num_params, token_params / num_params


def read_points(directories: Sequence[Path], *, trust_code: bool = False) -> list[Point]:
    """Return what runs came to: their parameters, tokens and last validation loss, or nan.

    Raises:
        CheckpointError: A run has no validation loss, or its parameters are not known.
    """
    return [_point(directory, trust_code=trust_code) for directory in directories]


def _point(directory: Path, *, trust_code: bool) -> Point:
    facts = run_facts(directory, trust_code=trust_code)
    losses = facts.curves.get("validation", {}).get("loss", [])
    tokens = [one for one in facts.curves.get("train", {}).get("tokens", []) if one is not None]
    if facts.num_params is None or not losses or not tokens:
        missing = "validation loss" if facts.num_params is not None else "known size"
        raise CheckpointError(
            f"the run has no {missing}",
            where=str(directory),
            hint="; ".join(facts.problems) or "train it to a step at which it is validated",
        )
    # Of the last validation, which is nan where it is None: a run that diverged has no loss. Tokens
    # are summed up from rates, and are whole numbers.
    loss = math.nan if losses[-1] is None else losses[-1]
    return Point(str(directory), float(facts.num_params), float(round(tokens[-1])), loss)


def fit_scaling_law(points: Sequence[Point]) -> ScalingLaw:
    """Return the law of the lowest Huber error of log losses.

    Raises:
        ConfigError: There are fewer runs, sizes or numbers of tokens than five coefficients need.
    """
    sizes = {point.num_params for point in points}
    lengths = {point.num_tokens for point in points}
    if len(points) <= _NUM_COEFFICIENTS or min(len(sizes), len(lengths)) < _MIN_SIZES:
        raise ConfigError(
            f"{len(points)} runs of {len(sizes)} sizes and {len(lengths)} numbers of tokens do not "
            f"determine the {_NUM_COEFFICIENTS} coefficients of a law",
            where="runs",
            hint=f"give {_NUM_COEFFICIENTS + 1} runs or more, of {_MIN_SIZES} sizes or more and "
            f"{_MIN_SIZES} numbers of tokens or more, as axcore sweep trains",
        )
    if any(not math.isfinite(point.loss) or point.loss <= 0 for point in points):
        bad = next(one for one in points if not math.isfinite(one.loss) or one.loss <= 0)
        raise ConfigError(
            f"the loss of {bad.name} is {bad.loss}", where="runs", hint="leave this run out"
        )
    return _fitted(points, list(itertools.product(*_STARTS)))


def _fitted(points: Sequence[Point], starts: Sequence[Sequence[float]]) -> ScalingLaw:
    from scipy import optimize  # type: ignore[import-untyped]

    log_N = np.log([point.num_params for point in points])
    log_D = np.log([point.num_tokens for point in points])
    log_L = np.log([point.loss for point in points])

    def error(theta: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        a, b, e, alpha, beta = theta
        terms = np.stack([a - alpha * log_N, b - beta * log_D, np.full_like(log_N, e)])
        log_sum = np.logaddexp.reduce(terms)
        off = log_sum - log_L
        is_small = np.abs(off) <= _HUBER_DELTA
        linear = _HUBER_DELTA * (np.abs(off) - _HUBER_DELTA / 2)
        slope = np.where(is_small, off, _HUBER_DELTA * np.sign(off))
        weights = np.exp(terms - log_sum) * slope
        gradient = [
            weights[0].sum(),
            weights[1].sum(),
            weights[2].sum(),
            -(weights[0] * log_N).sum(),
            -(weights[1] * log_D).sum(),
        ]
        return float(np.where(is_small, off**2 / 2, linear).sum()), np.asarray(gradient)

    # Exponents below 0 would mean that more tokens, or parameters, make a model worse.
    bounds = [(None, None)] * 3 + [(1e-3, 3.0)] * 2
    # Errors are around 1e-6, at which a search with the usual tolerances would not begin.
    tolerances = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 2000}
    found = min(
        (
            optimize.minimize(
                error, start, jac=True, method="L-BFGS-B", bounds=bounds, options=tolerances
            )
            for start in starts
        ),
        key=lambda result: float(result.fun),
    )
    a, b, e, alpha, beta = map(float, found.x)
    return ScalingLaw(math.exp(e), math.exp(a), alpha, math.exp(b), beta)


def left_out_losses(
    points: Sequence[Point], law: ScalingLaw, num_params: float, num_tokens: float
) -> list[float]:
    """Return the losses predicted by the laws that leave out one run each.

    Their spread shows how much a prediction depends on single runs.

    Args:
        points: All runs.
        law: The law of all, at which the searches begin.
        num_params: N of the prediction.
        num_tokens: D of the prediction.
    """
    start = (
        math.log(law.params_factor),
        math.log(law.tokens_factor),
        math.log(law.irreducible),
        law.params_exponent,
        law.tokens_exponent,
    )
    parts = [[*points[:index], *points[index + 1 :]] for index in range(len(points))]
    return [_fitted(others, [start]).loss(num_params, num_tokens) for others in parts]
