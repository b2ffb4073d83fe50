"""Weights of a mixture that change at declared steps, at once or in stairs."""

from collections.abc import Iterator, Mapping, Sequence

from axcore.config import REQUIRED, NonNegativeInt, config
from axcore.errors import ConfigError

_MOST_STAIRS = 50
_PARTS = 1000
"""Weights of a stair are multiples of a thousandth, so that they come out even in so many rows."""


@config
class NewWeights:
    """Weights of a mixture from a step on.

    Attributes:
        from_step: The first step with these weights, from 0.
        weights: As those of `Mixture.Config`.
        over_steps: How many steps the way from the weights before takes; it is walked in stairs.
    """

    from_step: NonNegativeInt = REQUIRED
    weights: Mapping[str, float] = REQUIRED
    over_steps: NonNegativeInt = 0


def weights_by_place(
    weights: Mapping[str, float], changes: Sequence[NewWeights], batch_size: int
) -> Iterator[tuple[int, Mapping[str, float]]]:
    """Yields from which row of training on which weights hold.

    Stairs begin after whole thousands of rows of a way, where every share has come out even. So
    they add nothing to how far shares may be off.

    Args:
        weights: The first ones.
        changes: Those from a step on.
        batch_size: Rows of a step.

    Raises:
        ConfigError: A way is too short for a stair.
    """
    yield 0, weights
    for change in changes:
        begin = change.from_step * batch_size
        thousands = change.over_steps * batch_size // _PARTS
        if change.over_steps and not thousands:
            raise ConfigError(
                f"over_steps of the change at step {change.from_step} is {change.over_steps}, "
                f"which are {change.over_steps * batch_size} rows; a stair has {_PARTS}",
                where="data.source.changes",
                hint=f"set it to {-(-_PARTS // batch_size)} or more, or to 0 for a change at once",
            )
        count = min(_MOST_STAIRS, thousands)
        for stair in range(count):
            part = (stair + 0.5) / count
            yield begin + stair * thousands // count * _PARTS, _between(weights, change, part)
        yield begin + thousands * _PARTS, change.weights
        weights = change.weights


def _between(weights: Mapping[str, float], change: NewWeights, part: float) -> Mapping[str, float]:
    """Returns weights on the way, in thousandths."""
    before, after = (_as_shares(one) for one in (weights, change.weights))
    exact = {
        name: _PARTS * ((1 - part) * before.get(name, 0) + part * after.get(name, 0))
        for name in {**before, **after}
    }
    rounded = {name: int(value) for name, value in exact.items()}
    by_rest = sorted(exact, key=lambda name: rounded[name] - exact[name])
    for name in by_rest[: _PARTS - sum(rounded.values())]:
        rounded[name] += 1
    return rounded


def _as_shares(weights: Mapping[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}
