"""`DataSourceSuite`: a source yields the same named documents each time, and batches resume."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from axcore.config import evolve, from_json, to_json
from axcore.plugins import DataSource
from axcore.registration.record import Record
from axcore.testing.suite import Suite

_ENOUGH = 200
"""Documents looked at, so that large sources are tested quickly."""


class DataSourceSuite(Suite):
    """Proves data sources: `class TestSources(DataSourceSuite): plugin = "axl-acme"`."""

    kind: ClassVar[type[Record]] = DataSource

    def make(self, record: DataSource, folder: Path) -> Any:
        """Returns the config of a source with at least 8 documents, which may be put in `folder`.

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
        assert len(first) >= 8
        assert first == second

    def test_documents_are_named_apart_and_without_absolute_paths(self, source_config: Any) -> None:
        """Names decide what is held out, so they are the same on every machine."""
        documents = _documents(source_config)
        names = [document.name for document in documents]
        assert len(set(names)) == len(names)
        assert not [name for name in names if Path(name).is_absolute()]
        assert all(isinstance(document.text, str) for document in documents)

    def test_description_is_one_line(self, source_config: Any) -> None:
        """As a run prints it."""
        text = source_config.build().describe()
        assert text
        assert len(text.splitlines()) == 1

    def test_config_is_saved_and_read_back(self, source_config: Any) -> None:
        """A run directory holds it."""
        assert from_json(to_json(source_config)) == source_config

    def test_batches_go_on_exactly_where_they_were(self, source_config: Any) -> None:
        """The position in a checkpoint gives the very batches that would have followed."""
        from axcore.data import Data

        cfg = Data.Config(source=source_config, seq_len=16, batch_size=2, validation_fraction=0.0)
        first, second = (evolve(cfg).build().train() for _ in range(2))
        next(first)
        second.set_state(first.get_state())
        for _ in range(2):
            expected, got = next(first), next(second)
            for name in expected:
                np.testing.assert_array_equal(got[name], expected[name])


def _documents(source_config: Any) -> list[Any]:
    documents = source_config.build().documents()
    return [document for document, _ in zip(documents, range(_ENOUGH), strict=False)]
