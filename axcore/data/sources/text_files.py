"""Text files as a source, one document a file; Python's own library is such text."""

import os
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from axcore.config import config
from axcore.data.document import Document
from axcore.data.sources.file_source import BadRecord, Files, FileSource, FileSpan
from axcore.data.sources.files import NamedFile, read_text
from axcore.errors import DataError

# Other distributions' files, generated files, and tests: distributions of Python leave tests out
# or not as they please, and the badly encoded files are among them.
_LEFT_OUT_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
)
_LEFT_OUT_PREFIX = "_sysconfigdata"


class TextFiles(Files):
    """The UTF-8 files of a folder that match a glob, by name; gzip and zstd are decompressed."""

    @config
    class Config(Files.Config):
        """Which files.

        Attributes:
            glob: Which files, relative to the folder; `**` matches any depth.
        """

        glob: str = "**/*.txt"

    kind = "text files"

    def records(self, span: FileSpan) -> Iterator[Document | BadRecord]:
        """Yield the document of a file."""
        yield _read_file(span.file)


def _read_file(file: NamedFile) -> Document | BadRecord:
    """Return the document that a file is, or the bad record."""
    try:
        return Document(file.name, read_text(file))
    except DataError as error:
        return BadRecord(file.name, 0, error)


class StandardLibrary(FileSource):
    """The `.py` files of the standard library, without its tests: about 12 MB, 800 documents.

    A document's name is its path within the library, so the split is the same on every machine
    that has the same library.
    """

    def files(self) -> list[NamedFile]:
        """Return the library's own files, by name."""
        return library_files(sysconfig.get_path("stdlib"))

    def records(self, span: FileSpan) -> Iterator[Document | BadRecord]:
        """Yield the document of a file."""
        yield _read_file(span.file)

    @property
    def max_bad_fraction(self) -> float:
        """Any share: a file that is not UTF-8 is skipped with a warning."""
        return 1.0

    def describe(self) -> str:
        """Name the version of Python."""
        return f"the standard library of Python {platform.python_version()}"


def library_files(folder: str) -> list[NamedFile]:
    """Return the library's own `.py` files below `folder`, sorted by name.

    Raises:
        DataError: There are none, as in an interpreter that keeps its library in an archive.
    """
    root = Path(folder)
    found = [
        NamedFile((Path(parent) / name).relative_to(root).as_posix(), Path(parent) / name)
        for parent, names in _walk(root)
        for name in names
        if name.endswith(".py") and not name.startswith(_LEFT_OUT_PREFIX)
    ]
    if not found:
        raise DataError(
            f"This interpreter's standard library is not there as .py files; looked in {folder}.",
            hint="Use another source, for example TextFiles with a folder of text.",
        )
    return sorted(found, key=lambda file: file.name)


def _walk(root: Path) -> Iterator[tuple[str, list[str]]]:
    for parent, folders, names in os.walk(root):
        folders[:] = [folder for folder in folders if folder not in _LEFT_OUT_FOLDERS]
        yield parent, names
