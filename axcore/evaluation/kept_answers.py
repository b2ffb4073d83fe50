"""`KeptAnswers`: the file of a task's samples and replies, which a killed evaluation takes up."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import attrs

from axcore.config.json_files import parse_json
from axcore.errors import DataError
from axcore.evaluation.questions import Question
from axcore.whole_files import read_regular

RESTART = "give another --output, or --restart to ask everything again"


class KeptAnswers:
    """A line of JSON for each sample, in their order.

    Args:
        path: The file; made with the first line. A last line that was cut short is dropped.

    Raises:
        DataError: A line is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lines: dict[int, dict[str, Any]] = {}
        whole = self._read() if path.exists() else b""
        self._file: IO[bytes] | None = None
        if path.exists():
            os.truncate(path, len(whole))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def find(self, index: int, asked: str) -> Mapping[str, Any] | None:
        """Returns the line of a sample, if it was answered.

        Args:
            index: Of the sample.
            asked: The digest of what is asked of it now.

        Raises:
            DataError: Something else was asked of it then.
        """
        line = self.lines.get(index)
        if line is not None and line.get("asked") != asked:
            raise DataError(
                f"sample {index} is another than the one that was answered",
                where=str(self._path),
                hint=RESTART,
            )
        return line

    def add(self, line: Mapping[str, Any]) -> None:
        """Appends the line of a sample and hands it to the operating system."""
        if self._file is None:
            self._file = self._path.open("ab")
        self._file.write(json.dumps(line, ensure_ascii=False).encode("utf-8") + b"\n")
        self._file.flush()

    def _read(self) -> bytes:
        data = read_regular(self._path)
        whole = data[: data.rfind(b"\n") + 1]
        for number, text in enumerate(whole.splitlines(), start=1):
            try:
                line = parse_json(text)
                self.lines[int(line["index"])] = line
            except (ValueError, KeyError, TypeError):
                raise DataError(
                    "the line is no kept sample", where=f"{self._path}:{number}", hint=RESTART
                ) from None
        return whole


def digest_of(questions: Sequence[Question]) -> str:
    """Returns what distinguishes questions from others."""
    asked = [{"kind": type(one).__name__, **attrs.asdict(one)} for one in questions]
    text = json.dumps(asked, sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
