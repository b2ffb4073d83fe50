"""Files of a folder as samples: those that share a name up to its first dot, or one file each."""

from collections.abc import Iterator
from typing import Any

from axcore.config import PositiveInt, config
from axcore.data.document import Document
from axcore.data.sources.file_source import BadRecord, Files, FileSpan, as_text, document_or_bad
from axcore.data.sources.files import NamedFile, check_is_regular, unreadable

FOLDER = "folder"
"""The field with the name of the folder that a sample is in, which may be its class."""

FILE = "file"
"""The field with the content of the file itself, whatever its suffix is."""


class SampleFiles(Files):
    """Each file of a folder that matches a glob is a record; files next to it are fields of it.

    A record has the fields `file`, its content; `folder`, the name of the folder that it is in,
    which is its class in a folder of pictures for each class; and, as text, the content of the file
    of the same name that ends in `.NAME`, for any other field NAME: `cat.txt` next to `cat.png`.
    """

    @config
    class Config(Files.Config):
        """Which files.

        Attributes:
            max_file_mib: A larger file is bad, and not read.
        """

        max_file_mib: PositiveInt = 64

    unit = "files"

    def records(self, span: FileSpan) -> Iterator[Document | BadRecord]:
        """Yield the one document of a file."""
        yield document_or_bad(span.file, 0, lambda: self._document(span.file))

    def describe(self) -> str:
        """Name the folder and the glob."""
        return f"files {self.config.folder}/{self.config.glob}"

    def read_with(self, file: NamedFile) -> tuple[NamedFile, ...]:
        """Return the files next to a file that transforms ask for."""
        own = (FILE, FOLDER)
        names = [name for name in self.wanted_fields if name not in own]
        return tuple(file.beside(f".{name}") for name in names)

    def _document(self, file: NamedFile) -> Document:
        record: dict[str, Any] = {FILE: self._content(file)}
        parts = file.name.split("/")
        record[FOLDER] = parts[-2] if len(parts) > 1 else file.path.parent.name
        for other in self.read_with(file):
            name = other.path.suffix.removeprefix(".")
            record[name] = as_text(self._content(other), other.name)
        return Document(file.name, "", fields=self.fields_of(record))

    def _content(self, file: NamedFile) -> bytes:
        """Return the content of a file.

        Raises:
            ValueError: It is not there, or too large.
        """
        try:
            check_is_regular(file)
            size = file.path.stat().st_size
            if size > self.config.max_file_mib << 20:
                raise ValueError(f"{file.name} has {size:,} bytes, more than max_file_mib")
            return file.path.read_bytes()
        except FileNotFoundError as error:
            raise ValueError(f"there is no {file.name}") from error
        except OSError as error:
            raise unreadable(file, error) from error
