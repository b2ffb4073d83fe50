"""One part of a build: a worker's reading, tokenizing and writing."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.data.corpus import encode_documents, groups
from axcore.data.document import Document
from axcore.data.file_source import BadRecord, Tally
from axcore.data.loss_weights import WEIGHTED, is_weighted, token_dtype
from axcore.data.split import is_validation
from axcore.data.store.duplicates import keys_file, write_keys
from axcore.data.store.manifest import SPLITS
from axcore.data.store.plan import Plan
from axcore.data.store.shard import ShardWriter
from axcore.errors import DataError
from axcore.whole_files import whole_file, write_whole


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
        """Builds a part; the file `done_file` appears last.

        Raises:
            DataError: A file cannot be read, or a record is bad and none may be.
        """
        shards = self._folder / "shards"
        tally, characters = Tally(self._source, self._tokenizer), 0
        with ExitStack() as stack:
            writers = {
                name: stack.enter_context(ShardWriter(shards, f"{index:06}.{name}", self.dtype))
                for name in SPLITS
            }
            keys = None
            if self._source.marks_duplicates:
                keys = stack.enter_context(whole_file(keys_file(self._folder, index)))
            for group in groups(self._documents(index, tally)):
                characters += sum(map(len, group))
                encoded = encode_documents(group, self._tokenizer)
                self._check_weights(group, encoded)
                held = [is_validation(one.name, self._plan.validation_fraction) for one in group]
                if keys is not None:
                    write_keys(keys, group, encoded, held)
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
        write_whole(done_file(self._folder, index), json.dumps(done) + "\n")

    def _check_weights(self, group: Sequence[Document], encoded: Sequence[NDArray[Any]]) -> None:
        """Checks that the store has room for weights."""
        found = next((d for d, t in zip(group, encoded, strict=True) if is_weighted(t)), None)
        if found is not None and self.dtype != WEIGHTED:
            raise DataError(
                f"{found.name}: its tokens weigh other than 0 and 1 in the loss, for which a token "
                f"of {self.dtype.itemsize * 8} bits has no room.",
                where=found.name,
                hint="--set data.source.reads.stores_weights=true; a token takes 8 bytes then.",
            )

    def _documents(self, index: int, tally: Tally) -> Iterator[Document]:
        for span in self._plan.parts[index]:
            yield from tally.documents(self._source.read(span), span.file)


def done_file(folder: Path, index: int) -> Path:
    """Returns the file that says that a part is built, and what is in it."""
    return folder / "shards" / f"{index:06}.json"


def bad_file(folder: Path, index: int) -> Path:
    """Returns the file that names the bad records of a part."""
    return folder / "shards" / f"{index:06}.bad.jsonl"


def _bad_record_to_json(record: BadRecord) -> str:
    where = {"file": record.file, "offset": record.offset, "reason": record.error.what}
    return json.dumps(where) + "\n"
