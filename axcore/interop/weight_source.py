"""`WeightSource`: where a run's first weights come from; `HuggingFace`, a published model."""

from abc import ABC, abstractmethod
from typing import Any

from axcore.config import REQUIRED, Configurable, config
from axcore.interop.published import PublishedModel


class WeightSource(Configurable, ABC):
    """Weights that a run begins with, in the place of random ones."""

    @config
    class Config(Configurable.Config["WeightSource"]):
        """Describes where weights come from."""

    @abstractmethod
    def read(self, cfg: Any, wanted: Any, *, seed: int) -> Any:
        """Returns the first state of a model.

        Args:
            cfg: The model's config.
            wanted: Shapes, dtypes and shardings of the state.
            seed: Of what the source has not, adapters for example.
        """


class HuggingFace(WeightSource):
    """The weights of a published model, which must be the run's but for how it is trained."""

    @config
    class Config(WeightSource.Config):
        """Describes a published model.

        Args:
            path: The folder that holds it.
        """

        path: str = REQUIRED

    folder_fields = ("path",)

    def read(self, cfg: Any, wanted: Any, *, seed: int) -> Any:
        """Returns the first state of a model."""
        return PublishedModel(self.config.path).read(cfg, wanted, seed=seed)
