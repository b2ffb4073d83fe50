"""`ExampleData`: rows of several arrays, each made from fields of a record.

A `Feature` decodes fields into arrays. Records are read once, checked, and kept in a store on this
machine (`record_store.py`), from which rows are decoded as they are needed.

Letters: B rows of a batch, L tokens of a text.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, ClassVar, Self

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.config import REQUIRED, Configurable, Fraction, PositiveInt, config, evolve, to_json
from axcore.data.arrays import ROW_WEIGHTS
from axcore.data.data_loader import DataLoader, TrainBatches, ValidationBatches
from axcore.data.document import is_validation
from axcore.data.media import Media
from axcore.data.packing.batches import DataShard, batches, train_order
from axcore.data.packing.packing import PADDING_ROW, Batch
from axcore.data.record_store import RecordStore, open_records
from axcore.data.sources.file_source import FileSource
from axcore.data.sources.sample_files import SampleFiles
from axcore.data.tokenizers.tokenizer import ByteTokenizer, Tokenizer
from axcore.errors import ConfigError, DataError
from axcore.module import ArraySpec, BatchSpec

Record = Mapping[str, Any]
"""The fields of a record by name: bytes of a file, text, or numbers."""


@attrs.frozen
class FeatureArray:
    """What each row has of an array.

    Args:
        shape: Of one row.
        dtype: Its dtype in a batch.
        axes: Logical names of its dimensions; None names none of them.
        num_values: One more than the largest of its integers, where these number something.
    """

    shape: tuple[int, ...]
    dtype: str
    axes: tuple[str | None, ...] | None = None
    num_values: int | None = None

    def batched(self, rows: int) -> ArraySpec:
        """Return what a batch of so many rows has."""
        return ArraySpec(
            shape=(rows, *self.shape),
            axes=("batch", *(self.axes or (None,) * len(self.shape))),
            dtype=self.dtype,
            num_values=self.num_values,
        )


class Feature(Configurable, ABC):
    """One array of each row, or several, made from fields of its record; pure.

    Attributes:
        is_named: Whether names of arrays begin with the feature's own.
        part_type: The type of parts of OpenAI's messages that have its file, as `image_url`; None
            where no message has it.
    """

    is_named: ClassVar[bool] = True
    part_type: ClassVar[str | None] = None

    @config
    class Config(Configurable.Config["Feature"]):
        """Describes a feature."""

        def for_shapes(self) -> Self:
            """Return a config with the same arrays that needs no file to be built."""
            return self

    @property
    def learns(self) -> bool:
        """Whether `arrays` depends on all records, which are then read before it is asked for."""
        return False

    @property
    @abstractmethod
    def fields(self) -> tuple[str, ...]:
        """The fields of a record that it reads."""

    @abstractmethod
    def arrays(self) -> Mapping[str, FeatureArray]:
        """Return what a row has, by what is put behind the feature's name: `""`, `_mask`.

        Of a feature that is not `is_named`, by the names of the arrays.
        """

    @abstractmethod
    def make(self, record: Record, rng: np.random.Generator | None) -> Mapping[str, NDArray[Any]]:
        """Return the arrays of a row, named as `arrays` does.

        Args:
            record: The fields that it reads.
            rng: What it augments by: the same for the same row of the same epoch. None in
                evaluations, which augment nothing.

        Raises:
            ValueError: The record is bad.
        """

    def media(self, arrays: Mapping[str, NDArray[Any]]) -> Media | None:
        """Return what a row has as a file that browsers show; None where it is no such thing.

        Args:
            arrays: What `make` returned, which is what a model gets.
        """
        return None

    def check(self, record: Record) -> None:
        """Check a record, once, when it is read for the first time.

        Raises:
            ValueError: It is bad.
        """
        self.make(record, None)

    def learn(self, store: RecordStore) -> None:
        """Read what depends on all records, such as the names of classes; by default nothing."""


class Label(Feature):
    """The number of a class, whose name is in a field: text, or an integer."""

    @config
    class Config(Feature.Config):
        """Which field, and which classes.

        Attributes:
            field: Contains the class: `folder` in a folder of pictures for each class, `cls` in
                files as WebDataset writes them.
            classes: Names of the classes, in the order of their numbers; by default those that are
                found, sorted, integers by their size.
            num_classes: How many there are, where names are not given; by default as many as are
                found. A model can be compiled before its data are there if this is known.
        """

        field: str = "folder"
        classes: tuple[str, ...] = ()
        num_classes: PositiveInt | None = None

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self._classes: tuple[str, ...] = cfg.classes

    @property
    def learns(self) -> bool:
        """Whether nothing says how many classes there are."""
        return not (self.config.classes or self.config.num_classes)

    @property
    def fields(self) -> tuple[str, ...]:
        """The class."""
        return (self.config.field,)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of classes.

        Raises:
            ConfigError: They are neither given nor read yet.
        """
        if not self._classes:
            raise ConfigError(
                "the classes of a label are known only once its data are read",
                where="data.features",
                hint='name them, Label.Config(classes=("cat", "dog")), or set num_classes',
            )
        return self._classes

    def arrays(self) -> Mapping[str, FeatureArray]:
        """Return an integer for each row."""
        count = self.config.num_classes or len(self.classes)
        return {"": FeatureArray((), "int32", num_values=count)}

    def check(self, record: Record) -> None:
        """Check that the record has a class, and one that is known where they are given."""
        name = self._name(record)
        if self.config.classes and name not in self.config.classes:
            raise ValueError(f"its class is {name!r}, which is none of {len(self._classes)}")

    def make(self, record: Record, rng: np.random.Generator | None) -> Mapping[str, NDArray[Any]]:
        """Return the number of the class."""
        return {"": np.asarray(self.classes.index(self._name(record)), np.int32)}

    def learn(self, store: RecordStore) -> None:
        """Find the classes."""
        if not self._classes:
            found = {self._name(store[number]) for number in range(len(store))}
            is_numbered = all(name.lstrip("-").isdigit() for name in found)
            self._classes = tuple(sorted(found, key=int) if is_numbered else sorted(found))
            most = self.config.num_classes
            if most is not None and len(self._classes) > most:
                raise DataError(
                    f"{len(self._classes)} classes were found, and num_classes is {most}",
                    where="data.features",
                    hint=f"num_classes={len(self._classes)}, in the model too",
                )

    def _name(self, record: Record) -> str:
        value = record[self.config.field]
        text = value.decode() if isinstance(value, bytes) else str(value)
        if not text.strip():
            raise ValueError(f"its {self.config.field!r} is empty")
        return text.strip()


