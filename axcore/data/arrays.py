"""`ArrayData`: batches of rows of numpy arrays, for models of anything but text.

Shapes: N rows of the data, B rows of a batch.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import attrs
import numpy as np
from numpy.typing import ArrayLike, NDArray

from axcore.config import REQUIRED, Fraction, PositiveInt, config
from axcore.data.cache import cache_folder
from axcore.data.data_loader import DataLoader, TrainBatches, ValidationBatches
from axcore.data.packing.batches import DataShard, Rows, batches, train_order
from axcore.data.packing.packing import PADDING_ROW, Batch
from axcore.data.packing.shuffling import Permutation
from axcore.errors import ConfigError, DataError
from axcore.module import ArraySpec, BatchSpec
from axcore.whole_files import whole_file

ROW_WEIGHTS = "row_weights"
"""The array of a batch that says what each row weighs in the loss; rows of padding weigh 0."""

_STORED = "digest:"
# As usual; of a run that says nothing there should be something to evaluate on.
_HELD_OUT = 0.1
_NARROW = {"float64": "float32", "int64": "int32", "uint64": "int32"}
"""What 64 bits become: jax computes in 32 by default."""

if TYPE_CHECKING:
    ArraysOrPath = str | Mapping[str, ArrayLike]
else:
    ArraysOrPath = str  # what a config contains, once `_stored` has made a path of arrays


def _stored(arrays: Any) -> Any:
    """Store arrays below their digest, where they are not there yet, and return what names them.

    Anything else than a mapping, such as a path, is returned as it is.

    Raises:
        DataError: They are not equally long, or are not of numbers.
    """
    if not isinstance(arrays, Mapping):
        return arrays
    found = {str(name): np.asarray(array) for name, array in sorted(arrays.items())}
    # Checked in full width first: int64 values that do
    # not fit into int32 would wrap around silently.
    wide = ArraySet(found, "ArrayData.Config")
    for name in found:
        wide.num_values(name)
    narrow = {name: np.asarray(array, wide.dtypes[name]) for name, array in found.items()}
    digest = ArraySet(narrow, "ArrayData.Config").digest
    folder = _folder_of(digest)
    folder.mkdir(parents=True, exist_ok=True)
    # After the digest, which names the folder: equal arrays of several scripts are stored once.
    for name, array in narrow.items():
        path = folder / f"{name}.npy"
        if not path.exists():
            # Whole or not at all: other processes of the run may store the same arrays now.
            with whole_file(path) as file:
                np.save(file, array, allow_pickle=False)
    return _STORED + digest


class ArrayData(DataLoader):
    """Batches of the rows of arrays that are equally long, shuffled again each epoch.

    A batch has each array by its name, `[B, ...]`, and `row_weights` `[B]`: 1 for each row, or what
    an array of that name says, and 0 for the rows that fill the last batch of an evaluation.
    """

    @config
    class Config(DataLoader.Config):
        """Which arrays, and how they are batched.

        A config is a value that is compared, saved and sent to other processes, so it does not hold
        arrays: given arrays, it stores them below `AXCORE_DATA_CACHE` and holds their digest. From
        there they are mapped into memory, also where a run is resumed.

        Attributes:
            train: Arrays by name, each with a row for every example; or an `.npz` file, or a folder
                of `.npy` files, which stay on the disk. Of arrays in memory, floats and integers of
                64 bits are stored in 32, and all have to fit.
            validation: Such arrays to evaluate on, of the same names.
            validation_fraction: Share of the rows of `train` to evaluate on, which are never
                trained on, where `validation` is None; 0.1 by default.
            seed: Decides the order of training rows.
            shuffle: Whether rows are shuffled, in another order each epoch.
            validation_batches: How many batches an evaluation reads at most; None reads them all.
        """

        # A converter, since a config is frozen: by the time anybody sees the field it contains a
        # path.
        train: ArraysOrPath = attrs.field(default=REQUIRED, converter=_stored)
        validation: ArraysOrPath | None = attrs.field(default=None, converter=_stored)
        validation_fraction: Fraction | None = None
        seed: int = 0
        shuffle: bool = True
        validation_batches: PositiveInt | None = None

    config: Config

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        if cfg.validation is not None and cfg.validation_fraction is not None:
            raise ConfigError(
                "validation and validation_fraction are both set",
                where="data.validation_fraction",
                hint="data.validation_fraction=None evaluates on the arrays of data.validation",
            )

    def batch_spec(self) -> BatchSpec:
        """Return what a batch is; of integers, all values are read for the largest."""
        rows = self.config.batch_size
        arrays = {
            name: ArraySpec(
                shape=(rows, *array.shape[1:]),
                axes=("batch", *(None for _ in array.shape[1:])),
                dtype=self._train.dtypes[name],
                num_values=self._num_values(name),
            )
            for name, array in self._train.arrays.items()
        }
        weights = ArraySpec(shape=(rows,), axes=("batch",), dtype="float32")
        return BatchSpec(arrays={**arrays, ROW_WEIGHTS: weights}, unit="row", num_units=rows)

    def train(self, *, process_index: int = 0, process_count: int = 1) -> TrainBatches:
        """Return an iterator without end over one process's part of each global batch."""
        cfg, (rows, _) = self.config, self._splits
        shard = DataShard(cfg.batch_size, process_index, process_count)
        order = train_order(len(rows), seed=cfg.seed, shuffle=cfg.shuffle)
        names = ("batch_size", "seed", "shuffle")
        # Of rows of this data alone, so another number of processes reads the same batches.
        identity = {
            "arrays": self._train.digest,
            "validation_fraction": self._fraction,
            **{name: getattr(cfg, name) for name in names},
        }
        return TrainBatches(batches(rows, order, shard), identity)

    def validation(self, *, process_index: int = 0, process_count: int = 1) -> ValidationBatches:
        """Return the batches to evaluate on; the last one is filled with rows of padding."""
        cfg, (_, rows) = self.config, self._splits
        shard = DataShard(cfg.batch_size, process_index, process_count)
        return ValidationBatches.of(rows, shard, max_batches=cfg.validation_batches)

    def summary(self) -> str:
        """Return how many rows there are, and of what."""
        train, validation = self._splits
        kinds = ", ".join(
            f"{name} {'x'.join(map(str, array.shape[1:])) or 'scalar'} {self._train.dtypes[name]}"
            for name, array in self._train.arrays.items()
        )
        return f"arrays: {len(train):,} rows of {kinds}; validation: {len(validation):,} rows"

    @property
    def _fraction(self) -> float:
        if self.config.validation is not None:
            return 0.0
        fraction = self.config.validation_fraction
        return _HELD_OUT if fraction is None else fraction

    def _num_values(self, name: str) -> int | None:
        """Return one more than the largest of an array's integers, those to evaluate on too."""
        sets = [self._train] if self._validation is None else [self._train, self._validation]
        found = [one.num_values(name) for one in sets]
        known = [number for number in found if number is not None]
        return max(known) if len(known) == len(found) else None

    @cached_property
    def _train(self) -> "ArraySet":
        return _read(str(self.config.train), "data.train")

    @cached_property
    def _validation(self) -> "ArraySet | None":
        if self.config.validation is None:
            return None
        found = _read(str(self.config.validation), "data.validation")
        _check_alike(self._train, found)
        return found

    @cached_property
    def _splits(self) -> tuple[Rows, Rows]:
        """The rows to train on, and those to evaluate on."""
        num_rows, other = self._train.num_rows, self._validation
        if other is not None:
            return _Rows(self._train, range(num_rows)), _Rows(other, range(other.num_rows))
        # By a fixed key, not by `seed`: runs with other seeds are evaluated on the same rows.
        order = Permutation(num_rows, "held out")
        held_out = round(num_rows * self._fraction)
        # Sorted, since a permutation's order would make `shuffle=False` random.
        train = sorted(order[i] for i in range(held_out, num_rows))
        return _Rows(self._train, train), _Rows(self._train, [order[i] for i in range(held_out)])


