"""What a run directory says about its run. It loads no jax and changes nothing."""

import fcntl
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs

from axcore.config.json_files import parse_json, read_json_file
from axcore.resilience.event_log import SUPERVISOR, read_events
from axcore.resilience.ledger import read_ledger
from axcore.whole_files import open_regular, read_regular

_LOCK, _CONFIG, _METRICS = "axcore.lock", "config.json", "metrics.jsonl"
_STOPPED_EARLY = "stopped_early.json"
_HISTORY = "run_history.jsonl"
# A line of metrics is below a kilobyte; the end of the file has dozens.
_TAIL_BYTES = 1 << 16
_DEATHS = ("process_lost", "hang")


@attrs.frozen(kw_only=True)
class RunSummary:
    """The state of one run.

    Args:
        name: Of its directory, below the folder that was asked for.
        state: "running", "done" or "stopped".
        last_step: Of its newest metrics; None where it has none.
        max_steps: Of its config.
        goodput: Of its ledger; None where it has none.
        last_death: What last ended a process of it, as the supervisor reports it.
    """

    name: str
    state: str
    last_step: int | None
    max_steps: int | None
    goodput: float | None
    last_death: str | None


def find_runs(folder: Path) -> Iterator[Path]:
    """Yield the run directories at or directly below a folder, sorted."""
    # The lock is the first file of a run, and is never removed.
    if (folder / _LOCK).exists():
        yield folder
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if (path / _LOCK).exists():
            yield path


def summarise_run(directory: Path) -> RunSummary:
    """Return the state of the run in a directory."""
    step, most, ledger = _last_step(directory), _max_steps(directory), read_ledger(directory)
    is_done = step is not None and most is not None and step >= most
    is_done |= (directory / _STOPPED_EARLY).exists()
    state = "running" if _is_locked(directory / _LOCK) else "done" if is_done else "stopped"
    deaths = [one for one in read_events(directory).events if one["event"] in _DEATHS]
    return RunSummary(
        name=directory.name,
        state=state,
        last_step=step,
        max_steps=most,
        goodput=None if ledger is None else ledger.goodput,
        last_death=_sentence(deaths[-1]) if deaths else None,
    )


def story(directory: Path) -> list[str]:
    """Return what happened in a run, a line an event, and what is damaged of its log.

    A traceback, or the stacks of what hung, follow their event on lines of their own.
    """
    logged, lines = read_events(directory), []
    for one in logged.events:
        lines.append(f"{_clock(one['time'])}  {_sentence(one)}")
        lines += [f"    {line}" for line in str(one.get("details", "")).splitlines()]
    return [*lines, *logged.damaged]


def slow_parts(directory: Path) -> list[str]:
    """Return which processes and devices were named as slow, and when last, the newest first."""
    found: dict[str, Any] = {}
    for one in reversed(read_events(directory).events):
        if one["event"] in ("straggler", "slow_device"):
            device = f"device {one.get('device')} of " if one["event"] == "slow_device" else ""
            found.setdefault(f"{device}process {one.get('straggler')}", one.get("step"))
    return [f"{part} at step {step}" for part, step in found.items()]


def is_supervised(directory: Path) -> bool:
    """Whether a supervisor has written to the events of a run."""
    return any(one["process"] == SUPERVISOR for one in read_events(directory).events)


def starts(directory: Path) -> list[str]:
    """Return when a run started, and its state, for one that no supervisor watched."""
    path = directory / _HISTORY
    lines = read_regular(path).splitlines() if path.exists() else []
    found = [(_value(line, "time"), _value(line, "step")) for line in lines]
    if not found:
        return []
    one = summarise_run(directory)
    ends = {"done": "it is done", "running": "it is running"}
    end = ends.get(one.state, "it stopped, and the same command resumes it")
    return [
        *(f"{_clock(str(time))}  started at step {step}" for time, step in found),
        f"the newest metrics are of step {one.last_step or 0} of {one.max_steps}: {end}",
        "no supervisor watched it: why a process ended is only in what the process printed",
    ]


_SENTENCES = {
    "processes_started": "attempt {attempt}: processes {pids} started",
    "stepping": "all processes make steps, {seconds} s after their start, at step {step}",
    "process_lost": "process {lost_process} {what} at step {step} ({phase})",
    "hang": "process {lost_process} {what} at step {step} ({phase}); stacks: {stacks}",
    "straggler": "process {straggler} keeps the others waiting at step {step}: it spends {own_s} s "
    "a step on its host, the others {others_s} s",
    "slow_device": "device {device} ({kind}) of process {straggler} on {host} is slow at step "
    "{step}: it takes {ratio} times as long as the others for the probe of {program}",
    "left_out": "the run continues without process {left_out}, with {processes} in all",
    "restarting": "all processes start again",
    "leader_changed": "the leader was lost, and the agent of host {host} leads",
    "growing": "another host is there: the run saves, and continues on it, too",
    "supervision_ended": "the run ended with exit code {exit_code}",
    "environment_failed": "the environment failed in an episode of {prompt!r}: {error}",
    "reward_failed": "the reward {reward!r} failed for a completion of {prompt!r}: {error}",
}


def _sentence(event: Mapping[str, Any]) -> str:
    known = _SENTENCES.get(event["event"])
    if known is not None:
        try:
            reason = f": {event['reason']}" if "reason" in event else ""
            return known.format_map(event) + reason
        except KeyError:
            pass  # written by another version: it is shown as it is
    values = {name: event[name] for name in event if name not in ("time", "event")}
    return " ".join([event["event"], *(f"{name}={value}" for name, value in values.items())])


def _clock(time: str) -> str:
    try:
        return f"{datetime.fromisoformat(time):%Y-%m-%d %H:%M:%S}"
    except ValueError:
        return time


def _last_step(directory: Path) -> int | None:
    return _read_or_warn(directory / _METRICS, _step_of_last_line)


def _step_of_last_line(path: Path) -> int | None:
    with open_regular(path) as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        # From the end, passing over a line that is being written.
        for line in reversed(file.read().splitlines()):
            step = _value(line, "step")
            if isinstance(step, int):
                return step
    return None


def _max_steps(directory: Path) -> int | None:
    return _read_or_warn(directory / _CONFIG, lambda path: int(read_json_file(path)["max_steps"]))


def _read_or_warn(path: Path, read: Callable[[Path], int | None]) -> int | None:
    """Return what is read of a file; None where there is none, and with a warning if it is broken:
    a run that cannot be read does not hide the others."""
    try:
        return read(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else repr(error)
        warnings.warn(f"{path} cannot be read: {reason}", stacklevel=2)
        return None


def _value(text: bytes, name: str) -> Any:
    try:
        return parse_json(text)[name]
    except (ValueError, KeyError, TypeError):
        return None


def _is_locked(path: Path) -> bool:
    """Whether a live process of this machine trains there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO would make it wait
    except OSError:
        return False
    try:
        # Shared, so that looking does not itself look like training to somebody else.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks
    finally:
        os.close(descriptor)
    return False
