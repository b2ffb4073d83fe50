"""Conversations as a source: a line of JSON each."""

import glob
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from axcore.config import REQUIRED, Fraction, PositiveInt, config
from axcore.data.document import Document
from axcore.data.file_source import BadRecord, FileSource, FileSpan
from axcore.data.files import NamedFile, OnBad
from axcore.data.json_lines import JsonLines
from axcore.data.remote import is_remote
from axcore.data.transforms import ChatMessages, Transform


class ChatFiles(FileSource):
    """The conversations of a file of JSON lines, or of all such files of a folder.

    It is `JsonLines` with a transform that makes documents of what lines hold.
    """

    @config
    class Config(FileSource.Config):
        """Which conversations, and what is made of them.

        Attributes:
            path: A file, or a folder whose `.jsonl` files are read.
            reads: What makes a document of a line: `ChatMessages` of a conversation, `ChatPairs` of
                one with two ends, `RatedChats` of one that was judged.
            on_bad_line: Whether a line that is no conversation, or that the chat template refuses,
                is an error, or is left out and named.
            max_bad_fraction: The share of the lines that may be left out; None for any share.
            max_line_mib: A line of more is bad; no more of it is held in memory.
        """

        path: str = REQUIRED
        reads: Transform.Config = ChatMessages.Config()
        on_bad_line: OnBad = "error"
        max_bad_fraction: Fraction | None = None
        max_line_mib: PositiveInt = 64

    folder_fields = ("path",)
    unit = "lines"

    @cached_property
    def transforms(self) -> tuple[Transform, ...]:
        """What makes documents of conversations, and then what changes those."""
        return self._lines.transforms

    def files(self) -> list[NamedFile]:
        """Returns the file, or those of the folder by name."""
        return self._lines.files()

    def spans(self, file: NamedFile, size: int, target: int) -> Iterator[FileSpan]:
        """Yields runs of lines; a compressed file is one."""
        return self._lines.spans(file, size, target)

    def records(self, span: FileSpan) -> Iterator[Document | BadRecord]:
        """Yields a document for each line, of which `transforms` make the conversation."""
        return self._lines.records(span)

    @property
    def max_bad_fraction(self) -> float:
        """The share of the lines that may be left out."""
        return self._lines.max_bad_fraction

    def describe(self) -> str:
        """Names the path."""
        return f"conversations of {self.config.path}"

    @cached_property
    def _lines(self) -> JsonLines:
        cfg = self.config
        folder, pattern = _folder_and_glob(cfg.path)
        lines: JsonLines = JsonLines.Config(
            folder=folder,
            glob=pattern,
            on_bad_line=cfg.on_bad_line,
            max_bad_fraction=cfg.max_bad_fraction,
            max_line_mib=cfg.max_line_mib,
            transforms=(cfg.reads, *cfg.transforms),
        ).build()
        return lines


def _folder_and_glob(path: str) -> tuple[str, str]:
    """Returns a folder and what to read there, of a path that may be a file."""
    if is_remote(path):
        folder, _, name = path.rpartition("/")
        return (folder, name) if "." in name else (path, "**/*.jsonl")
    local = Path(path).expanduser()
    if local.is_dir():
        return path, "**/*.jsonl"
    return str(local.parent), glob.escape(local.name)