class Text(Feature):
    """The tokens of a text `[L]`, and which of them are not padding, `[L]` as `NAME_mask`."""

    @config
    class Config(Feature.Config):
        """Which field, and how it becomes tokens.

        Attributes:
            field: Contains the text; white space around it does not count.
            tokenizer: How text becomes tokens.
            length: L. A longer text is bad.
            has_frame: Whether the tokenizer's first and last tokens are put around the text.
        """

        field: str = "txt"
        tokenizer: Tokenizer.Config = ByteTokenizer.Config()
        length: PositiveInt = REQUIRED
        has_frame: bool = False

        def for_shapes(self) -> Self:
            """Return a config without the files of a tokenizer."""
            return evolve(self, tokenizer=ByteTokenizer.Config())

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """How text becomes tokens."""
        built: Tokenizer = self.config.tokenizer.build()
        return built

    @property
    def fields(self) -> tuple[str, ...]:
        """The text."""
        return (self.config.field,)

    def arrays(self) -> Mapping[str, FeatureArray]:
        """Return tokens and their mask."""
        shape, vocab_size = (self.config.length,), self.tokenizer.vocab_size
        return {
            "": FeatureArray(shape, "int32", num_values=vocab_size),
            "_mask": FeatureArray(shape, "bool"),
        }

    def make(self, record: Record, rng: np.random.Generator | None) -> Mapping[str, NDArray[Any]]:
        """Return the tokens, padded."""
        cfg = self.config
        value = record[cfg.field]
        text = value.decode() if isinstance(value, bytes) else str(value)
        found = np.asarray(self.tokenizer.encode(text.strip()), np.int32)
        if cfg.has_frame:
            found = np.asarray(self.tokenizer.framed(found), np.int32)
        if len(found) > cfg.length:
            raise ValueError(f"its {cfg.field!r} has {len(found)} tokens, more than {cfg.length}")
        tokens = np.full(cfg.length, self.tokenizer.pad_id, np.int32)
        tokens[: len(found)] = found
        return {"": tokens, "_mask": np.arange(cfg.length) < len(found)}


