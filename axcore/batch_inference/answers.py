"""`AnswerFile`: a line for each prompt, appended as it is answered, and what answers follow from.

Next to the file, `NAME.run.json` holds what decides the answers. A killed process leaves whole
lines and a piece of one; whoever asks for the same answers cuts the piece off and resumes.
"""

import errno
import fcntl
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from axcore.config.json_files import parse_json, read_json
from axcore.errors import DataError
from axcore.whole_files import check_is_regular, write_whole

_ABSENT = "nothing"


class AnswerFile:
    """Answers on the disk, for one process at a time. A context manager.

    Args:
        path: The file; it and its folder are made where they are absent.
        origin: What decides the answers, as plain values: those that are there must follow from
            the same.
        machine: What may change the last bits of answers; a change of it is a warning.

    Attributes:
        num_lines: Complete lines that are there.

    Raises:
        DataError: The file has answers of another origin, is none of answers, is damaged before
            its last line, or another process writes to it.
    """

    def __init__(self, path: Path, origin: Mapping[str, Any], machine: Mapping[str, str]) -> None:
        self.path = path
        self.origin_path = path.with_name(f"{path.name}.run.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _check_is_file(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._lock()
            if size := os.fstat(self._descriptor).st_size:
                self._check_origin(origin, machine)
            else:
                # Before the first line: there is never a line of which nobody knows its origin.
                kept = {**origin, "machine": dict(machine)}
                write_whole(self.origin_path, json.dumps(kept, indent=1) + "\n")
            self.num_lines, end = self._count()
            # Only now: nothing is cut off a file that is not ours.
            if end < size:
                os.ftruncate(self._descriptor, end)
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def add(self, line: Mapping[str, Any]) -> None:
        """Append a line, and hand it to the operating system."""
        text = json.dumps(line, ensure_ascii=False)
        try:
            data = text.encode()
        except UnicodeEncodeError:
            # A field of the prompt has half of a surrogate pair, which only an escape can write.
            data = json.dumps(line).encode()
        data += b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]
        self.num_lines += 1

    def sync(self) -> None:
        """Make the lines durable on the disk."""
        os.fsync(self._descriptor)

    def _lock(self) -> None:
        try:
            # The kernel gives it back when this process ends, in whatever way.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataError(
                "another process writes answers to it",
                where=str(self.path),
                hint="wait for it, or name another file by --out",
            ) from error
        except OSError as error:
            # Some shared file systems have no locks; nothing is wrong with one process there.
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise

    def _check_origin(self, origin: Mapping[str, Any], machine: Mapping[str, str]) -> None:
        """Refuse a file that has answers of something else."""
        if not self.origin_path.exists():
            raise DataError(
                f"the file exists, and there is no {self.origin_path.name} that says what it is of",
                where=str(self.path),
                hint="name another file by --out",
            )
        kept = read_json(self.origin_path, "record of the answers", error=DataError)
        other_machine = list(_changes(kept.pop("machine", {}), dict(machine), ""))
        changes = list(_changes(kept, parse_json(json.dumps(origin)), ""))
        if changes:
            raise DataError(
                "the answers in it are of something else: " + "; ".join(changes),
                where=str(self.path),
                hint="give the same to resume, or name another file by --out",
            )
        if other_machine:
            warnings.warn(
                f"answers in {self.path} were sampled on another system, so that others may differ "
                f"from them by rounding: {'; '.join(other_machine)}",
                stacklevel=4,
            )

    def _count(self) -> tuple[int, int]:
        """Return the number of complete lines, and the bytes of these."""
        number = end = 0
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(0)
            for raw in file:
                if not raw.endswith(b"\n"):
                    break
                self._check_line(raw, number)
                number, end = number + 1, end + len(raw)
        return number, end

    def _check_line(self, raw: bytes, number: int) -> None:
        try:
            found = parse_json(raw)
        except ValueError:
            found = None
        if not isinstance(found, dict) or found.get("index") != number:
            raise DataError(
                f"line {number + 1} is not the answer to prompt {number}: the file is damaged, or "
                "was changed",
                where=f"{self.path}:{number + 1}",
                hint="remove this line and those after it to resume from there",
            )


def _check_is_file(path: Path) -> None:
    try:
        check_is_regular(path)
    except OSError as error:
        raise DataError(
            f"answers cannot be written to it: {error.strerror}",
            where=str(path),
            hint="name a file by --out",
        ) from error


def _changes(before: Any, after: Any, path: str) -> Iterator[str]:
    """Yield what differs between two plain values, each with its path."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            inner = f"{path}.{name}" if path else name
            yield from _changes(before.get(name, _ABSENT), after.get(name, _ABSENT), inner)
    elif before != after:
        yield f"{path} was {before!r:.60} and is {after!r:.60}"
