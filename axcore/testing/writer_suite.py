"""`WriterSuite`: a metric writer keeps what it gets, and a resumed run writes no step twice."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from axcore.plugins import MetricWriter
from axcore.registration.record import Record
from axcore.testing.suite import Suite

Line = tuple[int, str, Mapping[str, float]]
"""Step, split and metrics."""


class WriterSuite(Suite):
    """Proves metric writers: `class TestWriters(WriterSuite): plugin = "axl-acme"`."""

    kind: ClassVar[type[Record]] = MetricWriter

    def read(self, record: MetricWriter, folder: Path) -> list[Line]:
        """Returns what was written for the run in `folder`, in the order it was written.

        Override; values that are not finite come back as floats. Without it, the tests that read
        are skipped, and only those remain that write.
        """
        pytest.skip(f"override read() to say what {record.key} has written")

    def test_writer_takes_lines_and_closes(self, record: MetricWriter, tmp_path: Path) -> None:
        """Before the first step, and when a run is taken up again."""
        for step in (0, 2):
            _write(record, tmp_path, [(step + 1, "train", {"loss": 1.0})], step=step)

    def test_lines_are_read_back(self, record: MetricWriter, tmp_path: Path) -> None:
        """Both splits of a step, and metrics that come later than others."""
        lines: list[Line] = [
            (1, "train", {"loss": 2.5}),
            (2, "train", {"loss": 1.25, "skipped_steps": 3}),
            (2, "validation", {"loss": 1.5, "loss/cross_entropy": 1.0}),
        ]
        _write(record, tmp_path, lines)
        assert self.read(record, tmp_path) == lines

    def test_values_that_are_not_finite_are_kept(
        self, record: MetricWriter, tmp_path: Path
    ) -> None:
        """They are what somebody looks for in a run that went wrong."""
        _write(record, tmp_path, [(1, "train", {"a": math.nan, "b": math.inf, "c": -math.inf})])
        ((_, _, metrics),) = self.read(record, tmp_path)
        assert math.isnan(metrics["a"])
        assert (metrics["b"], metrics["c"]) == (math.inf, -math.inf)

    def test_opening_at_a_step_drops_what_comes_after(
        self, record: MetricWriter, tmp_path: Path
    ) -> None:
        """A run resumes from a checkpoint, and writes the steps past it again."""
        _write(record, tmp_path, [(step, "train", {"loss": 1.0}) for step in (1, 2, 3, 4)])
        _write(record, tmp_path, [(step, "train", {"loss": 2.0}) for step in (3, 4)], step=2)
        read = [(step, metrics["loss"]) for step, _, metrics in self.read(record, tmp_path)]
        assert read == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)]

    def test_runs_do_not_share_lines(self, record: MetricWriter, tmp_path: Path) -> None:
        """Each run directory has its own."""
        folders = [tmp_path / name for name in ("one", "two")]
        for number, folder in enumerate(folders):
            folder.mkdir()
            _write(record, folder, [(1, "train", {"loss": float(number)})])
        losses = [self.read(record, folder)[0][2]["loss"] for folder in folders]
        assert losses == [0.0, 1.0]


def _write(record: MetricWriter, folder: Path, lines: list[Line], *, step: int = 0) -> None:
    writer: Any = record.fn.resolve()(str(folder), step)
    for line in lines:
        writer.write(*line)
    writer.close()