class ExampleData(DataLoader):
    """Batches of rows that features decode from the records of a source.

    A batch has the arrays of each feature, by its name and what `Feature.arrays` says, and
    `row_weights` `[B]`: 0 for the rows that fill the last batch of an evaluation.

    Row i of epoch e is a function of the records, the seed and i: order and augmentation depend on
    nothing else, so a run that resumes, on any number of processes, continues with the same rows.
    """

    @config
    class Config(DataLoader.Config):
        """Which records, and what is made of them.

        Attributes:
            source: Where records come from; any source of files.
            features: What makes arrays of them, by the names that arrays have in a batch.
            validation_source: Records to evaluate on; where None, `validation_fraction` of the
                source's are held out.
            validation_fraction: Share of the records that is never trained on, in [0, 1).
            seed: Decides the order of training rows, and how they are augmented.
            shuffle: Whether rows are read in another order each epoch.
            validation_batches: How many batches an evaluation reads at most; None reads them all.
            num_workers: Threads that decode the rows of a batch.
        """

        source: FileSource.Config = REQUIRED
        features: Mapping[str, Feature.Config] = REQUIRED
        validation_source: FileSource.Config | None = None
        validation_fraction: Fraction = 0.1
        seed: int = 0
        shuffle: bool = True
        validation_batches: PositiveInt | None = None
        num_workers: PositiveInt = 4

        @property
        def seq_len(self) -> int:
            """Tokens of a row of the feature with text.

            Raises:
                AttributeError: None has text.
            """
            for feature in self.features.values():
                if hasattr(feature, "tokenizer"):
                    return int(getattr(feature, "length"))  # noqa: B009 - not of every feature
            raise AttributeError("no feature of the data has text")

        def for_shapes(self) -> Self:
            """Return a config that reads no file of the user's."""
            # A folder that always exists, as a source checks what it is given when it is built.
            stand_in = SampleFiles.Config(folder=".")
            features = {name: one.for_shapes() for name, one in self.features.items()}
            return evolve(self, source=stand_in, validation_source=None, features=features)

    features: dict[str, Feature]

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        if not cfg.features:
            raise ConfigError("features is empty", where="data.features", hint="name one at least")
        self.features = {name: one.build() for name, one in sorted(cfg.features.items())}

    def batch_spec(self) -> BatchSpec:
        """Return what a batch is; records are read where a feature learns of them."""
        rows = self.config.batch_size
        if any(one.learns for one in self.features.values()):
            _ = self._splits
        specs = {name: one.batched(rows) for name, one in self._arrays().items()}
        weights = ArraySpec(shape=(rows,), axes=("batch",), dtype="float32")
        return BatchSpec(arrays={**specs, ROW_WEIGHTS: weights}, unit="row", num_units=rows)

    def _arrays(self) -> dict[str, FeatureArray]:
        return {
            prefix(name, feature) + suffix: one
            for name, feature in self.features.items()
            for suffix, one in feature.arrays().items()
        }

    @property
    def tokenizer(self) -> Tokenizer:
        """That of the feature with text.

        Raises:
            AttributeError: None has text.
        """
        for feature in self.features.values():
            found: Tokenizer | None = getattr(feature, "tokenizer", None)
            if found is not None:
                return found
        raise AttributeError("no feature of the data has text")

    def train(self, *, process_index: int = 0, process_count: int = 1) -> TrainBatches:
        """Return an iterator without end over one process's part of each global batch.

        Raises:
            DataError: The source cannot be read, or contains nothing to train on.
        """
        cfg, (rows, _) = self.config, self._splits
        shard = DataShard(cfg.batch_size, process_index, process_count)
        order = train_order(len(rows), seed=cfg.seed, shuffle=cfg.shuffle, counts_epochs=True)
        identity = {
            "records": rows.digest,
            "features": _described(cfg.features),
            **{name: getattr(cfg, name) for name in ("batch_size", "seed", "shuffle")},
        }
        return TrainBatches(batches(rows, order, shard), identity)

    def validation(self, *, process_index: int = 0, process_count: int = 1) -> ValidationBatches:
        """Return the batches to evaluate on, the last one filled up with rows of padding.

        Raises:
            DataError: As `train` does.
        """
        cfg, (_, rows) = self.config, self._splits
        shard = DataShard(cfg.batch_size, process_index, process_count)
        return ValidationBatches.of(rows, shard, max_batches=cfg.validation_batches)

    def held_out(self, *, max_rows: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the records that are evaluated on, or so many of them, from all over.

        Raises:
            DataError: As `train` does.
        """
        return self._splits[1].records(max_rows)

    def row(self, record: Record) -> dict[str, NDArray[Any]]:
        """Return the arrays of a record as evaluations read them, by the names of a batch.

        Raises:
            ValueError: The record is bad.
        """
        return {
            prefix(name, feature) + suffix: value
            for name, feature in self.features.items()
            for suffix, value in feature.make(record, None).items()
        }

    def summary(self) -> str:
        """Return how many rows there are, and of what.

        Raises:
            DataError: As `train` does.
        """
        train, validation = self._splits
        kinds = ", ".join(
            f"{name} {'x'.join(map(str, one.shape)) or 'scalar'} {one.dtype}"
            for name, one in self._arrays().items()
        )
        return f"records: {len(train):,} rows of {kinds}; validation: {len(validation):,} rows"

    @cached_property
    def _splits(self) -> tuple["_Rows", "_Rows"]:
        """The rows to train on, and those to evaluate on."""
        cfg = self.config
        train: Sequence[int]
        held: Sequence[int]
        store = self._store(cfg.source)
        for feature in self.features.values():
            feature.learn(store)
        if cfg.validation_source is not None:
            other = self._store(cfg.validation_source)
            train, held = range(len(store)), range(len(other))
        else:
            other, fraction = store, cfg.validation_fraction
            is_held = [is_validation(name, fraction) for name in store.names]
            train, held = (
                [n for n, one in enumerate(is_held) if one is of] for of in (False, True)
            )
        if not train:
            raise DataError(
                f"{len(store)} records leave nothing to train on; validation_fraction is "
                f"{cfg.validation_fraction}.",
                where="data.source",
                hint="give more records, or lower data.validation_fraction",
            )
        return _Rows(self, store, train, is_training=True), _Rows(self, other, held)

    def _store(self, source: FileSource.Config) -> RecordStore:
        fields = tuple(sorted({one for f in self.features.values() for one in f.fields}))
        checks = {name: one.check for name, one in self.features.items()}
        return open_records(source, fields, checks, key=_described(self.config.features))


def prefix(name: str, feature: Feature) -> str:
    """Return what the names of a feature's arrays begin with."""
    return name if feature.is_named else ""


def _described(features: Mapping[str, Feature.Config]) -> str:
    return " ".join(f"{name}={to_json(one)}" for name, one in sorted(features.items()))


class _Rows:
    """Some records of a store, as batches read them."""

    def __init__(
        self,
        data: ExampleData,
        store: RecordStore,
        numbers: Sequence[int],
        *,
        is_training: bool = False,
    ) -> None:
        self._data, self._store, self._is_training = data, store, is_training
        self._numbers = np.asarray(numbers, np.int64)
        self._arrays = data._arrays()

    @property
    def digest(self) -> str:
        """A short hash of all records, and of how many are held out."""
        return f"{self._store.digest} {len(self._numbers)}"

    def __len__(self) -> int:
        return len(self._numbers)

    def records(self, max_rows: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the fields of each record, or of so many at equal distances."""
        count = len(self) if max_rows is None else min(max_rows, len(self))
        places = np.arange(count) * len(self) // max(1, count)
        return (self._store[int(number)] for number in self._numbers[places])

    def batch(self, rows: Sequence[int], /) -> Batch:
        """Return the rows of those numbers; PADDING_ROW is one of zeros that weighs nothing.

        The number of a training row counts on through epochs, since each epoch augments otherwise.
        """
        made: Batch = {
            name: np.zeros((len(rows), *one.shape), one.dtype) for name, one in self._arrays.items()
        }
        made[ROW_WEIGHTS] = np.array([row != PADDING_ROW for row in rows], np.float32)
        # Decoders of pictures and sound are in C and let other threads run. A thread has every
        # n-th row, since a task for each would cost more than a small picture.
        parts = [range(n, len(rows), self._num_workers) for n in range(self._num_workers)]
        for _ in self._pool.map(lambda part: self._fill(made, rows, part), parts):
            pass
        return made

    def _fill(self, made: Batch, rows: Sequence[int], places: range) -> None:
        """Write the rows at some places into the arrays of a batch."""
        for place in places:
            if rows[place] != PADDING_ROW:
                for name, value in self._row(rows[place]):
                    made[name][place] = value

    def _row(self, row: int) -> Iterator[tuple[str, NDArray[Any]]]:
        epoch, place = divmod(row, len(self._numbers))
        number = int(self._numbers[place])
        return self._made(self._store[number], number, epoch)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._num_workers, thread_name_prefix="decode")

    @property
    def _num_workers(self) -> int:
        return int(self._data.config.num_workers)

    def _made(self, record: Record, number: int, epoch: int) -> Iterator[tuple[str, NDArray[Any]]]:
        seed = self._data.config.seed
        for index, (name, feature) in enumerate(self._data.features.items()):
            rng = None
            if self._is_training:
                # Numbers of the row alone: not of the batch, the process or the thread.
                rng = np.random.default_rng([seed % 2**32, epoch, number, index])
            try:
                made = feature.make(record, rng)
            except (ValueError, KeyError) as error:
                raise DataError(
                    f"feature {name!r} cannot be made of {self._store.name(number)}: {error}",
                    where=f"data.features[{name!r}]",
                    hint="the record was good when it was read first: look at what augments it",
                ) from error
            before = prefix(name, feature)
            for suffix, value in made.items():
                yield before + suffix, self._checked(before + suffix, value)

    def _checked(self, name: str, value: NDArray[Any]) -> NDArray[Any]:
        expected = self._arrays[name]
        # Assignment would broadcast a smaller array over a larger one without a word.
        if value.shape != expected.shape:
            raise DataError(
                f"array {name!r} of a row has shape {list(value.shape)}, and its feature said "
                f"{list(expected.shape)}",
                where="data.features",
                hint="return arrays of the shapes that Feature.arrays gives",
            )
        return value
