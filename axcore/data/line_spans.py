"""Cutting a file at ends of lines, so that its pieces can be read side by side."""

from collections.abc import Iterator
from typing import IO

from axcore.data.compression import is_compressed
from axcore.data.file_source import FileSpan
from axcore.data.files import NamedFile

_CHUNK = 1 << 22


def line_spans(file: NamedFile, size: int, target: int) -> Iterator[FileSpan]:
    """Yields runs of lines of about `target` bytes; a larger file is read once, to count lines.

    A compressed file is one run: it can only be read from its beginning.
    """
    if size < 2 * target or is_compressed(file):
        yield FileSpan(file)
        return
    begin = num_lines = 0
    with file.path.open("rb") as stream:
        while begin + 2 * target <= size:
            end, lines = _skip_lines(stream, target)
            if end >= size:
                break
            yield FileSpan(file, begin, end, num_lines)
            begin, num_lines = end, num_lines + lines
    yield FileSpan(file, begin, None, num_lines)


def _skip_lines(stream: IO[bytes], target: int) -> tuple[int, int]:
    """Skips about `target` bytes, to the end of a line; returns the place, and the lines."""
    lines, chunk = 0, b""
    while target > 0 and (chunk := stream.read(min(target, _CHUNK))):
        lines += chunk.count(b"\n")
        target -= len(chunk)
    if not chunk.endswith(b"\n"):
        while (rest := stream.readline(_CHUNK)) and not rest.endswith(b"\n"):
            pass
        lines += 1
    return stream.tell(), lines
