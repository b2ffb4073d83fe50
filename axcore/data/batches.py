"""Global batches of rows, and one process's share of each, as grain datasets.

The row at place b of the global batch of step s is number `s * batch_size + b` of an endless order
of rows: every epoch lists each row once, reshuffled by grain from (seed, epoch). So a batch is a
pure function of (seed, step, b). The number of processes only decides who reads which places, and
the position of an iterator is one number.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

import attrs

from axcore.data.packing import PADDING_ROW, Batch
from axcore.errors import ConfigError

if TYPE_CHECKING:
    import grain


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
        """Returns where in the order of rows this process's part of a step's batch lies."""
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
        """Returns the rows of those numbers, as arrays; PADDING_ROW is one that weighs nothing."""


def train_order(num_rows: int, *, seed: int | str, shuffle: bool) -> Order:
    """Returns the endless order of training rows.

    Args:
        num_rows: Rows of one epoch.
        seed: Any integer or text. It is hashed first, because grain adds the epoch to it: seed 1
            would otherwise begin with the second epoch of seed 0.
        shuffle: Whether each epoch is shuffled, each differently.
    """
    import grain

    rows = grain.MapDataset.range(num_rows)
    if shuffle:
        rows = rows.shuffle(seed=_hashed_seed(f"train {seed}"))
    order: Order = rows.repeat()
    return order


def validation_order(num_rows: int, *, batch_size: int, max_batches: int | None) -> Order:
    """Returns the order of validation rows: each at most once, padded to full batches.

    Whatever the seed of training, the order is the same mixture of all documents: a limit of
    `max_batches` leaves a fair sample, and the losses of different runs compare.
    """
    import grain

    shuffled = grain.MapDataset.range(num_rows).shuffle(seed=_hashed_seed("heldout"))
    limit = num_rows if max_batches is None else min(num_rows, max_batches * batch_size)
    padding = _next_multiple(limit, batch_size) - limit
    return [int(shuffled[place]) for place in range(limit)] + [PADDING_ROW] * padding


def batches(rows: Rows, order: Order, shard: DataShard) -> "grain.IterDataset[Batch]":
    """Returns one process's batches, as a grain dataset whose iterators can save their place."""
    import grain

    # No threads: a batch takes well under a millisecond, and what runs ahead of the training loop
    # would have to be counted back out of every saved position.
    in_this_thread = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    source = _Batches(rows, order, shard)
    return grain.MapDataset.source(source).to_iter_dataset(in_this_thread)


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


def _hashed_seed(what: str) -> int:
    return int.from_bytes(blake2b(what.encode(), digest_size=4).digest(), "big")


def _next_multiple(value: int, of: int) -> int:
    return -(-value // of) * of
