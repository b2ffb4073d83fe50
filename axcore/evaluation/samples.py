"""Samples: what tasks ask about, and files of them."""

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from axcore.config import REQUIRED, Configurable, config
from axcore.config.json_files import BYTE_ORDER_MARK, parse_json
from axcore.data.sources.files import COMPRESSED_SUFFIXES, NamedFile, open_decompressed
from axcore.errors import DataError
from axcore.extras import import_extra


@attrs.frozen(kw_only=True)
class Sample:
    """A sample.

    Args:
        where: File and line, or another name that finds it again.
        fields: Its values by name.
    """

    where: str
    fields: Mapping[str, Any]

    def value(self, name: str) -> Any:
        """Return a value.

        Raises:
            DataError: The sample has none of that name.
        """
        if name not in self.fields:
            known = ", ".join(sorted(self.fields)) or "none"
            raise DataError(f"it has no {name!r}; its fields are: {known}", where=self.where)
        return self.fields[name]


@attrs.frozen(kw_only=True)
class BadSample:
    """A record that is not a sample.

    Args:
        where: File and line.
        reason: What is wrong with it.
    """

    where: str
    reason: str


class SampleSource(Configurable, ABC):
    """Where samples are, in an order that never changes."""

    @config
    class Config(Configurable.Config["SampleSource"]):
        """Describes a `SampleSource`."""

    @abstractmethod
    def samples(self) -> Iterator[Sample | BadSample]:
        """Yield the samples.

        Raises:
            DataError: They cannot be read at all.
        """


_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
_MARK = BYTE_ORDER_MARK.encode()


class SampleFile(SampleSource):
    """A sample for each line or row. Files of gzip and zstd are decompressed, but for Parquet."""

    @config
    class Config(SampleSource.Config):
        """Describes a `SampleFile`.

        Args:
            path: The file.
            columns: Names of the columns of a CSV file that does not name them itself.
        """

        path: str = REQUIRED
        columns: tuple[str, ...] = ()

    config: Config

    def samples(self) -> Iterator[Sample | BadSample]:
        """Yield the samples of the file."""
        path = Path(self.config.path).expanduser()
        if not path.is_file():
            raise DataError("there is no such file", where=str(path))
        is_named_so = path.suffix.lower() in COMPRESSED_SUFFIXES
        suffix = (path.with_suffix("") if is_named_so else path).suffix.lower()
        if suffix == ".parquet":
            yield from _parquet(path)
        elif suffix in _SUFFIXES:
            yield from self._text(path, suffix)
        else:
            raise DataError(
                f"samples cannot be read from {path.name}",
                where=str(path),
                hint=f"files may end in {', '.join(_SUFFIXES)}",
            )

    def _text(self, path: Path, suffix: str) -> Iterator[Sample | BadSample]:
        with open_decompressed(NamedFile(path.name, path)) as stream:
            data = stream.read()
        if suffix == ".csv":
            yield from _csv(path, data, self.config.columns)
        elif suffix == ".json":
            yield from _json(path, data)
        else:
            for number, line in enumerate(data.split(b"\n"), start=1):
                if line.removeprefix(_MARK).strip():
                    yield _json_sample(f"{path.name}:{number}", line)


def _json_sample(where: str, line: bytes) -> Sample | BadSample:
    try:
        value = parse_json(line)
    except ValueError as error:
        return BadSample(where=where, reason=f"it is not valid JSON: {error}")
    return _sample(where, value)


def _sample(where: str, value: Any) -> Sample | BadSample:
    if not isinstance(value, dict):
        return BadSample(where=where, reason=f"it is {value!r:.40}; expected an object")
    return Sample(where=where, fields=value)


def _json(path: Path, data: bytes) -> Iterator[Sample | BadSample]:
    try:
        values = parse_json(data)
    except ValueError as error:
        raise DataError(f"it is not valid JSON: {error}", where=str(path)) from None
    if not isinstance(values, list):
        raise DataError(
            f"it contains a {type(values).__name__}; expected a list of objects", where=str(path)
        )
    for number, value in enumerate(values):
        yield _sample(f"{path.name}[{number}]", value)


def _csv(path: Path, data: bytes, columns: tuple[str, ...]) -> Iterator[Sample | BadSample]:
    reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""))
    names = list(columns)
    for row in reader:
        where = f"{path.name}:{reader.line_num}"
        if not names:
            names = row
        elif len(row) != len(names):
            reason = f"it has {len(row)} columns; expected {len(names)}: {', '.join(names)}"
            yield BadSample(where=where, reason=reason)
        else:
            yield Sample(where=where, fields=dict(zip(names, row, strict=True)))


def _parquet(path: Path) -> Iterator[Sample | BadSample]:
    parquet = import_extra(
        "pyarrow.parquet", used_by="a Parquet file", error=DataError, where=str(path)
    )
    number = 0
    for batch in parquet.ParquetFile(path, page_checksum_verification=True).iter_batches():
        for row in batch.to_pylist():
            yield Sample(where=f"{path.name}[{number}]", fields=row)
            number += 1