@attrs.frozen(eq=False)
class ArraySet:
    """Arrays with equally many rows.

    Attributes:
        arrays: By name, sorted.
        where: Where they are from, for errors.

    Raises:
        DataError: They are not of numbers that a model can read, or have no or not equally many
            rows.
    """

    arrays: dict[str, NDArray[Any]]
    where: str

    def __attrs_post_init__(self) -> None:
        for name, array in self.arrays.items():
            if not name.isidentifier() or array.ndim == 0 or array.dtype.kind not in "biuf":
                raise self._error(
                    f"{name!r} is an array of {array.dtype} {list(array.shape)}",
                    "arrays have a name without spaces, a row for each example, and hold numbers",
                )
        lengths = {name: len(array) for name, array in self.arrays.items()}
        if len(set(lengths.values())) != 1 or not self.num_rows:
            found = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise self._error(
                f"the numbers of rows are {found or 'none, as there are no arrays'}",
                "give each array a row for every example, one at least",
            )
        self._check_weights()

    def _check_weights(self) -> None:
        weights = self.arrays.get(ROW_WEIGHTS)
        if weights is None:
            return
        if weights.ndim != 1 or not np.all(np.isfinite(weights)) or np.any(weights < 0):
            raise self._error(
                f"{ROW_WEIGHTS} has shape {list(weights.shape)}, or a value below 0 or not finite",
                "give each row one weight of at least 0",
            )

    @property
    def num_rows(self) -> int:
        """N."""
        return len(next(iter(self.arrays.values()), ()))

    @property
    def dtypes(self) -> dict[str, str]:
        """The dtype that each array has in a batch."""
        dtypes = {name: str(array.dtype) for name, array in self.arrays.items()}
        dtypes |= {ROW_WEIGHTS: "float32"} if ROW_WEIGHTS in dtypes else {}
        return {name: _NARROW.get(dtype, dtype) for name, dtype in dtypes.items()}

    @property
    def digest(self) -> str:
        """A short hash of every name, dtype, shape and value."""
        digest = blake2b(digest_size=16)
        for name, array in self.arrays.items():
            # Of a fixed byte order, so that the digest is the same on every machine.
            little = array.dtype.newbyteorder("<")
            digest.update(f"{name} {little.str} {array.shape}\n".encode())
            # In parts: arrays mapped into memory may be larger than it.
            for begin in range(0, len(array), 1 << 16):
                part = np.ascontiguousarray(array[begin : begin + (1 << 16)], little)
                digest.update(part.tobytes())
        return digest.hexdigest()

    def num_values(self, name: str) -> int | None:
        """Return one more than the largest of an array's integers; None of other arrays.

        Raises:
            DataError: A value does not fit into the integers of a batch.
        """
        array, dtype = self.arrays[name], np.dtype(self.dtypes[name])
        if dtype.kind not in "iu" or not array.size:
            return None
        smallest, largest = int(array.min()), int(array.max())
        limits = np.iinfo(dtype)
        if smallest < limits.min or largest > limits.max:
            raise self._error(
                f"{name} has values from {smallest} to {largest}, and a batch has them as {dtype}",
                "number them from 0",
            )
        # An array with negative values is not a set of numbers of an embedding.
        return largest + 1 if smallest >= 0 else None

    def _error(self, what: str, hint: str) -> DataError:
        return DataError(what, where=self.where, hint=hint)


