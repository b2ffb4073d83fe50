"""`Mixture`: several sources, each with its share of the rows of every batch's order.

The weights may change at declared steps, at once or in stairs.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from axcore.config import REQUIRED, NonNegativeInt, Resumable, config, suggest_names
from axcore.data.document import Document, Source
from axcore.data.packing.batches import Order, Rows, train_order
from axcore.data.packing.packing import PADDING_ROW, Batch
from axcore.data.sources.schedule import LONGEST_PERIOD, Schedule, integer_weights
from axcore.errors import ConfigError, DataError
from axcore.plugins import attributed

# Fifty steps of the way are smooth enough, and each is a phase that is kept in memory.
_MAX_STAIRS = 50
_PARTS = 1000
"""Weights of a stair are multiples of a thousandth, so that they come out even in so many rows."""


SOURCE_IDS = "source_ids"
"""The array of a batch that says which source of a mixture each row is of."""

# Exact ratios of token counts would make sequences that repeat after billions of rows, and a whole
# period is held in memory (`LONGEST_PERIOD`).
_PARTS_OF_WEIGHT = 10_000


@config
class NewWeights:
    """Weights of a mixture from a step on.

    Attributes:
        from_step: The first step with these weights, from 0.
        weights: As those of `Mixture.Config`.
        over_steps: How many steps the way from the weights before takes; it is walked in stairs.
    """

    from_step: NonNegativeInt = REQUIRED
    weights: Mapping[str, float] = REQUIRED
    over_steps: NonNegativeInt = 0


def _weights_by_place(
    weights: Mapping[str, float], changes: Sequence[NewWeights], batch_size: int
) -> Iterator[tuple[int, Mapping[str, float]]]:
    """Yield from which row of training on which weights hold.

    Stairs begin after full thousands of rows of a way, where every share has come out even. So
    they add nothing to how far shares may be off.

    Args:
        weights: The first ones.
        changes: Those from a step on.
        batch_size: Rows of a step.

    Raises:
        ConfigError: A way is too short for a stair.
    """
    yield 0, weights
    for change in changes:
        begin = change.from_step * batch_size
        thousands = change.over_steps * batch_size // _PARTS
        if change.over_steps and not thousands:
            raise ConfigError(
                f"over_steps of the change at step {change.from_step} is {change.over_steps}, "
                f"which are {change.over_steps * batch_size} rows; a stair has {_PARTS}",
                where="data.source.changes",
                hint=f"set it to {-(-_PARTS // batch_size)} or more, or to 0 for a change at once",
            )
        count = min(_MAX_STAIRS, thousands)
        for stair in range(count):
            # The middle of the stair, so that its weights are right on average.
            part = (stair + 0.5) / count
            yield begin + stair * thousands // count * _PARTS, _between(weights, change, part)
        yield begin + thousands * _PARTS, change.weights
        weights = change.weights


def _between(weights: Mapping[str, float], change: NewWeights, part: float) -> Mapping[str, float]:
    """Return weights on the way, in thousandths."""
    before, after = (_as_shares(one) for one in (weights, change.weights))
    exact = {
        name: _PARTS * ((1 - part) * before.get(name, 0) + part * after.get(name, 0))
        for name in {**before, **after}
    }
    rounded = {name: int(value) for name, value in exact.items()}
    by_rest = sorted(exact, key=lambda name: rounded[name] - exact[name])
    # The largest remainders get what rounding down left, so all add up to the whole.
    for name in by_rest[: _PARTS - sum(rounded.values())]:
        rounded[name] += 1
    return rounded


def _as_shares(weights: Mapping[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


class Mixture(Source):
    """Rows of several sources, in fixed proportions.

    A row is of one source. Among the first n rows of training, those of each source are less than
    one row away from its share of n, for every n; each source is shuffled by itself, and begins its
    next epoch when it was read once.
    """

    @config
    class Config(Source.Config):
        """What to mix.

        What is `Resumable` may change when a run is resumed, as long as the rows that it has read
        stay the same: a source that is added or removed has weight from a later step on, or till
        then.

        Attributes:
            sources: What to read, by names of your own.
            weights: Share of each source; only their proportions count. A name that is missing has
                none.
            by: Whether shares are of tokens, or of documents: a source of longer documents then has
                more tokens. Shares of documents, and those of tokens where `packing` leaves rows
                unfilled, are kept to one part in ten thousand.
            max_epochs: How often a source is read at most; the others then share its weight.
            changes: Other weights from a step on, steps rising.
        """

        sources: Resumable[Mapping[str, Source.Config]] = REQUIRED
        weights: Mapping[str, float] = REQUIRED
        by: Literal["tokens", "documents"] = "tokens"
        max_epochs: Resumable[Mapping[str, float]] = {}
        changes: Resumable[tuple[NewWeights, ...]] = ()

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        _check(cfg)
        self.components = {name: source.build() for name, source in cfg.sources.items()}

    def documents(self) -> Iterator[Document]:
        """Yield every document of each source, its name after that of the source."""
        for name, source in self.components.items():
            with attributed(source, "documents"):
                for document in source.documents():
                    yield Document(f"{name}/{document.name}", document.text, document.tokens)

    def describe(self) -> str:
        """Name the sources and the shares that they begin with."""
        total = sum(self.config.weights.values())
        shares = (f"{w / total:.3g} {name}" for name, w in self.config.weights.items() if w)
        return f"mixture of {', '.join(shares)}"

    def order(
        self,
        rows: Sequence[Rows],
        rows_a_unit: Sequence[float],
        *,
        batch_size: int,
        seed: int,
        shuffle: bool,
        counts_epochs: bool = False,
    ) -> "MixedOrder":
        """Return the endless order of rows of all sources, as `JoinedRows` numbers them.

        Args:
            rows: Of each source.
            rows_a_unit: How many rows of each source hold what shares are of, one token or one
                document; only their proportions count.
            batch_size: Rows of a step.
            seed: Decides the order of each source.
            shuffle: Whether each source is shuffled.
            counts_epochs: As for `train_order`.
        """
        cfg = self.config
        epochs = [cfg.max_epochs.get(name) for name in self.components]
        schedule = Schedule(
            [
                (place, self._shares(weights, rows_a_unit))
                for place, weights in _weights_by_place(cfg.weights, cfg.changes, batch_size)
            ],
            [None if e is None else int(e * len(r)) for e, r in zip(epochs, rows, strict=True)],
        )
        orders = [
            train_order(
                len(one),
                # By name, not by number: an added source leaves the order of the others as it was.
                seed=f"{seed} {name}",
                shuffle=shuffle,
                counts_epochs=counts_epochs,
            )
            for name, one in zip(self.components, rows, strict=True)
        ]
        return MixedOrder(schedule, dict(zip(self.components, orders, strict=True)), batch_size)

    def _shares(self, weights: Mapping[str, float], sizes: Sequence[float]) -> tuple[int, ...]:
        """Return the share of rows of each source; only sources with weight decide it."""
        by_source = [weights.get(name, 0) for name in self.components]
        if len({size for size, weight in zip(sizes, by_source, strict=True) if weight}) < 2:
            return integer_weights(by_source)
        of_rows = np.array(by_source) * np.array(sizes)
        parts = np.round(of_rows / of_rows.sum() * _PARTS_OF_WEIGHT)
        # At least one part: a source with a small weight must not silently have none.
        return integer_weights(np.maximum(parts, of_rows > 0).astype(int).tolist())


class MixedOrder:
    """Row numbers of a mixture by their places in training, as `JoinedRows` reads them."""

    def __init__(self, schedule: Schedule, orders: Mapping[str, Order], batch_size: int) -> None:
        self._schedule = schedule
        self._names = tuple(orders)
        self._orders = tuple(orders.values())
        self._batch_size = batch_size

    def __len__(self) -> int:
        return sys.maxsize

    @property
    def identity(self) -> list[Any]:
        """From which row on which sources have which shares; JSON-able."""
        return [
            [phase.begin, [[n, w] for n, w in zip(self._names, phase.weights, strict=True) if w]]
            for phase in self._schedule.phases
        ]

    def __getitem__(self, place: int, /) -> int:
        try:
            source, number = self._schedule.row(place)
        except IndexError:
            raise DataError(
                f"Step {place // self._batch_size + 1} has no rows: after {self._schedule.end} "
                "rows every source of the mixture was read as often as max_epochs allows.",
                where="data.source.max_epochs",
                hint="Raise max_epochs, or lower max_steps.",
            ) from None
        # Number and source in one integer, for the order of rows is one of integers.
        return int(self._orders[source][number]) * len(self._orders) + source


def read_so_far(identity: Mapping[str, Any], num_batches: int) -> dict[str, Any]:
    """Return what the first batches of a mixture depend on, given what all of them do.

    Args:
        identity: Has `mixture`, as `MixedOrder.identity`, and `tokens`, digests by source.
        num_batches: How many.
    """
    if "mixture" not in identity:
        return dict(identity)
    num_rows = num_batches * identity["batch_size"]
    phases = [phase for phase in identity["mixture"] if phase[0] < num_rows]
    read = {name for _, weights in phases for name, _ in weights}
    tokens = {name: digest for name, digest in identity["tokens"].items() if name in read}
    return {**identity, "mixture": phases, "tokens": tokens}


class JoinedRows:
    """The rows of several sources: row n of source k of K has the number `n * K + k`."""

    def __init__(self, rows: Sequence[Rows]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return sum(map(len, self._rows))

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return the rows of those numbers, with the source of each, [B] int32, added."""
        numbers = np.asarray(rows, np.int64)
        is_padding = numbers == PADDING_ROW
        own, owner = np.divmod(numbers, len(self._rows))
        own[is_padding], owner[is_padding] = PADDING_ROW, 0
        batch: Batch = {}
        for source in np.unique(owner).tolist():
            places = np.flatnonzero(owner == source)
            for name, array in self._rows[source].batch(own[places].tolist()).items():
                whole = batch.setdefault(name, np.empty((len(rows), *array.shape[1:]), array.dtype))
                whole[places] = array
        batch[SOURCE_IDS] = owner.astype(np.int32)
        return batch


