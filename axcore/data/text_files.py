"""Text files as a source: one document a file."""

from collections.abc import Iterator

from axcore.config import REQUIRED, config
from axcore.data.document import Document, Source
from axcore.data.files import OnBad, list_files, read_documents


class TextFiles(Source):
    """The UTF-8 files of a folder that match a glob, by name."""

    @config
    class Config(Source.Config):
        """Which files.

        Attributes:
            folder: Where to look, relative to the working directory.
            glob: Which files, relative to the folder; `**` matches any depth.
            on_bad_file: Whether a file that is not UTF-8 is an error, or is skipped and counted in
                a warning.
        """

        folder: str = REQUIRED
        glob: str = "**/*.txt"
        on_bad_file: OnBad = "error"

    folder_fields = ("folder",)

    def documents(self) -> Iterator[Document]:
        """Yields a document for each file."""
        files = list_files(self.config.folder, self.config.glob)
        return read_documents(files, self.config.on_bad_file)

    def describe(self) -> str:
        """Names the folder and the glob."""
        return f"text files {self.config.folder}/{self.config.glob}"