class _Rows:
    """Some rows of arrays, as batches read them."""

    def __init__(self, arrays: ArraySet, numbers: Sequence[int]) -> None:
        self._arrays = arrays
        self._numbers = np.asarray(numbers, np.int64)

    def __len__(self) -> int:
        return len(self._numbers)

    def batch(self, rows: Sequence[int], /) -> Batch:
        """Return the rows of those numbers; PADDING_ROW is one of zeros that weighs nothing."""
        chosen_B = np.asarray(rows, np.int64)
        is_padding_B = chosen_B == PADDING_ROW
        # Any row will do in the place of padding; it is set to zero below.
        numbers_B = self._numbers[np.where(is_padding_B, 0, chosen_B)]
        dtypes = self._arrays.dtypes
        found: Batch = {
            # `np.array` copies: a view of a mapped file would be
            # read-only, and read from the disk while the step waits.
            name: np.array(array[numbers_B], dtypes[name])
            for name, array in self._arrays.arrays.items()
        }
        found.setdefault(ROW_WEIGHTS, np.ones(len(chosen_B), np.float32))
        for array in found.values():
            array[is_padding_B] = 0
        return found


def _folder_of(digest: str) -> Path:
    return cache_folder() / "arrays" / digest


def _read(place: str, field: str) -> ArraySet:
    """Return the arrays that a config names.

    Raises:
        DataError: They are not there, or are damaged.
    """
    is_stored = place.startswith(_STORED)
    path = _folder_of(place.removeprefix(_STORED)) if is_stored else Path(place).expanduser()
    hint = (
        "run the script that has the arrays, which stores them again, with the same "
        "AXCORE_DATA_CACHE as now"
        if is_stored
        else f"set {field} to an .npz file or a folder of .npy files"
    )
    try:
        if path.is_dir():
            files = sorted(path.glob("*.npy"))
            arrays = {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in files}
        else:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in sorted(file.files)}
    except (OSError, EOFError, ValueError, AttributeError, TypeError, BadZipFile) as error:
        what = error.strerror if isinstance(error, OSError) else error
        raise DataError(
            f"the arrays {place} cannot be read: {what}", where=str(path), hint=hint
        ) from error
    found = ArraySet(arrays, str(path))
    # This reads all of the arrays once. A damaged copy would otherwise train on other numbers, and
    # nobody would notice.
    if is_stored and found.digest != place.removeprefix(_STORED):
        raise DataError(
            f"the arrays {place} are damaged: their digest is {found.digest}",
            where=str(path),
            hint=f"remove the folder, and {hint}",
        )
    return found


def _check_alike(train: ArraySet, validation: ArraySet) -> None:
    kinds = [
        {name: (one.dtypes[name], array.shape[1:]) for name, array in one.arrays.items()}
        for one in (train, validation)
    ]
    if kinds[0] != kinds[1]:
        raise DataError(
            f"the arrays to evaluate on are {kinds[1]}, and those to train on {kinds[0]}",
            where="data.validation",
            hint="give both the same names, dtypes and shapes of a row",
        )
