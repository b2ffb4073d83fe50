"""`WeightSource`: where a run's first weights come from; `HuggingFace`, a published model."""

from abc import ABC, abstractmethod
from typing import Any

from axcore.config import REQUIRED, Configurable, config
from axcore.interop.published import PublishedModel
from axcore.interop.reading import WeightPlan
from axcore.interop.surgery import WeightEdits


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

    @abstractmethod
    def table(self, cfg: Any) -> str:
        """Returns a line for each array of a model's state: its name, and what it begins as."""


class HuggingFace(WeightSource):
    """The weights of a published model, which must be the run's but for how it is trained."""

    @config
    class Config(WeightSource.Config):
        """Describes a published model.

        Args:
            path: The folder that holds it.
            fresh: Globs of arrays of the state that are not read, but begin as in a new model.
            grows_vocabulary: Whether the model may have more tokens than the published one; those
                begin as the mean of all others.
        """

        path: str = REQUIRED
        fresh: tuple[str, ...] = ()
        grows_vocabulary: bool = False

    folder_fields = ("path",)

    def read(self, cfg: Any, wanted: Any, *, seed: int) -> Any:
        """Returns the first state of a model."""
        return self._plan(cfg).read(wanted, seed=seed)

    def table(self, cfg: Any) -> str:
        """Returns a line for each array of a model's state: its name, and what it begins as."""
        return self._plan(cfg).table()

    def _plan(self, cfg: Any) -> WeightPlan:
        own = self.config
        edits = WeightEdits(own.fresh, own.grows_vocabulary)
        return PublishedModel(own.path).plan(cfg, edits)
