"""Arrays in checkpoints that other trainers wrote: orbax's folders, and AXLearn's own.

orbax says what a folder contains. Numbers are read by tensorstore, which both formats are written
with, and of arrays in which layers are stacked only those layers that share chunks.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import jax
import numpy as np

from axcore.config.json_files import parse_json
from axcore.errors import CheckpointError
from axcore.extras import import_extra

Shape = tuple[int, ...]
METADATA, INDEX, ARRAYS = "_METADATA", "index", "gda"
"""The file that orbax describes a tree in; AXLearn's file, and its folder of arrays."""

_ITEMS = ("items", "state", "default", "params", "model_params", "model")
"""Names of what a step consists of, where it is a folder of several: MaxText's, AXLearn's, ..."""

_COPY_AGAIN = "copy the checkpoint again, with all of its files"
_STEP = re.compile(r"(?:step_)?0*(\d+)")


@attrs.frozen
class StoredArray:
    """What a checkpoint says about an array.

    Args:
        name: Its path in the tree, joined by dots.
        stored: Its name in the folder.
        shape: Its shape.
        dtype: The dtype of its numbers.
    """

    name: str
    stored: str
    shape: Shape
    dtype: np.dtype[Any]


class StoredArrays:
    """The arrays of a checkpoint.

    Attributes:
        folder: Contains them.
        arrays: By path in the tree.
    """

    def __init__(
        self,
        folder: Path,
        arrays: Mapping[str, StoredArray],
        driver: str,
        kvstore: Mapping[str, str],
    ) -> None:
        """Describe arrays; read none.

        Args:
            folder: Contains them.
            arrays: By path in the tree.
            driver: tensorstore's, for each.
            kvstore: Where its chunks are; the name of the array is added to the path.
        """
        self.folder = folder
        self.arrays = dict(arrays)
        self._driver, self._kvstore = driver, kvstore
        # Layers are read one after the other, so the block that has the next one is read already.
        self._last: tuple[Any, np.ndarray | None] = (None, None)
        self._opened: tuple[str, Any] = ("", None)

    def read(self, name: str, *, axis: int | None = None, index: int = 0) -> np.ndarray:
        """Return an array, or what it has at a place of a dimension.

        Args:
            name: Its path in the tree.
            axis: The dimension, in which layers are stacked.
            index: The place.

        Raises:
            CheckpointError: It is damaged.
        """
        store = self._open(name)
        # Chunks are read whole. A layer alone would read those that layers share again and again.
        size = store.chunk_layout.read_chunk.shape[axis] if axis is not None else 1
        block = (name, axis, index // size)
        if self._last[0] != block:
            self._last = (None, None)  # freed before the next is read, not after
            if axis is not None:
                begin = block[2] * size
                end = min(begin + size, store.shape[axis])
                store = store[(slice(None),) * axis + (slice(begin, end),)]
            try:
                self._last = (block, np.asarray(store.read().result()))
            except (ValueError, OSError) as error:
                raise self._damaged(name, error) from error
        found = self._last[1]
        assert found is not None
        return found if axis is None else np.take(found, index % size, axis=axis)

    def _open(self, name: str) -> Any:
        import tensorstore

        if self._opened[0] == name:
            return self._opened[1]
        path = self._kvstore["path"] + self.arrays[name].stored
        spec = {
            "driver": self._driver,
            "kvstore": {**self._kvstore, "path": path},
            # A lost chunk would be read as zeros.
            "fill_missing_data_reads": False,
        }
        try:
            self._opened = (name, tensorstore.open(spec, read=True, open=True).result())
        except (ValueError, OSError) as error:
            raise self._damaged(name, error) from error
        return self._opened[1]

    def _damaged(self, name: str, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"{name} cannot be read: {str(error).splitlines()[0]}",
            where=str(self.folder),
            hint=_COPY_AGAIN,
        )


def find_stored_arrays(path: Path, *, step: int | None = None) -> StoredArrays:
    """Return the arrays of a checkpoint; read what it says about them alone.

    Args:
        path: Its folder, or one of a run that contains the steps.
        step: Which of a run's steps; by default the newest.

    Raises:
        CheckpointError: It contains no such checkpoint, or is damaged.
    """
    folder = _checkpoint(path, step)
    return _axlearn_arrays(folder) if (folder / ARRAYS).is_dir() else _orbax_arrays(folder)


def _checkpoint(path: Path, step: int | None) -> Path:
    """Return the folder of a checkpoint's arrays."""
    if step is None and (found := _item(path)):
        return found
    runs = [folder for folder in (path, path / "checkpoints") if folder.is_dir()]
    steps = {
        int(match[1]): folder
        for run in runs
        for folder in run.iterdir()
        if (match := _STEP.fullmatch(folder.name)) and _item(folder)
    }
    wanted = max(steps, default=None) if step is None else step
    if wanted not in steps:
        have = f"; it has the steps {', '.join(map(str, sorted(steps)))}" if steps else ""
        what = "no checkpoint of orbax or AXLearn" if step is None else f"no step {step}"
        raise CheckpointError(
            f"the folder contains {what}{have}",
            where=str(path),
            hint=f"name the folder that contains {METADATA}, or one of a run with steps below it",
        )
    found = _item(steps[wanted])
    assert found is not None
    return found


def _item(folder: Path) -> Path | None:
    """Return the folder with the arrays of a step, if this is one."""
    # The index is written last: without it a step of AXLearn's own format is not complete.
    if (folder / METADATA).is_file() or ((folder / INDEX).is_file() and (folder / ARRAYS).is_dir()):
        return folder
    return next((folder / item for item in _ITEMS if (folder / item / METADATA).is_file()), None)


def _orbax_arrays(folder: Path) -> StoredArrays:
    ocp = import_extra(
        "orbax.checkpoint",
        used_by="reading orbax's checkpoints",
        error=CheckpointError,
        where=str(folder),
    )
    folder = folder.absolute()
    try:
        found = ocp.PyTreeCheckpointHandler().metadata(folder)
    except (ValueError, OSError, KeyError) as error:
        raise CheckpointError(
            f"orbax cannot read {METADATA}, or what it describes: {str(error).splitlines()[0]}",
            where=str(folder),
            hint=_COPY_AGAIN,
        ) from error
    arrays = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(found.tree):
        # Scalars and texts are of the trainer: its step, the state of what it reads.
        if getattr(leaf, "shape", None) is not None and leaf.dtype is not None:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            arrays[name] = StoredArray(name, leaf.name, tuple(leaf.shape), np.dtype(leaf.dtype))
    is_one_store = (folder / "manifest.ocdbt").is_file()
    kvstore = (
        {"driver": "ocdbt", "base": f"file://{folder}/", "path": ""}
        if is_one_store
        else {"driver": "file", "path": f"{folder}/"}
    )
    return StoredArrays(folder, arrays, "zarr3" if found.use_zarr3 else "zarr", kvstore)


def _axlearn_arrays(folder: Path) -> StoredArrays:
    folder = folder.absolute()
    arrays = {}
    try:
        for path, said in parse_json((folder / INDEX).read_bytes()):
            if isinstance(said, dict):
                shape = tuple(int(size) for size in re.findall(r"\d+", said["shape"]))
                name = path.replace("/", ".")
                arrays[name] = StoredArray(name, path, shape, np.dtype(said["dtype"]))
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"AXLearn's {INDEX} is damaged: {error}", where=str(folder / INDEX)
        ) from error
    kvstore = {"driver": "file", "path": f"{folder / ARRAYS}/"}
    return StoredArrays(folder, arrays, "zarr", kvstore)
