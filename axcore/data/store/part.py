"""One part of a build: a worker's reading, tokenizing and writing; and duplicates across parts.

Parts note the keys of their documents, and the end of a build leaves repeats out:

NNNNNN.keys   [D] of each document of a part, in order, its key and its split

Keys are compared a share at a time, so that this takes memory for some of them, and a byte for each
document.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.data.document import Document, is_validation
from axcore.data.packing.corpus import encode_documents, groups
from axcore.data.packing.packing import WEIGHTED, is_weighted, token_dtype
from axcore.data.sources.file_source import BadRecord, Tally
from axcore.data.store.manifest import SPLITS
from axcore.data.store.plan import Plan
from axcore.data.store.shard import Shard, ShardInfo, ShardWriter
from axcore.errors import DataError
from axcore.whole_files import whole_file, write_whole

_KEY = np.dtype([("high", "<u8"), ("low", "<u8"), ("split", "u1")])
UNIQUE = ".unique"
"""What names of shards end in that were written again."""

_NOT_STORED = len(SPLITS)
_AT_ONCE = 1 << 24
_DOCUMENTS_A_WRITE = 1 << 14


class PartBuilder:
    """Builds parts of a plan, one after another."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._folder = folder
        self._plan = plan
        self._source = plan.build_source()
        self._tokenizer = plan.build_tokenizer()

    @cached_property
    def dtype(self) -> "np.dtype[Any]":
        """Of a token on the disk."""
        if self._source.makes_loss_weights:
            return WEIGHTED
        is_masked = self._source.makes_loss_mask
        return token_dtype(self._tokenizer.vocab_size, is_masked=is_masked).newbyteorder("<")

    def build(self, index: int) -> None:
        """Build a part; the file `done_file` appears last.

        Raises:
            DataError: A file cannot be read, or a record is bad and none may be.
        """
        shards = self._folder / "shards"
        tally, characters = Tally(self._source, self._tokenizer), 0
        # All files of a part appear together when the stack closes, or not at all.
        with ExitStack() as stack:
            writers = {
                name: stack.enter_context(ShardWriter(shards, f"{index:06}.{name}", self.dtype))
                for name in SPLITS
            }
            keys = None
            if self._source.marks_duplicates:
                keys = stack.enter_context(whole_file(_keys_file(self._folder, index)))
            for group in groups(self._documents(index, tally)):
                characters += sum(map(len, group))
                encoded = encode_documents(group, self._tokenizer)
                self._check_weights(group, encoded)
                # By name, so that a document's split is the same in any part and any store.
                held = [is_validation(one.name, self._plan.validation_fraction) for one in group]
                if keys is not None:
                    _write_keys(keys, group, encoded, held)
                for name, is_held in zip(SPLITS, (False, True), strict=True):
                    writers[name].add(
                        [t for t, h in zip(encoded, held, strict=True) if h is is_held]
                    )
            infos = {name: attrs.asdict(writers[name].info()) for name in SPLITS}
        if tally.bad:
            text = "".join(map(_bad_record_to_json, tally.bad))
            write_whole(bad_file(self._folder, index), text)
        done = {
            "records": tally.num_records,
            "bad_records": len(tally.bad),
            "characters": characters,
            "dropped": dict(tally.dropped),
            "splits": infos,
        }
        # After the shards were renamed into place, so that no done file names a shard that is cut
        # short.
        write_whole(done_file(self._folder, index), json.dumps(done) + "\n")

    def _check_weights(self, group: Sequence[Document], encoded: Sequence[NDArray[Any]]) -> None:
        """Check that the store supports weights."""
        found = next((d for d, t in zip(group, encoded, strict=True) if is_weighted(t)), None)
        if found is not None and self.dtype != WEIGHTED:
            raise DataError(
                f"{found.name}: its tokens weigh other than 0 and 1 in the loss, which a token of "
                f"{self.dtype.itemsize * 8} bits cannot hold.",
                where=found.name,
                hint="--set data.source.reads.stores_weights=true; a token takes 8 bytes then.",
            )

    def _documents(self, index: int, tally: Tally) -> Iterator[Document]:
        for span in self._plan.parts[index]:
            yield from tally.documents(self._source.read(span), span.file)


def done_file(folder: Path, index: int) -> Path:
    """Return the file that says that a part is built, and what is in it."""
    return folder / "shards" / f"{index:06}.json"


def bad_file(folder: Path, index: int) -> Path:
    """Return the file that names the bad records of a part."""
    return folder / "shards" / f"{index:06}.bad.jsonl"


def _bad_record_to_json(record: BadRecord) -> str:
    where = {"file": record.file, "offset": record.offset, "reason": record.error.what}
    return json.dumps(where) + "\n"


def _keys_file(folder: Path, index: int) -> Path:
    """Return the file of the keys of a part."""
    return folder / "shards" / f"{index:06}.keys"


def _write_keys(
    file: IO[bytes],
    documents: Sequence[Document],
    tokens: Sequence[NDArray[Any]],
    is_validation: Sequence[bool],
) -> None:
    """Write the keys of documents; one of a single token is in no shard."""
    keys = np.empty(len(documents), _KEY)
    raw = np.frombuffer(b"".join(one.key or b"" for one in documents), "<u8").reshape(-1, 2)
    keys["high"], keys["low"] = raw.T
    keys["split"] = [
        int(held) if len(one) > 1 else _NOT_STORED
        for one, held in zip(tokens, is_validation, strict=True)
    ]
    file.write(keys.tobytes())


def find_duplicates(folder: Path, num_parts: int) -> list[NDArray[np.bool_]]:
    """Return for each part [D] which of its documents equal an earlier one of the source."""
    keys = [np.memmap(path, _KEY, "r") if path.stat().st_size else np.zeros(0, _KEY)
            for path in (_keys_file(folder, index) for index in range(num_parts))]  # fmt: skip
    found = [np.zeros(len(one), np.bool_) for one in keys]
    num_shares = -(-sum(map(len, keys)) // _AT_ONCE)
    for share in range(num_shares):
        # By the bits of the key itself, so that equal keys fall into one share.
        places = [np.flatnonzero(one["high"] % np.uint64(num_shares) == share) for one in keys]
        chosen = np.concatenate([one[place] for one, place in zip(keys, places, strict=True)])
        repeats = _repeats(chosen)
        ends = np.cumsum([len(place) for place in places])[:-1]
        for mask, place, is_repeat in zip(found, places, np.split(repeats, ends), strict=True):
            mask[place] = is_repeat
    return found


def _repeats(keys: NDArray[Any]) -> NDArray[np.bool_]:
    # The place breaks ties: of equal keys, the first one in the source's order is the one that
    # stays.
    order = np.lexsort((np.arange(len(keys)), keys["low"], keys["high"]))
    ordered = keys[["high", "low"]][order]
    repeats = np.zeros(len(keys), np.bool_)
    repeats[order[1:]] = ordered[1:] == ordered[:-1]
    return repeats


def without_duplicates(
    folder: Path, index: int, infos: dict[str, ShardInfo], is_repeat: NDArray[np.bool_], dtype: Any
) -> dict[str, ShardInfo]:
    """Write the shards of a part again, under other names, without some of its documents."""
    if not is_repeat.any():
        return infos
    split = np.fromfile(_keys_file(folder, index), _KEY)["split"]
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
