"""`WriterSuite`: a metric writer keeps what it gets, and a resumed run writes no step twice."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from axcore.plugins import MetricWriter
from axcore.registration import Record
from axcore.testing.suite import Suite

Line = tuple[int, str, Mapping[str, float]]
"""Step, split and metrics."""

_DIFFERENT: dict[str, list[Line]] = {
    "nothing": [],
    "1": [(1, "train", {"a": 1.0})],
    "2": [(1, "train", {"a": 2.0})],
    "0": [(1, "train", {"a": 0.0})],
    "-1": [(1, "train", {"a": -1.0})],
    "nan": [(1, "train", {"a": math.nan})],
    "infinity": [(1, "train", {"a": math.inf})],
    "-infinity": [(1, "train", {"a": -math.inf})],
    "another name": [(1, "train", {"b": 1.0})],
    "another split": [(1, "validation", {"a": 1.0})],
    "another step": [(2, "train", {"a": 1.0})],
    "two metrics": [(1, "train", {"a": 1.0, "b": 1.0})],
    "two steps": [(1, "train", {"a": 1.0}), (2, "train", {"a": 1.0})],
}
"""Lines that no writer may mix up, by what they are called."""


class WriterSuite(Suite):
    """Proves metric writers: `class TestWriters(WriterSuite): plugin = "axl-acme"`."""

    kind: ClassVar[type[Record]] = MetricWriter

    def read(self, record: MetricWriter, folder: Path) -> list[Line]:
        """Return what was written for the run in `folder`, in the order it was written.

        Override; values that are not finite come back as floats. Without it, the tests that read
        are skipped, and what remains looks only at whether lines leave different files.
        """
        pytest.skip(f"override read() to say what {record.key} has written")

    def test_writer_takes_lines_and_closes(self, record: MetricWriter, tmp_path: Path) -> None:
        """Before the first step, and when a run is taken up again."""
        for step in (0, 2):
            _write(record, tmp_path, [(step + 1, "train", {"loss": 1.0})], step=step)

    def test_different_lines_leave_different_files(
        self, record: MetricWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So that none is dropped or taken for another, as far as can be seen without `read`."""
        monkeypatch.setattr(time, "time", lambda: 1e9)
        left: dict[bytes, str] = {}
        for number, (name, lines) in enumerate(_DIFFERENT.items()):
            again = [self._left(record, tmp_path / f"{number}{one}", lines) for one in "ab"]
            if again[0] != again[1]:
                pytest.skip(f"{record.key} never writes the same twice; override read()")
            if number == 1 and again[0] in left:
                pytest.skip(f"{record.key} writes no file of the run; override read()")
            twin = left.setdefault(again[0], name)
            assert twin == name, f"{record.key} writes the same for {name} as for {twin}"

    def _left(self, record: MetricWriter, folder: Path, lines: list[Line]) -> bytes:
        """Return the contents of all files that a writer leaves of some lines."""
        folder.mkdir()
        _write(record, folder, lines)
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        return b"".join(file.read_bytes() for file in files)

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
        lines = self.read(record, tmp_path)
        assert [{*metrics} for _, _, metrics in lines] == [{"a", "b", "c"}], "something is dropped"
        ((_, _, metrics),) = lines
        assert math.isnan(metrics["a"])
        assert (metrics["b"], metrics["c"]) == (math.inf, -math.inf)

    def test_many_metrics_of_a_late_step_are_kept(
        self, record: MetricWriter, tmp_path: Path
    ) -> None:
        """Losses of many tasks, with slashes and letters of other alphabets in their names."""
        metrics = {f"loss/task_{number}": number / 7 for number in range(198)}
        metrics |= {"loss/größer": 1.5, "loss/中-v1.5": 2.5}
        _write(record, tmp_path, [(1_000_000_007, "train", metrics)])
        ((step, split, read),) = self.read(record, tmp_path)
        assert (step, split) == (1_000_000_007, "train")
        lost = set(metrics) - set(read)
        assert not lost, f"{len(lost)} of 200 metrics are lost, {min(lost)!r} among them"
        worst = max(abs(read[name] - value) for name, value in metrics.items())
        assert worst <= 1e-5, f"values come back up to {worst} away"

    def test_metrics_given_are_left_as_they_are(self, record: MetricWriter, tmp_path: Path) -> None:
        """Other writers get the same mapping."""
        metrics = {"loss": 1.0, "b": math.inf}
        _write(record, tmp_path, [(1, "train", metrics)])
        assert metrics == {"loss": 1.0, "b": math.inf}, f"{record.key} changes what it is given"

    def test_opening_at_a_step_drops_what_comes_after(
        self, record: MetricWriter, tmp_path: Path
    ) -> None:
        """A run resumes from a checkpoint, and writes the steps past it again, in each split."""
        for splits in (("train",), ("train", "validation")):
            folder = tmp_path / str(len(splits))
            folder.mkdir()
            _write(record, folder, _losses((8, 9, 10, 11), splits, 1.0))
            _write(record, folder, [], step=9)
            steps = sorted({step for step, _, _ in self.read(record, folder)})
            assert steps == [8, 9], f"opened at step 9, it contains steps {steps}"
            _write(record, folder, _losses((10, 11), splits, 2.0), step=9)
            read = self.read(record, folder)
            for split in splits:
                losses = [(step, metrics["loss"]) for step, name, metrics in read if name == split]
                assert losses == [(8, 1.0), (9, 1.0), (10, 2.0), (11, 2.0)], split

    def test_runs_do_not_share_lines(self, record: MetricWriter, tmp_path: Path) -> None:
        """Each run directory has its own."""
        folders = [tmp_path / name for name in ("one", "two")]
        for number, folder in enumerate(folders):
            folder.mkdir()
            _write(record, folder, [(1, "train", {"loss": float(number)})])
        losses = [self.read(record, folder)[0][2]["loss"] for folder in folders]
        assert losses == [0.0, 1.0]


def _losses(steps: tuple[int, ...], splits: tuple[str, ...], loss: float) -> list[Line]:
    return [(step, split, {"loss": loss}) for step in steps for split in splits]


def _write(record: MetricWriter, folder: Path, lines: list[Line], *, step: int = 0) -> None:
    writer: Any = record.fn.resolve()(str(folder), step)
    for line in lines:
        writer.write(*line)
    writer.close()
