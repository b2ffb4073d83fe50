"""`read_json`: objects of JSON in files that others wrote."""

import json
from pathlib import Path
from typing import Any

from axcore.errors import AxcoreError


def read_json(path: Path | str, kind: str, *, error: type[AxcoreError]) -> dict[str, Any]:
    """Returns a file's JSON object.

    Args:
        path: The file.
        kind: What it is, for errors.
        error: Raised where the file does not exist, or holds something else.
    """
    file = Path(path).expanduser()
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as cause:
        what = f"The {kind} {str(path)!r} cannot be read: {cause.strerror}."
        raise error(what, where=str(file.absolute())) from cause
    except ValueError as cause:
        what = f"The {kind} {str(path)!r} is not JSON: {cause}."
        raise error(what, where=str(file.absolute())) from cause
    if not isinstance(content, dict):
        raise error(f"The {kind} {str(path)!r} is no JSON object.", where=str(file.absolute()))
    return content
