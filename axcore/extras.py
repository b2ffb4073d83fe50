"""Libraries that extras bring, imported where somebody asks for what needs them."""

import importlib
from typing import Any

from axcore.errors import AxcoreError

EXTRAS = {
    "PIL": "images",
    "array_record": "array-record",
    "datasets": "datasets",
    "fsspec": "data",
    "gguf": "weights",
    "jinja2": "chat",
    "llguidance": "guided",
    "lm_eval": "lm-eval",
    "mlflow": "mlflow",
    "opentelemetry": "opentelemetry",
    "orbax": "weights",
    "pyarrow": "arrow",
    "sentencepiece": "weights",
    "tensorboardX": "tensorboard",
    "wandb": "wandb",
    "zstandard": "zstd",
}
"""The extra that brings each library, by the name that it is imported by."""

_NAMES = {"PIL": "Pillow", "lm_eval": "lm-eval", "orbax": "orbax-checkpoint"}


def import_extra(
    module: str, *, used_by: str, error: type[AxcoreError], where: str | None = None
) -> Any:
    """Return a module of a library that an extra brings.

    Args:
        module: Its full name; the library is one of `EXTRAS`.
        used_by: What needs it, as the subject of the error's sentence.
        error: What to raise where the library is not installed.
        where: What the error is about.
    """
    library = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        raise error(
            f"{used_by} needs {_NAMES.get(library, library)}, which is not installed",
            where=where,
            hint=f'pip install "axcore[{EXTRAS[library]}]"',
        ) from missing
