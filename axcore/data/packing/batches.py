"""Global batches of rows, and one process's share of each.

The row at place b of the global batch of step s is number `s * batch_size + b` of an endless order
of rows: every epoch lists each row once, permuted by a key of (seed, epoch). So a batch is a pure
function of (seed, step, b). The number of processes only decides who reads which places, and
the position of an iterator is one number.
"""

import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol

import attrs

from axcore.data.packing.packing import PADDING_ROW, Batch
from axcore.data.packing.shuffling import Permutation
from axcore.errors import ConfigError, DataError

# A batch may span epochs, and sources of a mixture are in epochs of their own.
_NUM_CACHED_EPOCHS = 4


@attrs.frozen
class DataShard:
    """The places of each global batch that one process reads: a contiguous block.

    Attributes:
        batch_size: Rows of the global batch.
        process_index: Which process, from 0.
        process_count: How many processes share each batch.

    Raises:
        ConfigError: The processes cannot share a batch equally, or there is no such process.
    """

    batch_size: int
    process_index: int = 0
    process_count: int = 1

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.process_index < self.process_count:
            raise ConfigError(
                f"process_index is {self.process_index}; with process_count={self.process_count} "
                f"expected 0 to {self.process_count - 1}."
            )
        if self.batch_size % self.process_count:
            raise ConfigError(
                f"batch_size is {self.batch_size}, which {self.process_count} processes cannot "
                "share equally.",
                hint=f"batch_size={_next_multiple(self.batch_size, self.process_count)}",
            )

    def places(self, step: int) -> range:
        """Return where in the order of rows this process's part of a step's batch is."""
        rows = self.batch_size // self.process_count
        begin = step * self.batch_size + self.process_index * rows
        return range(begin, begin + rows)


class Order(Protocol):
    """Row numbers in the order of reading, PADDING_ROW among them."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> int: ...


class Rows(Protocol):
    """Rows that are made from their numbers alone."""

    def __len__(self) -> int: ...

    def batch(self, rows: Sequence[int], /) -> Batch:
        """Return the rows of those numbers, as arrays; PADDING_ROW is one that weighs nothing."""


class BatchIterator(Iterator[Batch], Protocol):
    """Batches from a position on, which can be saved: rows of a corpus and streams alike."""

    def get_state(self) -> dict[str, Any]:
        """Return the position, JSON-able; `next_index` is how many batches were taken."""

    def set_state(self, state: dict[str, Any], /) -> None:
        """Go to a saved position."""


class Batches(Protocol):
    """One process's part of each global batch; each iteration begins at the first."""

    def __iter__(self) -> BatchIterator: ...


def train_order(
    num_rows: int, *, seed: int | str, shuffle: bool, counts_epochs: bool = False
) -> Order:
    """Return the endless order of training rows; any place of it is computed.

    Args:
        num_rows: Rows of one epoch.
        seed: Any integer or text.
        shuffle: Whether each epoch is shuffled, each differently.
        counts_epochs: Whether row n of epoch e has the number `e * num_rows + n`, for rows that
            each epoch packs again; otherwise it is n.

    Raises:
        DataError: There are no rows, or too many.
    """
    if num_rows < 1:
        raise DataError("There are no rows to train on.", hint="Give the source more text.")
    return _TrainOrder(num_rows, f"train {seed}" if shuffle else None, counts_epochs)


class _TrainOrder:
    """Epoch after epoch, each as its own permutation has it."""

    def __init__(self, num_rows: int, key: str | None, counts_epochs: bool) -> None:
        self._num_rows = num_rows
        self._counts_epochs = counts_epochs
        self._epoch = lru_cache(_NUM_CACHED_EPOCHS)(
            lambda epoch: range(num_rows) if key is None else _shuffled(num_rows, key, epoch)
        )
        # Now, so that too many rows are an error before the first step.
        self._epoch(0)

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, place: int, /) -> int:
        epoch, place = divmod(place, self._num_rows)
        row = self._epoch(epoch)[place]
        return row + epoch * self._num_rows if self._counts_epochs else row


def _shuffled(num_rows: int, key: str, epoch: int) -> Permutation:
    return Permutation(num_rows, f"{key} epoch {epoch}")


def validation_order(num_rows: int, *, batch_size: int, max_batches: int | None) -> Order:
    """Return the order of validation rows: each at most once, padded to full batches.

    Whatever the seed of training, the order is the same mixture of all documents: a limit of
    `max_batches` leaves a fair sample, and the losses of different runs compare.
    """
    limit = num_rows if max_batches is None else min(num_rows, max_batches * batch_size)
    return _ValidationOrder(Permutation(num_rows, "validation"), limit, batch_size)


class _ValidationOrder:
    """The first rows of a permutation, and then padding up to a full batch."""

    def __init__(self, rows: Permutation, limit: int, batch_size: int) -> None:
        self._rows = rows
        self._limit = limit
        self._length = _next_multiple(limit, batch_size)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: int, /) -> int:
        if not 0 <= place < self._length:
            raise IndexError(place)
        return self._rows[place] if place < self._limit else PADDING_ROW


def batches(rows: Rows, order: Order, shard: DataShard) -> Batches:
    """Return one process's batches: a grain dataset, whose iterators can save their position."""
    import grain

    # No threads: a batch takes well under a millisecond, and what runs ahead of the training loop
    # would have to be counted back out of every saved position.
    in_this_thread = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    source = _Batches(rows, order, shard)
    found: Batches = grain.MapDataset.source(source).to_iter_dataset(in_this_thread)
    return found


class _Batches:
    """One process's part of every global batch, by step: a random-access source for grain."""

    def __init__(self, rows: Rows, order: Order, shard: DataShard) -> None:
        self._rows = rows
        self._order = order
        self._shard = shard

    def __len__(self) -> int:
        return len(self._order) // self._shard.batch_size

    def __getitem__(self, step: int) -> Batch:
        chosen: Sequence[int] = [self._order[place] for place in self._shard.places(step)]
        return self._rows.batch(chosen)


def _next_multiple(value: int, of: int) -> int:
    return -(-value // of) * of
