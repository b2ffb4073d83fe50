"""`SpikeRollback`: a guard that undoes the steps of a loss spike, and skips their data."""

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from axcore.config import PositiveFloat, PositiveInt, config
from axcore.trainer.guards import Guard, RollBack


class SpikeRollback(Guard):
    """Rolls back where the loss of a log line is far above those before it.

    It judges no line before its window is full, and none whose loss is not finite: such steps
    changed nothing. `Learner.Config.skip_spikes` looks at single steps
    instead, and takes none back.
    """

    @config
    class Config(Guard.Config):
        """Describes a `SpikeRollback`.

        Args:
            sigmas: Standard deviations above the mean of the window from which a loss is a spike.
            window: Log lines that the mean is taken over.
            steps: How many steps to undo at least.
        """

        sigmas: PositiveFloat = 6.0
        window: PositiveInt = 20
        steps: PositiveInt = 100

    def on_start(self, trainer: Any, directory: Path) -> None:
        """Begins with an empty window."""
        self._losses: deque[float] = deque(maxlen=self.config.window)

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Compares the loss of a log line with those before it.

        Raises:
            RollBack: It is a spike.
        """
        cfg, loss = self.config, metrics["loss"]
        if not np.isfinite(loss):
            return
        if len(self._losses) == cfg.window:
            mean, deviation = float(np.mean(self._losses)), float(np.std(self._losses))
            if loss > mean + cfg.sigmas * deviation:
                raise RollBack(
                    f"the loss {loss:.4g} at step {step} is more than {cfg.sigmas:g} standard "
                    f"deviations ({deviation:.2g}) above the mean {mean:.4g} of the last "
                    f"{cfg.window} log lines",
                    steps=cfg.steps,
                )
        self._losses.append(loss)
