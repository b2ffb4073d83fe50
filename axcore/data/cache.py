"""Where data keep what they made or fetched themselves, and how much of it there may be."""

import os
from pathlib import Path

from axcore.errors import DataError

CACHE = "AXCORE_DATA_CACHE"
"""The variable that says where stores and copies of remote files are kept."""

CACHE_GIB = "AXCORE_DATA_CACHE_GIB"
"""The variable that says how large all copies of remote files may be together."""

_DEFAULT_GIB = 50.0


def cache_folder() -> Path:
    """Returns where stores are kept that training built by itself, and copies of remote files."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(CACHE) or Path(home) / "axcore" / "data")


def largest_cache() -> int:
    """Returns the bytes that all copies of remote files may have together.

    Raises:
        DataError: The variable is no number.
    """
    said = os.environ.get(CACHE_GIB, str(_DEFAULT_GIB))
    try:
        return int(float(said) * 2**30)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{CACHE_GIB} is {said!r}, not a number.", where=CACHE_GIB) from error
