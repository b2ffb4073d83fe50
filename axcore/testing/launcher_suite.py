"""`LauncherSuite`: an engine is given the full run, and the processes of it find each other."""

import os
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

from axcore.config import from_json, to_json
from axcore.errors import AxcoreError
from axcore.plugins import JobLauncher
from axcore.registration import Record
from axcore.testing.suite import Suite

_ARGUMENTS = ("tiny", "--dir", "/runs/a run", "--set", "prompt=a b")


class LauncherSuite(Suite):
    """Proves launchers: `class TestLaunchers(LauncherSuite): plugin = "axl-acme"`."""

    kind: ClassVar[type[Record]] = JobLauncher

    def make(self, record: JobLauncher) -> Any:
        """Return the config of a launcher that takes jobs.

        Override where the config has fields to fill in.
        """
        return record.config.resolve()()

    def environments(self, record: JobLauncher) -> Iterator[Mapping[str, str]]:
        """Yield what the engine sets in each of 3 processes of a run, in their order.

        Override where the record names `process_info`; the tests of it are skipped otherwise.
        """
        pytest.skip(f"override environments() to say what {record.name} sets in processes")

    @pytest.fixture
    def launcher(self, record: JobLauncher) -> Any:
        """The launcher to test."""
        return self.make(record)

    def test_config_is_saved_and_read_back(self, launcher: Any) -> None:
        """So that it can be written to a file."""
        assert from_json(to_json(launcher)) == launcher

    def test_render_is_the_same_each_time_and_ends_a_line(self, launcher: Any) -> None:
        """It contains neither time nor chance, so that people can keep it and compare."""
        texts = {_render(launcher, 3) for _ in range(2)}
        assert len(texts) == 1
        assert texts.pop().endswith("\n")

    def test_render_tells_runs_apart(self, launcher: Any) -> None:
        """Number of processes, name and every word of the command are in it."""
        assert _render(launcher, 2) != _render(launcher, 3)
        assert launcher.is_local or _render(launcher, 2) != _render(launcher, 2, name="other")
        text = _render(launcher, 2)
        for word in ("axcore", "train", *_ARGUMENTS):
            for part in word.split():
                assert part in text, f"{part} is lost"

    def test_job_without_processes_is_refused(self, launcher: Any) -> None:
        """Before the engine is asked."""
        with pytest.raises(AxcoreError, match="0 processes"):
            _render(launcher, 0)

    def test_each_process_finds_its_place(self, record: JobLauncher) -> None:
        """All agree on coordinator and number, and each has its own index, in order."""
        read = _place_of(record)
        places = [read(environment) for environment in self.environments(record)]
        assert [place.process_index for place in places] == [0, 1, 2]
        assert {place.process_count for place in places} == {3}
        (coordinator,) = {place.coordinator for place in places}
        host, _, port = coordinator.rpartition(":")
        assert host
        assert 0 < int(port) < 1 << 16

    def test_process_that_the_engine_did_not_start_is_alone(self, record: JobLauncher) -> None:
        """Nothing is read into an environment that says nothing."""
        assert _place_of(record)({}) is None

    def test_reading_the_place_changes_nothing(self, record: JobLauncher) -> None:
        """Neither what it is given nor the variables of this process."""
        read, before = _place_of(record), dict(os.environ)
        for environment in self.environments(record):
            given = dict(environment)
            read(given)
            assert given == dict(environment)
        assert dict(os.environ) == before


def _render(launcher: Any, processes: int, *, name: str = "suite") -> str:
    from axcore.launch import Job

    job = Job.training(_ARGUMENTS, processes=processes, name=name)
    launcher.check(job)
    return str(launcher.render(job))


def _place_of(record: JobLauncher) -> Any:
    if record.process_info is None:
        pytest.skip(f"{record.name} identifies processes by flags or their variables")
    return record.process_info.resolve()
