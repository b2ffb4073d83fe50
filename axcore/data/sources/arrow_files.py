"""Parquet and Arrow files as sources: one document a row, its text in one column.

A data set of Hugging Face is such files, in a folder or in the cache of `datasets`.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import Any

from axcore.config import Fraction, config
from axcore.config.json_files import read_json_file
from axcore.data.document import Document
from axcore.data.sources.file_source import BadRecord, Files, FileSource, FileSpan, bad_fraction
from axcore.data.sources.files import NamedFile, OnBad, check_is_regular, unreadable
from axcore.errors import ConfigError, DataError
from axcore.extras import import_extra

_ROWS_A_BATCH = 1024


_REFUSED = "5.0."


class ArrowFiles(Files):
    """The rows of the Parquet or Arrow files of a folder that match a glob.

    Files that end in `.arrow`, as `datasets` of Hugging Face saves, are Arrow's streams or files;
    others are Parquet. A document's name is `file:row`, from 0.
    """

    @config
    class Config(Files.Config):
        """Which files, and which column.

        Attributes:
            glob: Which files, relative to the folder; `**` matches any depth.
            field: The column that contains the text.
        """

        glob: str = "**/*.parquet"
        field: str = "text"

    unit = "rows"

    def records(self, span: FileSpan) -> Iterator[Document | BadRecord]:
        """Yield a document for each row."""
        yield from _arrow_records(self, span.file, self.config.field)

    def describe(self) -> str:
        """Name the folder, the glob and the column."""
        return f"rows of {self.config.folder}/{self.config.glob}, column {self.config.field!r}"


def _arrow_records(
    source: FileSource, file: NamedFile, field: str
) -> Iterator[Document | BadRecord]:
    """Yield a document for each row of a file, the text in a column."""
    names = tuple(dict.fromkeys([*([field] if source.needs_text else []), *source.wanted_fields]))
    row = 0
    for batch in _batches(file, names, source.optional_fields):
        found = batch.schema.names
        for values in zip(*map(batch.column, found), strict=True):
            yield _record(source, file, row, dict(zip(found, values, strict=True)), field)
            row += 1


def _batches(file: NamedFile, names: Sequence[str], optional: Sequence[str]) -> Iterator[Any]:
    """Yield columns of a file, some rows at a time; the optional ones as far as there are any."""
    arrow = _library("pyarrow", file)
    try:
        check_is_regular(file)
        with ExitStack() as stack:
            schema, batches = (_arrow if file.path.suffix == ".arrow" else _parquet)(file, stack)
            for name in names:
                _check_column(file, name, schema)
            there = [name for name in optional if name in schema.names and name not in names]
            for batch in batches([*names, *there]):
                batch.validate(full=True)  # reading a damaged one could end the process
                yield batch
    except (OSError, arrow.ArrowException) as error:
        if isinstance(error, OSError) and error.strerror:
            raise unreadable(file, error) from error
        raise DataError(
            f"{file.name} cannot be read by Arrow: {error}",
            where=file.where,
            hint="Copy the file again, or set the source's glob to leave it out.",
        ) from error


def _library(module: str, file: NamedFile) -> Any:
    used_by = f"a {file.path.suffix} file"
    return import_extra(module, used_by=used_by, error=DataError, where=file.where)


def _parquet(file: NamedFile, stack: ExitStack) -> tuple[Any, Any]:
    library = _library("pyarrow.parquet", file)
    opened = stack.enter_context(library.ParquetFile(file.path, page_checksum_verification=True))
    return opened.schema_arrow, lambda names: opened.iter_batches(_ROWS_A_BATCH, columns=names)


def _arrow(file: NamedFile, stack: ExitStack) -> tuple[Any, Any]:
    arrow = _library("pyarrow", file)
    raw = stack.enter_context(arrow.OSFile(str(file.path)))
    try:
        opened = stack.enter_context(arrow.ipc.open_file(raw))
        batches = map(opened.get_batch, range(opened.num_record_batches))
    except arrow.ArrowInvalid:  # the other of the two formats
        raw.seek(0)
        opened = stack.enter_context(arrow.ipc.open_stream(raw))
        batches = iter(opened)
    return opened.schema, lambda names: (batch.select(names) for batch in batches)


def _check_column(file: NamedFile, field: str, schema: Any) -> None:
    if schema.names.count(field) != 1:
        raise DataError(
            f"{file.name} has no column {field!r}, or several; it has "
            f"{', '.join(map(repr, schema.names)) or 'none'}.",
            where=file.where,
            hint="Set the source's field to the column that contains the text.",
        )


def _record(
    source: FileSource, file: NamedFile, row: int, scalars: dict[str, Any], field: str
) -> Document | BadRecord:
    try:
        values = {name: scalar.as_py() for name, scalar in scalars.items()}
    except UnicodeDecodeError as error:
        return _bad(file, row, f"is not UTF-8: {error.reason}")
    text = values[field] if source.needs_text else ""
    if not isinstance(text, str):
        return _bad(file, row, f"contains {text!r:.40}, not a string")
    return Document(f"{file.name}:{row}", text, None, row, source.fields_of(values))


def _bad(file: NamedFile, row: int, reason: str) -> BadRecord:
    error = DataError(
        f"{file.name}, row {row} {reason}.",
        where=f"{file.where}:{row}",
        hint="Correct or remove the row, or set on_bad='skip'.",
    )
    return BadRecord(file.name, row, error)


class HuggingFaceDataset(FileSource):
    """The rows of a split: of a folder that `save_to_disk` wrote, or of what `load_dataset` loads.

    A folder needs `axcore[arrow]`; a name needs `axcore[datasets]` too, and is downloaded and
    converted by that library into its own cache. A document's name is `file:row`, from 0.
    """

    @config
    class Config(FileSource.Config):
        """Which dataset, and which column.

        Attributes:
            folder: What `save_to_disk` wrote, relative to the working directory; or None.
            dataset: What `load_dataset` is asked for, where there is no folder.
            subset: Its configuration, where it has several.
            revision: Its commit or tag; without one, what is there when it is first loaded.
            split: Which split; full ones only. A folder may be a single one.
            field: The column that contains the text.
            on_bad: Whether a row without text is an error, or is skipped and counted in a
                warning.
            max_bad_fraction: The share of the rows that may be skipped; None for any share.
        """

        folder: str | None = None
        dataset: str | None = None
        subset: str | None = None
        revision: str | None = None
        split: str = "train"
        field: str = "text"
        on_bad: OnBad = "error"
        max_bad_fraction: Fraction | None = None

    folder_fields = ("folder",)
    unit = "rows"

    def files(self) -> list[NamedFile]:
        """Return the Arrow files of the split, in the order of its rows."""
        cfg = self.config
        if (cfg.folder is None) == (cfg.dataset is None):
            raise ConfigError(
                f"folder is {cfg.folder!r} and dataset {cfg.dataset!r}; expected one of them",
                where="data.source",
                hint="set folder to what save_to_disk wrote, or dataset to a name",
            )
        if cfg.folder is not None:
            return _saved_files(Path(cfg.folder).expanduser().absolute(), cfg.split)
        return _loaded_files(cfg)

    def records(self, span: FileSpan) -> Iterator[Document | BadRecord]:
        """Yield a document for each row."""
        yield from _arrow_records(self, span.file, self.config.field)

    @property
    def max_bad_fraction(self) -> float:
        """The share of the rows that may be skipped."""
        return bad_fraction(self.config.on_bad, self.config.max_bad_fraction)

    def describe(self) -> str:
        """Name the dataset, the split and the column."""
        cfg = self.config
        return f"dataset {cfg.folder or cfg.dataset}, split {cfg.split}, column {cfg.field!r}"


def _saved_files(root: Path, split: str) -> list[NamedFile]:
    folder = root
    if (root / "dataset_dict.json").exists():
        splits = _read(root / "dataset_dict.json").get("splits", [])
        if split not in splits:
            raise DataError(
                f"The dataset has no split {split!r}; it has {', '.join(map(repr, splits))}.",
                where=str(root),
                hint="Set the source's split.",
            )
        folder = root / split
    state = _read(folder / "state.json")
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise DataError(
            "The dataset's rows were selected or shuffled, and its files have them as they were.",
            where=str(folder),
            hint="Save it again: dataset.flatten_indices().save_to_disk(FOLDER).",
        )
    try:
        names = [str(one["filename"]) for one in state["_data_files"]]
    except (KeyError, TypeError) as error:
        raise _no_dataset(folder, error) from error
    return [NamedFile(name, folder / name) for name in names]


def _loaded_files(cfg: HuggingFaceDataset.Config) -> list[NamedFile]:
    if not cfg.split.replace("_", "").replace("-", "").replace(".", "").isalnum():
        raise ConfigError(
            f"split is {cfg.split!r}, which is a part of one or several",
            where="data.source.split",
            hint="name a full split; data.validation_fraction holds a part out",
        )
    datasets = import_extra(
        "datasets",
        used_by="a data set that is not a folder",
        error=DataError,
        where="data.source.dataset",
    )
    version = metadata.version("datasets")
    if version.startswith(_REFUSED):
        raise DataError(
            f"datasets is {version}: that release begins again from the start when a run is "
            "resumed for the second time, so axcore does not read by it.",
            hint='pip install "datasets>=4,!=5.0.*"',
        )
    try:
        loaded: Any = datasets.load_dataset(
            cfg.dataset, cfg.subset, split=cfg.split, revision=cfg.revision, keep_in_memory=False
        )
        names = [str(one["filename"]) for one in loaded.cache_files]
    except Exception as error:  # the library and those below it raise what they please
        raise DataError(
            f"The dataset {cfg.dataset!r} cannot be loaded: {error}.",
            where=cfg.dataset,
            hint="Look at it with datasets.load_dataset; or save it where there is a network, and "
            "set the source's folder.",
        ) from error
    return [NamedFile(Path(name).name, Path(name)) for name in names]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = read_json_file(path)
        if not isinstance(found, dict):
            raise ValueError("it is not an object")
    except (OSError, ValueError) as error:
        raise _no_dataset(path.parent, error) from error
    return found


def _no_dataset(folder: Path, error: Exception) -> DataError:
    return DataError(
        f"{str(folder)!r} contains no dataset that can be read: {error}.",
        where=str(folder),
        hint="Set the source's folder to what dataset.save_to_disk(FOLDER) wrote.",
    )
