"""`Task`: what a trainer trains a model for."""

from axcore.config import REQUIRED, config
from axcore.module import BatchSpec, ModelFlops, Module


class Task(Module):
    """An objective around a model: `forward(batch)` adds losses.

    The model has the task's own path, so that its state, its random keys and the names of its own
    losses are those that it has alone: checkpoints, adapters and exports know of no task.
    """

    wraps = "model"

    @config
    class Config(Module.Config["Task"]):
        """Describes a `Task`.

        Args:
            model: Filled by the trainer.
        """

        model: Module.Config = REQUIRED

    def setup(self, cfg: Config) -> None:
        """Builds the model."""
        self.model = cfg.model.build()

    def flops_per_unit(self, batch: BatchSpec) -> ModelFlops | None:
        """Returns what a unit costs the model, forward and backward."""
        return self.model.flops_per_unit(batch)
