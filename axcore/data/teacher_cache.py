"""`TaughtData`: packed rows with a teacher's likeliest tokens at each place, from files.

Letters: B rows, T tokens of a row, K tokens of the teacher's.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import attrs
import numpy as np

from axcore.config import REQUIRED, PositiveInt, config
from axcore.config.json_files import parse_json, read_json
from axcore.data.data import Data
from axcore.data.packing.batches import Rows
from axcore.data.packing.packing import PADDING_ROW, Batch
from axcore.errors import ConfigError, DataError
from axcore.module import ArraySpec, BatchSpec

TEACHER_TOKENS, TEACHER_LOG_PROBS = "teacher_tokens", "teacher_log_probs"
"""The arrays `[batch, time, K]` of a batch: the teacher's likeliest next tokens and their
log-probabilities, the likeliest first."""

TEACHER_ARRAYS = {TEACHER_TOKENS: "int32", TEACHER_LOG_PROBS: "float32"}
SPLITS: tuple[Literal["train", "validation"], ...] = ("train", "validation")
MANIFEST = "teacher_cache.json"


class TaughtData(Data):
    """Batches of packed documents, with what a teacher gives each next token.

    The folder is written by `axcore.runs.write_teacher_cache` for the same rows.
    """

    @config
    class Config(Data.Config):
        """What to read and how to batch it.

        Attributes:
            teacher_cache: The folder with the teacher's tokens.
            top_k: How many of them it has at each place.
        """

        teacher_cache: str = REQUIRED
        top_k: PositiveInt = REQUIRED

    folder_fields = ("teacher_cache",)

    def batch_spec(self) -> BatchSpec:
        """Return the arrays of a batch, the teacher's among them."""
        spec, cfg = super().batch_spec(), self.config
        values = {TEACHER_TOKENS: self.tokenizer.vocab_size}
        more = {
            name: ArraySpec(
                shape=(cfg.batch_size, cfg.seq_len, cfg.top_k),
                axes=("batch", "time", None),
                dtype=dtype,
                num_values=values.get(name),
            )
            for name, dtype in TEACHER_ARRAYS.items()
        }
        return attrs.evolve(spec, arrays={**spec.arrays, **more})

    def rows(self, split: Literal["train", "validation"]) -> Rows:
        """Return the rows of a split with the teacher's tokens.

        Raises:
            DataError: The folder is of other rows.
        """
        rows = super().rows(split)
        check_cacheable(self.config)
        wanted = rows_identity(self)
        if changed := [name for name in wanted if self._manifest["rows"].get(name) != wanted[name]]:
            shown = ", ".join(
                f"{name} was {self._manifest['rows'].get(name)!r}, is {wanted[name]!r}"
                for name in changed
            )
            raise DataError(
                f"The teacher's cache belongs to other rows: {shown}.",
                where=self.config.teacher_cache,
                hint="Use the data settings that it was written with, or write it again.",
            )
        return _TaughtRows(
            rows, tuple(self._array(split, name, len(rows)) for name in TEACHER_ARRAYS)
        )

    def _array(self, split: str, name: str, num_rows: int) -> Any:
        path = array_path(Path(self.config.teacher_cache).expanduser(), split, name)
        shape = (num_rows, self.config.seq_len, self.config.top_k)
        try:
            array = np.load(path, mmap_mode="r")
        except (OSError, ValueError) as error:
            raise DataError(f"The file cannot be read: {error}.", where=str(path)) from error
        if array.shape != shape or array.dtype != TEACHER_ARRAYS[name]:
            raise DataError(
                f"The file has {array.dtype}{list(array.shape)}; expected "
                f"{TEACHER_ARRAYS[name]}{list(shape)}.",
                where=str(path),
                hint="Write the cache again.",
            )
        return array

    @cached_property
    def _manifest(self) -> dict[str, Any]:
        return read_manifest(self.config.teacher_cache)

    @cached_property
    def _identity(self) -> dict[str, Any]:
        return {**super()._identity, "teacher": self._manifest["digest"]}


@attrs.frozen(eq=False)
class _TaughtRows:
    """Rows, with arrays `[rows, T, K]` of a teacher."""

    rows: Rows
    arrays: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return the rows of those numbers; what a row of padding has of the teacher is 0."""
        made = self.rows.batch(rows)
        places = np.array(rows)
        for name, array in zip(TEACHER_ARRAYS, self.arrays, strict=True):
            taught = np.asarray(array[np.maximum(places, 0)])
            taught[places == PADDING_ROW] = 0
            made[name] = taught
        return made


def read_manifest(folder: str) -> dict[str, Any]:
    """Return what a teacher's cache is of.

    Raises:
        DataError: The folder is not one.
    """
    path = Path(folder).expanduser() / MANIFEST
    if not path.is_file():
        raise DataError(
            f"The folder has no {MANIFEST}.",
            where=folder,
            hint="Write it: axcore data teach EXPERIMENT FOLDER --teacher RUN",
        )
    found: dict[str, Any] = read_json(path, MANIFEST, error=DataError)
    return found


def array_path(folder: Path, split: str, name: str) -> Path:
    """Return the file of a split's array."""
    return folder / f"{split}_{name}.npy"


def check_cacheable(cfg: Data.Config) -> None:
    """Check that rows are the same in each epoch.

    Raises:
        ConfigError: They are packed again.
    """
    if cfg.repacks_each_epoch:
        raise ConfigError(
            "data.repacks_each_epoch is set, and a teacher's cache is of rows that stay",
            where="data.repacks_each_epoch",
            hint="--set data.repacks_each_epoch=false",
        )


def rows_identity(data: Data) -> dict[str, Any]:
    """Return everything that the rows of both splits depend on, JSON-able."""
    others = ("batch_size", "teacher")
    found = {name: one for name, one in data.rows_identity.items() if name not in others}
    # As a file has it, so that both compare.
    plain: dict[str, Any] = parse_json(json.dumps(found))
    return plain
