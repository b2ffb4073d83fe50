"""Files of a folder, in an order that every machine agrees on."""

import errno
import warnings
from collections import Counter
from pathlib import Path
from typing import Literal

import attrs

from axcore.config.json_files import check_is_fetched
from axcore.data.local_paths import path_of_copy
from axcore.data.remote import RemoteFile, current_version, find_remote, is_remote
from axcore.errors import DataError

OnBad = Literal["error", "skip"]


@attrs.frozen
class NamedFile:
    """A file and its name relative to the folder it was found in, with `/` between the parts.

    Attributes:
        name: That name.
        path: Where it lies on this machine; for a remote file, where its copy does while it is
            read.
        remote: Where it comes from, if not from this machine.
    """

    name: str
    path: Path
    remote: RemoteFile | None = None

    @property
    def where(self) -> str:
        """What errors call its place."""
        return str(self.path) if self.remote is None else self.remote.url

    def state(self) -> tuple[int, int | str]:
        """Returns size and time, or size and version; zeros where it is not there to be read."""
        if self.remote is not None:
            return self.remote.size, self.remote.version
        try:
            state = self.path.stat()
        except OSError:
            return 0, 0
        return state.st_size, state.st_mtime_ns

    def beside(self, suffix: str) -> "NamedFile":
        """Returns the file of the same name with another suffix, in the same folder.

        Raises:
            DataError: It is remote and not there.
        """
        name = str(Path(self.name).with_suffix(suffix))
        if self.remote is None:
            return NamedFile(name, self.path.with_suffix(suffix))
        url = self.remote.url.removesuffix(self.path.suffix) + suffix
        try:
            return NamedFile(name, path_of_copy(url), current_version(url))
        except FileNotFoundError as error:
            raise DataError(f"{url} is not there, and belongs to {self.where}.") from error


def list_files(folder: str, pattern: str) -> list[NamedFile]:
    """Returns the files of `folder` that match `pattern`, sorted by name.

    Args:
        folder: A folder, or a URL such as `s3://bucket/corpus`; `~` and paths relative to the
            working directory are understood.
        pattern: A glob relative to the folder, such as `**/*.txt`.

    Raises:
        DataError: The folder is missing or is a file, nothing in it matches, or its server stays
            away.
    """
    if is_remote(folder):
        return _list_remote(folder, pattern)
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


def _list_remote(folder: str, pattern: str) -> list[NamedFile]:
    found = find_remote(folder, pattern)
    if not found:
        raise DataError(
            f"No file matches {pattern!r} in {folder!r}.",
            where=folder,
            hint="Set the source's folder and glob; without a *, a glob is the name of one file, "
            "also where a server lists none.",
        )
    return [
        NamedFile(name, path_of_copy(one.url), one)
        for name, one in sorted(found.items(), key=lambda item: item[0])
    ]


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


def check_is_regular(file: NamedFile) -> None:
    """Refuses what reading might never come back from, and what is not the file itself.

    Raises:
        DataError: The file is a FIFO, a socket or a device, or a link to one; or it is a pointer
            that Git LFS left in its place.
        OSError: There is no such file.
    """
    try:
        check_is_fetched(file.path, error=DataError)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise DataError(
            f"{file.name} {str(error.strerror).removeprefix('it ')}.",
            where=file.where,
            hint="Take it out of the folder, or set the source's glob to leave it out.",
        ) from error


def unreadable(file: NamedFile, error: OSError) -> DataError:
    """Returns the error for a file that the operating system does not let us read."""
    return DataError(
        f"{file.name} cannot be read: {error.strerror}.",
        where=file.where,
        hint="Make the file readable, or take it out of the folder.",
    )


def explain_decoding(error: UnicodeDecodeError, offset: int = 0) -> str:
    """Says which byte is not UTF-8; `offset` is where the decoded bytes begin in their file."""
    byte = error.object[error.start]
    return f"byte 0x{byte:02x} at offset {offset + error.start} ({error.reason})"


def warn_skipped(num_skipped: int, of_what: str, first: DataError) -> None:
    """Warns how many records a source left out, and why the first of them."""
    warnings.warn(f"{num_skipped} {of_what} left out. The first: {first.what}", stacklevel=2)
