"""Text files as a source: one document a file."""

from collections.abc import Iterator

from axcore.config import REQUIRED, Fraction, config
from axcore.data.compression import read_text
from axcore.data.document import Document
from axcore.data.file_source import BadRecord, FileSource, FileSpan
from axcore.data.files import NamedFile, OnBad, list_files
from axcore.errors import DataError


class TextFiles(FileSource):
    """The UTF-8 files of a folder that match a glob, by name; gzip and zstd are decompressed."""

    @config
    class Config(FileSource.Config):
        """Which files.

        Attributes:
            folder: Where to look, relative to the working directory.
            glob: Which files, relative to the folder; `**` matches any depth.
            on_bad_file: Whether a file that is not UTF-8 is an error, or is skipped and counted in
                a warning.
            max_bad_fraction: The share of the files that may be skipped; None for any share.
        """

        folder: str = REQUIRED
        glob: str = "**/*.txt"
        on_bad_file: OnBad = "error"
        max_bad_fraction: Fraction | None = None

    folder_fields = ("folder",)

    def files(self) -> list[NamedFile]:
        """Returns the files of the folder, by name."""
        return list_files(self.config.folder, self.config.glob)

    def records(self, span: FileSpan) -> Iterator[Document | BadRecord]:
        """Yields the document of a file."""
        yield read_file(span.file)

    @property
    def max_bad_fraction(self) -> float:
        """The share of the files that may be skipped."""
        return bad_fraction(self.config.on_bad_file, self.config.max_bad_fraction)

    def describe(self) -> str:
        """Names the folder and the glob."""
        return f"text files {self.config.folder}/{self.config.glob}"


def read_file(file: NamedFile) -> Document | BadRecord:
    """Returns the document that a file is, or why it is none."""
    try:
        return Document(file.name, read_text(file))
    except DataError as error:
        return BadRecord(file.name, 0, error)


def bad_fraction(on_bad: OnBad, most: float | None) -> float:
    """Returns the share of records that may be bad, from how a config says it."""
    return 0.0 if on_bad == "error" else 1.0 if most is None else most
