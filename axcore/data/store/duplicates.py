"""Duplicates of a build: parts note the keys of their documents, and the end leaves repeats out.

NNNNNN.keys   [D] of each document of a part, in order, its key and its split

Keys are compared a share at a time, so that this takes memory for some of them, and a byte for each
document.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from axcore.data.document import Document
from axcore.data.store.manifest import SPLITS
from axcore.data.store.shard import Shard, ShardInfo, ShardWriter

_KEY = np.dtype([("high", "<u8"), ("low", "<u8"), ("split", "u1")])
UNIQUE = ".unique"
"""What names of shards end in that were written again."""

_NOT_STORED = len(SPLITS)
_AT_ONCE = 1 << 24
_DOCUMENTS_A_WRITE = 1 << 14


def keys_file(folder: Path, index: int) -> Path:
    """Returns the file of the keys of a part."""
    return folder / "shards" / f"{index:06}.keys"


def write_keys(
    file: IO[bytes],
    documents: Sequence[Document],
    tokens: Sequence[NDArray[Any]],
    is_validation: Sequence[bool],
) -> None:
    """Writes the keys of documents; one of a single token is in no shard."""
    keys = np.empty(len(documents), _KEY)
    raw = np.frombuffer(b"".join(one.key or b"" for one in documents), "<u8").reshape(-1, 2)
    keys["high"], keys["low"] = raw.T
    keys["split"] = [
        int(held) if len(one) > 1 else _NOT_STORED
        for one, held in zip(tokens, is_validation, strict=True)
    ]
    file.write(keys.tobytes())


def find_duplicates(folder: Path, num_parts: int) -> list[NDArray[np.bool_]]:
    """Returns for each part [D] which of its documents equal an earlier one of the source."""
    keys = [np.memmap(path, _KEY, "r") if path.stat().st_size else np.zeros(0, _KEY)
            for path in (keys_file(folder, index) for index in range(num_parts))]  # fmt: skip
    found = [np.zeros(len(one), np.bool_) for one in keys]
    num_shares = -(-sum(map(len, keys)) // _AT_ONCE)
    for share in range(num_shares):
        places = [np.flatnonzero(one["high"] % np.uint64(num_shares) == share) for one in keys]
        chosen = np.concatenate([one[place] for one, place in zip(keys, places, strict=True)])
        repeats = _repeats(chosen)
        ends = np.cumsum([len(place) for place in places])[:-1]
        for mask, place, is_repeat in zip(found, places, np.split(repeats, ends), strict=True):
            mask[place] = is_repeat
    return found


def _repeats(keys: NDArray[Any]) -> NDArray[np.bool_]:
    order = np.lexsort((np.arange(len(keys)), keys["low"], keys["high"]))
    ordered = keys[["high", "low"]][order]
    repeats = np.zeros(len(keys), np.bool_)
    repeats[order[1:]] = ordered[1:] == ordered[:-1]
    return repeats


def without_duplicates(
    folder: Path, index: int, infos: dict[str, ShardInfo], is_repeat: NDArray[np.bool_], dtype: Any
) -> dict[str, ShardInfo]:
    """Writes the shards of a part again, under other names, without some of its documents."""
    if not is_repeat.any():
        return infos
    split = np.fromfile(keys_file(folder, index), _KEY)["split"]
    return {
        name: _rewritten(folder / "shards", infos[name], is_repeat[split == number], dtype)
        for number, name in enumerate(SPLITS)
    }


def _rewritten(
    folder: Path, info: ShardInfo, is_repeat: NDArray[np.bool_], dtype: Any
) -> ShardInfo:
    if not is_repeat.any():
        return info
    shard = Shard(folder, info, dtype)
    with ShardWriter(folder, f"{info.name}{UNIQUE}", dtype) as writer:
        for places in _runs(np.flatnonzero(~is_repeat)):
            writer.add([shard.document(int(place)) for place in places])
        return writer.info()


def _runs(places: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for begin in range(0, len(places), _DOCUMENTS_A_WRITE):
        yield places[begin : begin + _DOCUMENTS_A_WRITE]
