"""Datasets of Hugging Face as a source: saved in a folder, or by name."""

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from axcore.config import Fraction, config
from axcore.config.json_files import read_json_file
from axcore.data.arrow_files import arrow_records
from axcore.data.document import Document
from axcore.data.file_source import BadRecord, FileSource, FileSpan
from axcore.data.files import NamedFile, OnBad
from axcore.data.text_files import bad_fraction
from axcore.errors import ConfigError, DataError
from axcore.extras import import_extra

_REFUSED = "5.0."


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
            split: Which split; whole ones only. A folder may be a single one.
            field: The column that holds the text.
            on_bad_row: Whether a row without text is an error, or is skipped and counted in a
                warning.
            max_bad_fraction: The share of the rows that may be skipped; None for any share.
        """

        folder: str | None = None
        dataset: str | None = None
        subset: str | None = None
        revision: str | None = None
        split: str = "train"
        field: str = "text"
        on_bad_row: OnBad = "error"
        max_bad_fraction: Fraction | None = None

    folder_fields = ("folder",)
    unit = "rows"

    def files(self) -> list[NamedFile]:
        """Returns the Arrow files of the split, in the order of its rows."""
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
        """Yields a document for each row."""
        yield from arrow_records(self, span.file, self.config.field)

    @property
    def max_bad_fraction(self) -> float:
        """The share of the rows that may be skipped."""
        return bad_fraction(self.config.on_bad_row, self.config.max_bad_fraction)

    def describe(self) -> str:
        """Names the dataset, the split and the column."""
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
            "The dataset's rows were selected or shuffled, and its files hold them as they were.",
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
            hint="name a whole split; data.validation_fraction holds a part out",
        )
    datasets = import_extra(
        "datasets",
        used_by="a data set that is no folder",
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
            raise ValueError("it is no object")
    except (OSError, ValueError) as error:
        raise _no_dataset(path.parent, error) from error
    return found


def _no_dataset(folder: Path, error: Exception) -> DataError:
    return DataError(
        f"{str(folder)!r} holds no dataset that can be read: {error}.",
        where=str(folder),
        hint="Set the source's folder to what dataset.save_to_disk(FOLDER) wrote.",
    )
