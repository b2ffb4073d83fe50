"""Libraries that one kind of source needs, and axcore does not."""

import importlib
from typing import Any

from axcore.errors import DataError

_EXTRAS = {
    "PIL.Image": "images",
    "array_record.python.array_record_module": "array-record",
    "datasets": "datasets",
    "fsspec.core": "data",
    "pyarrow": "arrow",
    "pyarrow.parquet": "arrow",
    "zstandard": "zstd",
}
_NAMES = {"PIL.Image": "Pillow"}


def import_extra(module: str) -> Any:
    """Returns a module of an extra.

    Raises:
        DataError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise DataError(
            f"This needs {_NAMES.get(module) or module.partition('.')[0]}, which is not installed.",
            hint=f'pip install "axcore[{_EXTRAS[module]}]"',
        ) from error
