"""Files of a folder, in an order that every machine agrees on, read as strict UTF-8."""

import stat
import warnings
from collections import Counter
from pathlib import Path
from typing import Literal

import attrs

from axcore.errors import DataError

OnBad = Literal["error", "skip"]

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFDIR: "a folder",
}


@attrs.frozen
class NamedFile:
    """A file and its name relative to the folder it was found in, with `/` between the parts."""

    name: str
    path: Path


def list_files(folder: str, pattern: str) -> list[NamedFile]:
    """Returns the files of `folder` that match `pattern`, sorted by name.

    Args:
        folder: A folder; `~` and paths relative to the working directory are understood.
        pattern: A glob relative to the folder, such as `**/*.txt`.

    Raises:
        DataError: The folder is missing or is a file, or nothing in it matches.
    """
    root = Path(folder).expanduser().absolute()
    if not root.exists():
        raise DataError(
            f"The data folder {folder!r} does not exist; looked for {root}.",
            hint="Create it, or set the source's folder to one that exists.",
        )
    if not root.is_dir():
        raise DataError(
            f"The data folder {folder!r} is a file, not a folder.",
            where=str(root),
            hint=f"folder={str(root.parent)!r}, glob={root.name!r}",
        )
    found = [NamedFile(path.relative_to(root).as_posix(), path) for path in _glob(root, pattern)]
    if not found:
        raise DataError(
            f"No file matches {pattern!r} in the data folder {folder!r}; {_contents(root)}.",
            where=str(root),
            hint="Put files there, or set the source's glob to match the files there.",
        )
    return sorted(found, key=lambda file: file.name)


def _glob(root: Path, pattern: str) -> list[Path]:
    try:
        # Dangling links stay in: reading one is an error, leaving it out would be silent.
        return [path for path in root.glob(pattern) if not path.is_dir()]
    except (ValueError, NotImplementedError) as error:
        raise DataError(
            f"The glob {pattern!r} cannot be used: {error}.",
            hint="Write it relative to the folder, for example '**/*.txt'.",
        ) from error


def _contents(root: Path) -> str:
    kinds = Counter(path.suffix or path.name for path in root.rglob("*") if path.is_file())
    if not kinds:
        return "it holds no files"
    shown = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(5))
    return f"the files it holds: {shown}"


def read_text(file: NamedFile) -> str:
    """Returns the text of a file, its line ends as they are.

    Raises:
        DataError: The file cannot be read or is not UTF-8; the message says at which byte.
    """
    try:
        check_is_regular(file)
        raw = file.path.read_bytes()
    except OSError as error:
        raise unreadable(file, error) from error
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file.name} is not UTF-8: {explain_decoding(error)}.",
            where=f"{file.path}, byte {error.start}",
            hint="Convert the file to UTF-8 (iconv -f FROM -t utf-8), or set on_bad_file='skip'.",
        ) from error


def check_is_regular(file: NamedFile) -> None:
    """Refuses what reading might never come back from.

    Raises:
        DataError: The file is a FIFO, a socket or a device, or a link to one.
        OSError: There is no such file.
    """
    mode = file.path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise DataError(
            f"{file.name} is {_KINDS.get(stat.S_IFMT(mode), 'a special file')}, "
            "not a regular file.",
            where=str(file.path),
            hint="Take it out of the folder, or set the source's glob to leave it out.",
        )


def unreadable(file: NamedFile, error: OSError) -> DataError:
    """Returns the error for a file that the operating system does not let us read."""
    return DataError(
        f"{file.name} cannot be read: {error.strerror}.",
        where=str(file.path),
        hint="Make the file readable, or take it out of the folder.",
    )


def explain_decoding(error: UnicodeDecodeError, offset: int = 0) -> str:
    """Says which byte is not UTF-8; `offset` is where the decoded bytes begin in their file."""
    byte = error.object[error.start]
    return f"byte 0x{byte:02x} at offset {offset + error.start} ({error.reason})"


def warn_skipped(num_skipped: int, of_what: str, first: DataError) -> None:
    """Warns how many records a source left out, and why the first of them."""
    warnings.warn(f"{num_skipped} {of_what} left out. The first: {first.what}", stacklevel=2)
