"""`Task`: what a trainer trains a model for."""

from collections.abc import Callable, Mapping
from typing import Any

from axcore.config import REQUIRED, config
from axcore.errors import ModuleError
from axcore.module import BatchSpec, ModelFlops, Module
from axcore.tasks.frozen_model import frozen_models


class Task(Module):
    """An objective around a model: `forward(batch)` adds losses.

    The model has the task's own path, so that its state, its random keys and the names of its own
    losses are those that it has alone: checkpoints, adapters and exports know of no task.

    A task has further models that are not trained as attributes: see `FrozenModel`.
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

    def kept_specs(self, specs: dict[str, Any]) -> dict[str, Any]:
        """Returns the specs of the frozen models, by name.

        Raises:
            ModuleError: The model has arrays of that name.
        """
        frozen = frozen_models(self)
        if taken := sorted(frozen.keys() & specs.keys()):
            raise ModuleError(
                f"{type(self).__qualname__}.{taken[0]} is a frozen model, but the model that is "
                f"trained has arrays under {taken[0]!r} too",
                hint="give the frozen model another attribute",
            )
        return {name: one.specs(name) for name, one in frozen.items()}

    def kept_state(self, state: dict[str, Any], specs: dict[str, Any]) -> dict[str, Any]:
        """Returns arrays in the place of the frozen models' weights, until these are read."""
        return {name: one.random_state() for name, one in frozen_models(self).items()}

    def kept_sources(self) -> Mapping[str, Callable[[Any], Any]]:
        """Returns what reads the weights of each frozen model."""
        return {name: one.read for name, one in frozen_models(self).items()}
