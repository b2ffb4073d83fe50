"""`WeightSource`: where a run's first weights come from; `HuggingFace`, a published model."""

from abc import ABC, abstractmethod
from typing import Any

from axcore.config import REQUIRED, Configurable, config
from axcore.interop.published import PublishedModel
from axcore.interop.weight_edits import WeightEdit
from axcore.interop.weight_plan import Selection, WeightPlan


class WeightSource(Configurable, ABC):
    """Weights that a run begins with, in the place of random ones."""

    @config
    class Config(Configurable.Config["WeightSource"]):
        """Describes where weights come from, and what is done to them.

        Args:
            read: Globs of the arrays that are read, by paths in the model's state; others begin as
                in a new model.
            fresh: Globs of arrays that are not read, but begin as in a new model.
            unused: Globs of arrays of the source that the model does not have.
            may_differ: Globs of the model's config that may differ from the source's on purpose,
                `**.position` for one.
            edits: What is done to the weights, in order.
            adapters: A folder of adapters of the source's model, in the format of PEFT for one,
                which are read too. The model has adapters of the same rank and alpha.
        """

        read: tuple[str, ...] = ("**",)
        fresh: tuple[str, ...] = ()
        unused: tuple[str, ...] = ()
        may_differ: tuple[str, ...] = ()
        edits: tuple[WeightEdit, ...] = ()
        adapters: str | None = None

        def completed(self, cfg: Any) -> Any:
            """Returns the trainer's config that this is in, with what only the source knows."""
            return cfg

    @abstractmethod
    def plan(self, cfg: Any) -> WeightPlan:
        """Returns what a model begins with; reads no weights.

        Args:
            cfg: The model's config.

        Raises:
            ConfigError: The weights are another model's.
            CheckpointError: They cannot be read.
        """

    @property
    def selection(self) -> Selection:
        """Which arrays are read."""
        cfg: Any = self.config
        return Selection(read=cfg.read, fresh=cfg.fresh, unused=cfg.unused)


class HuggingFace(WeightSource):
    """The weights of a published model, which must be the run's but for how it is trained."""

    @config
    class Config(WeightSource.Config):
        """Describes a published model.

        Args:
            path: The folder that holds it.
            allow_unknown_fields: Whether fields of its `config.json` that could matter are ignored.
        """

        path: str = REQUIRED
        allow_unknown_fields: bool = False

    folder_fields = ("path", "adapters")

    def plan(self, cfg: Any) -> WeightPlan:
        """Returns what a model begins with; reads no weights."""
        own: Any = self.config
        return PublishedModel(own.path, allow_unknown_fields=own.allow_unknown_fields).plan(
            cfg,
            selection=self.selection,
            edits=own.edits,
            may_differ=own.may_differ,
            adapters=own.adapters,
        )
