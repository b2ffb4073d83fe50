"""`DataSourceSuite`: a source yields the same named documents each time, and batches resume."""

import copy
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import attrs
import numpy as np
import pytest

from axcore.config import evolve, from_json, to_json
from axcore.config.json_files import parse_json
from axcore.plugins import DataSource
from axcore.registration import Record
from axcore.testing.suite import Suite

_ENOUGH = 200
"""Documents looked at, so that large sources are tested quickly."""

_BATCHES = 6
"""Batches to resume from; those of 8 short documents are more than an epoch."""


_SECOND_PROCESS = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "NODE_RANK": "1",
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
}
"""Variables by which launchers number the second of two processes."""


class DataSourceSuite(Suite):
    """Proves data sources: `class TestSources(DataSourceSuite): plugin = "axl-acme"`."""

    kind: ClassVar[type[Record]] = DataSource

    def make(self, record: DataSource, folder: Path) -> Any:
        """Return the config of a source with at least 8 documents, which may be put in `folder`.

        Override where the config has fields to fill in.
        """
        return record.config.resolve()()

    @pytest.fixture
    def source_config(self, record: DataSource, tmp_path: Path) -> Any:
        """The config of the source to test."""
        return self.make(record, tmp_path)

    def test_documents_are_the_same_each_time(self, source_config: Any) -> None:
        """Neither the run nor the process decides their order."""
        first, second = (_documents(source_config) for _ in range(2))
        assert len(first) >= 8, f"there are {len(first)} documents; 8 are needed"
        assert first == second, "a second reader gets other documents"

    def test_every_process_reads_all_documents(
        self, source_config: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rows of a batch are divided afterwards: a source that divides, too, loses the others."""
        import jax

        expected = _documents(source_config)
        with monkeypatch.context() as second:
            for name, value in _SECOND_PROCESS.items():
                second.setenv(name, value)
            second.setattr(jax, "process_index", lambda: 1)
            second.setattr(jax, "process_count", lambda: 2)
            got = _documents(source_config)
        assert got == expected, "the second of two processes gets other documents; read them all"

    def test_documents_stay_as_they_were_given(self, source_config: Any) -> None:
        """They are put into rows after others were read."""
        documents, given = [], []
        for document, _ in zip(source_config.build().documents(), range(_ENOUGH), strict=False):
            documents.append(document)
            given.append(copy.deepcopy(_contents(document)))
        changed = [
            document.name
            for document, before in zip(documents, given, strict=True)
            if _contents(document) != before
        ]
        assert not changed, (
            f"documents {changed[:3]} change after they are given: what they hold is shared with "
            "others, and written again"
        )

    def test_iterators_of_one_source_do_not_share_a_place(self, source_config: Any) -> None:
        """Training and validation read the same source; an epoch begins where none has read."""
        source = source_config.build()
        whole = _documents_of(source)
        assert _documents_of(source) == whole, "read again, the same source gives other documents"
        first = iter(source.documents())
        next(first)
        assert _documents_of(source) == whole, "a reader that is under way changes another one's"
        assert _contents(next(first)) == whole[1], "another reader moves the one that is under way"

    def test_order_is_neither_that_of_the_disk_nor_by_chance(
        self, source_config: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """File systems list folders in any order; a run must be the same on each of them."""
        expected = _documents(source_config)
        with monkeypatch.context() as elsewhere:
            _list_folders_backwards(elsewhere)
            random.seed(5)
            got = _documents(source_config)
        assert [one["name"] for one in got] == [one["name"] for one in expected], (
            "documents come in another order where folders are listed backwards; sort them"
        )
        assert got == expected, "documents of the same names hold other text the second time"

    def test_parts_of_processes_are_the_whole_batch(self, source_config: Any) -> None:
        """Disjoint and complete: two processes read what one alone does, half of the rows each."""
        cfg = _data(source_config)
        alone = next(evolve(cfg).build().train())
        parts = [
            next(evolve(cfg).build().train(process_index=index, process_count=2))
            for index in range(2)
        ]
        for name, expected in alone.items():
            joined = np.concatenate([part[name] for part in parts])
            np.testing.assert_array_equal(joined, expected, f"{name} of two processes")

    def test_documents_are_named_apart_and_without_absolute_paths(self, source_config: Any) -> None:
        """Name decide what is held out, so they are the same on every machine."""
        source = source_config.build()
        documents = [one for one, _ in zip(source.documents(), range(_ENOUGH), strict=False)]
        names = [document.name for document in documents]
        twice = sorted({name for name in names if names.count(name) > 1})
        assert not twice, f"several documents have the names {twice[:3]}"
        absolute = [name for name in names if Path(name).is_absolute()]
        assert not absolute, f"names are absolute paths: {absolute[:3]}"
        outside = [name for name in names if ".." in Path(name).parts]
        assert not outside, f"names lead out of a folder, so they depend on it: {outside[:3]}"
        for document in documents:
            assert isinstance(document.text, str), f"the text of {document.name} is not a str"
            document.text.encode()  # a lone half of a surrogate pair ends a run in the tokenizer

    def test_description_is_one_line(self, source_config: Any) -> None:
        """As a run prints it."""
        text = source_config.build().describe()
        assert text
        assert len(text.splitlines()) == 1

    def test_config_is_saved_and_read_back(self, source_config: Any) -> None:
        """A run directory contains it."""
        assert from_json(to_json(source_config)) == source_config

    def test_batches_go_on_exactly_where_they_were(self, source_config: Any) -> None:
        """A position in a checkpoint gives the very batches that would have followed, any epoch."""
        cfg = _data(source_config)
        whole = evolve(cfg).build().train()
        places, batches = [], []
        for _ in range(_BATCHES):
            places.append(whole.get_state())
            batches.append(next(whole))
        for place in (0, 1, _BATCHES - 2):
            resumed = evolve(cfg).build().train()
            resumed.set_state(parse_json(json.dumps(places[place])))
            for number in range(place, min(place + 2, _BATCHES)):
                got = next(resumed)
                for name, expected in batches[number].items():
                    np.testing.assert_array_equal(
                        got[name], expected, f"{name} of batch {number}, resumed before {place}"
                    )


def _data(source_config: Any) -> Any:
    from axcore.data import Data

    return Data.Config(source=source_config, seq_len=16, batch_size=2, validation_fraction=0.0)


def _documents(source_config: Any) -> list[dict[str, Any]]:
    return _documents_of(source_config.build())


def _documents_of(source: Any) -> list[dict[str, Any]]:
    documents = source.documents()
    return [_contents(document) for document, _ in zip(documents, range(_ENOUGH), strict=False)]


def _contents(document: Any) -> dict[str, Any]:
    """Return all that a document holds; documents are equal by their names and texts."""
    held = attrs.asdict(document, recurse=False)
    return {
        name: one.tolist() if isinstance(one, np.ndarray) else one for name, one in held.items()
    }


def _list_folders_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    listdir, scandir = os.listdir, os.scandir

    class Backwards:
        """What `os.scandir` returns, in the other order."""

        def __init__(self, *args: Any) -> None:
            with scandir(*args) as entries:
                self._entries = iter(sorted(entries, key=lambda one: one.name, reverse=True))

        def __iter__(self) -> Iterator[Any]:
            return self._entries

        def __next__(self) -> Any:
            return next(self._entries)

        def __enter__(self) -> "Backwards":
            return self

        def __exit__(self, *error: object) -> None:
            self.close()

        def close(self) -> None:
            """End nothing: the folder is read already."""

    monkeypatch.setattr(os, "listdir", lambda *args: sorted(listdir(*args), reverse=True))
    monkeypatch.setattr(os, "scandir", Backwards)
