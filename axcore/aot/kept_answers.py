"""Answers of compiling that are kept in a folder, so that a search does not compile twice."""

import hashlib
import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from axcore.config.json_files import read_json_file

FLAGS = re.compile(r"JAX_.*|.*_(FLAGS|ARGS)")
"""Variables of the environment by which JAX or a compiler makes another program."""


@attrs.frozen
class KeptAnswers:
    """A folder of answers, each of which holds until a file of Python that it came from changes."""

    folder: Path

    def find(self, request: str, environment: Mapping[str, str]) -> dict[str, Any] | None:
        """Returns the answer to a request, if it still holds; warns where it cannot be read."""
        from axcore.trainer.compile import versions_of

        path = self._path(request, environment)
        if not path.exists():
            return None
        try:
            answered: dict[str, Any] = read_json_file(path)
            files = {file: found and tuple(found) for file, found in answered["files"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            warnings.warn(f"{path} cannot be read, and is made again: {error!r}", stacklevel=2)
            return None
        return answered if files == versions_of(files) else None

    def keep(self, request: str, environment: Mapping[str, str], answered: Any) -> None:
        """Leaves an answer."""
        from axcore.whole_files import write_whole

        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self._path(request, environment), json.dumps(answered).encode())

    def _path(self, request: str, environment: Mapping[str, str]) -> Path:
        flags = {name: value for name, value in environment.items() if FLAGS.fullmatch(name)}
        asked = json.dumps([request, flags], sort_keys=True)
        return self.folder / f"{hashlib.sha256(asked.encode()).hexdigest()}.json"