class JoinedOrder:
    """One row number after another of several sources, each in the order of its own."""

    def __init__(self, lengths: Sequence[int], order: Order) -> None:
        """Join the sources end to end.

        Args:
            lengths: Rows of each source.
            order: Of all rows, numbered one source after another.
        """
        self._first = np.cumsum([0, *lengths])
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, place: int, /) -> int:
        row = self._order[place]
        if row == PADDING_ROW:
            return row
        source = int(np.searchsorted(self._first, row, side="right")) - 1
        return (row - int(self._first[source])) * (len(self._first) - 1) + source


def _check(cfg: Mixture.Config) -> None:
    """Check that weights are of sources that there are.

    Raises:
        ConfigError: One is not, or there is none at all.
    """
    steps = [0, *(change.from_step for change in cfg.changes)]
    if steps != sorted(set(steps)):
        raise ConfigError(
            f"changes of the mixture come at steps {', '.join(map(str, steps[1:]))}",
            where="data.source.changes",
            hint="let them begin after step 0 and rise",
        )
    for change, after in pairwise(cfg.changes):
        if after.from_step < change.from_step + change.over_steps:
            raise ConfigError(
                f"the change of the mixture at step {change.from_step} takes {change.over_steps} "
                f"steps, and the next one comes at step {after.from_step}",
                where="data.source.changes",
                hint="let each begin after the one before has ended",
            )
    for weights in (cfg.weights, cfg.max_epochs, *(change.weights for change in cfg.changes)):
        for name in weights:
            if name not in cfg.sources:
                known = suggest_names(name, cfg.sources)
                raise ConfigError(f"there is no source {name!r}; {known}", where="data.source")
    for weights in (cfg.weights, *(change.weights for change in cfg.changes)):
        _check_weights(weights)
    for name, source in cfg.sources.items():
        if isinstance(source, Mixture.Config):
            raise ConfigError(
                f"source {name!r} is a mixture, whose own weights would not count",
                where=f"data.source.sources.{name}",
                hint="name its sources next to the others, with its weight times theirs",
            )


def _check_weights(weights: Mapping[str, float]) -> None:
    if not any(weights.values()) or any(
        not 0 <= weight < float("inf") for weight in weights.values()
    ):
        raise ConfigError(
            f"weights are {dict(weights)}; expected numbers from 0 on, not all of them 0",
            where="data.source.weights",
        )
    rows = sum(integer_weights(list(weights.values())))
    if rows > LONGEST_PERIOD:
        raise ConfigError(
            f"weights are {dict(weights)}: their sequence repeats after {rows} rows, and may after "
            f"{LONGEST_PERIOD}",
            where="data.source.weights",
            hint="round them to four digits",
        )
