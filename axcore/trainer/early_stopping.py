"""`EarlyStopping`: a guard that ends a run whose validation metric no longer improves."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from axcore.config import NonNegativeFloat, PositiveInt, config
from axcore.distributed import broadcast_object
from axcore.errors import ConfigError
from axcore.trainer.callbacks.metrics import METRICS_NAME
from axcore.trainer.guards import Guard
from axcore.trainer.run_directory.json_lines import read_json_lines


class EarlyStopping(Guard):
    """Ends training once a metric of the validation data has not improved for some evaluations.

    The run is complete then, and its last state is saved. What was measured before a run was
    interrupted is read from its `metrics.jsonl`, so that a run that resumes stops at the same step.
    """

    @config
    class Config(Guard.Config):
        """Describes an `EarlyStopping`.

        Args:
            metric: Its name in the `validation` lines of `metrics.jsonl`.
            goal: Whether a smaller or a larger value is better.
            patience: How many evaluations in a row may bring no improvement.
            min_improvement: By how much the best value so far must be surpassed.
        """

        metric: str = "loss"
        goal: Literal["min", "max"] = "min"
        patience: PositiveInt = 3
        min_improvement: NonNegativeFloat = 0.0

    def on_start(self, trainer: Any, directory: Path) -> None:
        """Reads what was measured before.

        Raises:
            ConfigError: There is no validation data.
        """
        if next(iter(trainer.data.validation()), None) is None:
            raise ConfigError(
                "early stopping needs validation data, and there is none",
                where="guards",
                hint="--set data.validation_fraction=0.1, or take the guard out",
            )
        name = self.config.metric
        found: dict[str, Any] = broadcast_object(
            "reading validation metrics",
            lambda: {
                str(line["step"]): str(line[name])
                for line in read_json_lines(directory / METRICS_NAME)
                if line.get("split") == "validation" and name in line
            },
        )
        self._values = {int(step): float(value) for step, value in found.items()}

    def on_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keeps the metric.

        Raises:
            ConfigError: There is no such metric.
        """
        name = self.config.metric
        if name not in metrics:
            raise ConfigError(
                f"the validation metrics have no {name!r}; they are {', '.join(metrics)}",
                where="guards.metric",
                hint="set it to one of these",
            )
        self._values[step] = metrics[name]

    def reason_to_stop(self, step: int) -> str:
        """Returns which value of which step was not surpassed for how long."""
        cfg = self.config
        if max(self._values, default=0) > step:  # a run that went back evaluates later steps again
            self._values = {one: value for one, value in self._values.items() if one <= step}
        if step not in self._values:
            return ""
        best, best_step, num_worse = math.inf, step, 0
        sign = 1 if cfg.goal == "min" else -1
        for one in sorted(self._values):
            value = sign * self._values[one]
            if value < best - cfg.min_improvement:  # not so where it is nan
                best, best_step, num_worse = value, one, 0
            else:
                num_worse += 1
        if num_worse < cfg.patience:
            return ""
        evaluations = "evaluation" if num_worse == 1 else f"{num_worse} evaluations"
        return (
            f"{cfg.metric} was {sign * best:.6g} at step {best_step}, and not better in the "
            f"{evaluations} since"
        )
