"""The first batch of a run, for people to look at: a few rows of it, as arrays.

first_batch.npz    rows of each array that the batch has a value a token in
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from axcore.whole_files import open_regular, whole_file

FIRST_BATCH_NAME = "first_batch.npz"
MOST_ROWS, MOST_TOKENS = 8, 2048
"""How much of it is kept: rows, and tokens of each."""

_NEEDED = ("tokens", "targets", "positions", "loss_weights")


def keep_first_batch(directory: Path, batch: Any) -> None:
    """Keeps some rows of a batch of packed text; of another batch nothing."""
    if not isinstance(batch, Mapping) or not set(_NEEDED) <= batch.keys():
        return
    kept = [name for name in (*_NEEDED, "segment_ids", "token_mask") if name in batch]
    rows = {name: np.asarray(batch[name])[:MOST_ROWS, :MOST_TOKENS] for name in kept}
    with whole_file(directory / FIRST_BATCH_NAME) as file:
        np.savez_compressed(file, allow_pickle=False, **rows)


def read_first_batch(directory: Path) -> dict[str, NDArray[Any]] | None:
    """Returns the rows that were kept; None where none were.

    Raises:
        ValueError: The file is damaged.
    """
    path = directory / FIRST_BATCH_NAME
    if not path.exists():
        return None
    try:
        with open_regular(path) as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, EOFError, BadZipFile) as error:
        raise ValueError(f"the file is damaged: {error}") from error
