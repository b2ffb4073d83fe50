"""Libraries that an extra brings, imported where somebody asks for what needs them."""

import importlib
from typing import Any

from axcore.errors import TrainingError


def import_library(name: str, *, extra: str, used_by: str) -> Any:
    """Returns a module of a library.

    Raises:
        TrainingError: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise TrainingError(
            f"{used_by} needs {name}, which is not installed",
            hint=f'pip install "axcore[{extra}]"',
        ) from error
