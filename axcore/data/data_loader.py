"""`DataLoader`: what a trainer needs of data: the spec of a batch, and batches."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Self

from axcore.config import REQUIRED, Configurable, PositiveInt, config
from axcore.data.loading import TrainBatches
from axcore.module import BatchSpec


class DataLoader(Configurable, ABC):
    """Batches of any kind: a tree of numpy arrays, as `batch_spec` says.

    Nothing is read before the first batch or the summary is asked for.
    """

    @config
    class Config(Configurable.Config["DataLoader"]):
        """Describes a data loader.

        Args:
            batch_size: Rows of the global batch, over all processes.
        """

        batch_size: PositiveInt = REQUIRED

        def for_shapes(self) -> Self:
            """Returns a config with the same batch shapes that needs no file to be built."""
            return self

    @abstractmethod
    def batch_spec(self) -> BatchSpec:
        """Returns what every batch is, without reading data."""

    @abstractmethod
    def train(self, *, process_index: int = 0, process_count: int = 1) -> TrainBatches:
        """Returns an iterator without end over one process's part of each global batch.

        Args:
            process_index: Which process this is, from 0.
            process_count: How many processes share each batch, in contiguous blocks of rows.
        """

    @abstractmethod
    def validation(self, *, process_index: int = 0, process_count: int = 1) -> Iterable[Any]:
        """Returns the batches to evaluate on, with as many for every process; maybe none."""

    @abstractmethod
    def summary(self) -> Any:
        """Reads the data, and returns what there is; as text, one line for people.

        Raises:
            DataError: It cannot be read, or there is nothing to train on.
        """
