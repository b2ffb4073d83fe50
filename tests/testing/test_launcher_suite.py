"""The suite of launchers finds those that lose words, and processes that do not find each other."""

import itertools

import pytest

from axcore.config import config
from axcore.launch import Job, Launcher, ProcessInfo
from axcore.plugins import JobLauncher, Ref
from axcore.testing import LauncherSuite

_calls = itertools.count()


@config
class LosesArguments(Launcher):
    def render(self, job: Job) -> str:
        return f"{job.name} {job.processes} {' '.join(job.command[:3])}\n"


@config
class SaysWhen(Launcher):
    def render(self, job: Job) -> str:
        return f"{next(_calls)} {job.shell_line}\n"


@config
class ForgetsTheNumber(Launcher):
    def render(self, job: Job) -> str:
        return f"{job.name} {job.shell_line}\n"


@pytest.mark.parametrize(
    ("launcher", "test"),
    [
        (LosesArguments(), "test_render_tells_runs_apart"),
        (ForgetsTheNumber(), "test_render_tells_runs_apart"),
        (SaysWhen(), "test_render_is_the_same_each_time_and_ends_a_line"),
    ],
    ids=lambda value: getattr(type(value), "__name__", None),
)
def test_a_launcher_that_renders_badly_is_found(launcher, test):
    with pytest.raises(AssertionError):
        getattr(LauncherSuite(), test)(launcher)


class ThreeRanks(LauncherSuite):
    def environments(self, record):
        for rank in range(3):
            yield {"RANK": str(rank)}


def place(environment, *, coordinator="host:1", index=None):
    rank = int(environment.get("RANK", "0"))
    return ProcessInfo(
        coordinator=coordinator.format(rank),
        process_count=3,
        process_index=rank if index is None else index,
        source="test",
    )


def changing(environment):
    found = place(environment)
    environment["SEEN"] = "1"
    return found


@pytest.mark.parametrize(
    ("read", "test"),
    [
        (lambda env: place(env, coordinator="host-{}:1"), "test_each_process_finds_its_place"),
        (lambda env: place(env, index=0), "test_each_process_finds_its_place"),
        (lambda env: place(env, coordinator="host:99999"), "test_each_process_finds_its_place"),
        (place, "test_process_that_the_engine_did_not_start_is_alone"),
        (changing, "test_reading_the_place_changes_nothing"),
    ],
)
def test_a_place_that_is_read_badly_is_found(monkeypatch, read, test):
    target = Ref("bad:place")
    record = JobLauncher(name="bad", config=target, process_info=target, summary="")
    monkeypatch.setattr(Ref, "resolve", lambda _: read)
    with pytest.raises((AssertionError, ValueError)):
        getattr(ThreeRanks(), test)(record)
