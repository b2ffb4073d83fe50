"""Sweeps: one experiment trained for every combination of some settings, a run directory for each.

A sweep is a folder: `sweep.json` says what is varied, and each trial is an ordinary run next to it,
so that `axcore runs`, `axcore report` and `axcore evaluate` work on them as on any run.
"""

import itertools
import json
import math
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import attrs

from axcore.config.json_files import read_json_file
from axcore.errors import ConfigError
from axcore.launch.children import StopRequests, describe_exit
from axcore.resilience.run_summary import summarise_run
from axcore.runs.run import read_metrics
from axcore.whole_files import write_whole

SWEEP_NAME = "sweep.json"
_RANGE = re.compile(r"([^.,:\s][^,:\s]*?)\.\.([^,:\s]+):(\d+)")
_POLL_S = 0.1
# Files of systems have names of at most 255 bytes.
_MAX_NAME = 120
# An error has at most four.
_TAIL_LINES = 4
_BESIDE = re.compile(r"[^A-Za-z0-9_.+-]+")


@attrs.frozen
class Axis:
    """What is varied along one dimension of a sweep.

    Args:
        option: The option of `axcore train` that takes a value: `--set` or `--modify`.
        path: The config path that is set; empty for modifiers.
        values: Texts, as the option takes them.
    """

    option: Literal["--set", "--modify"]
    path: str
    values: tuple[str, ...]

    def arguments(self, value: str) -> tuple[str, ...]:
        """Return the arguments of `axcore train` for one value."""
        if self.option == "--modify":
            return ("--modify", value) if value != "none" else ()
        return ("--set", f"{self.path}={value}")


@attrs.frozen
class Trial:
    """One combination of values.

    Args:
        name: Of its run directory.
        values: One of each axis.
    """

    name: str
    values: tuple[str, ...]


@attrs.frozen
class Result:
    """What one trial came to.

    Args:
        trial: The trial.
        state: "not started", "running", "done", or "stopped", which includes failed.
        step: Of the newest metrics.
        value: The metric at its last step; None where it has none.
    """

    trial: Trial
    state: str
    step: int | None
    value: float | None


@attrs.frozen(kw_only=True)
class Sweep:
    """An experiment and what is varied of it.

    Args:
        directory: Its folder.
        experiment: A name or a config file.
        arguments: Those of `axcore train` that all trials share.
        axes: What is varied.
        max_trials: How many of all combinations are tried, drawn at random; None tries all.
        seed: Of that draw.
        engine: The engine of `axcore launch` and its options; empty trains on this machine.
    """

    directory: Path
    experiment: str
    arguments: tuple[str, ...]
    axes: tuple[Axis, ...]
    max_trials: int | None = None
    seed: int = 0
    engine: tuple[str, ...] = ()

    def trials(self) -> list[Trial]:
        """Return the combinations, the last axis varied fastest.

        Raises:
            ConfigError: A setting is varied twice, or is also set for all.
        """
        self._check_axes()
        labels = _labels(self.axes)
        found = [
            Trial(_name(labels, values), values)
            for values in itertools.product(*(axis.values for axis in self.axes))
        ]
        if len({trial.name for trial in found}) < len(found):
            raise ConfigError(
                "two combinations would have one run directory",
                where="--over",
                hint="list each value once",
            )
        if self.max_trials is None or self.max_trials >= len(found):
            return found
        chosen = random.Random(self.seed).sample(range(len(found)), self.max_trials)
        return [found[index] for index in sorted(chosen)]

    def _check_axes(self) -> None:
        # The later one would win, so that trials of other names would be of the same settings.
        paths = [axis.path for axis in self.axes]
        fixed = [text.partition("=")[0] for text in self.arguments if "=" in text]
        for path in paths:
            if path and (paths.count(path) > 1 or path in fixed):
                raise ConfigError(
                    f"{path} is {'varied twice' if paths.count(path) > 1 else 'varied and set'}",
                    where="--over",
                    hint="name it once; --seeds varies seed",
                )

    def varied(self, trial: Trial) -> list[str]:
        """Return the arguments of `axcore train` that a trial has of its own."""
        return [
            argument
            for axis, value in zip(self.axes, trial.values, strict=True)
            for argument in axis.arguments(value)
        ]

    def training(self, trial: Trial) -> list[str]:
        """Return the arguments of `axcore train` for a trial."""
        directory = str(self.directory / trial.name)
        return [self.experiment, "--dir", directory, *self.arguments, *self.varied(trial)]

    def command(self, trial: Trial) -> list[str]:
        """Return the arguments of `axcore` that train a trial, or give it to the engine."""
        if not self.engine:
            return ["train", *self.training(trial)]
        return ["launch", *self.engine, "--submit", "--name", trial.name, *self.training(trial)]

    def submission(self, trial: Trial) -> Path:
        """Return the file that says that an engine has a trial."""
        return self.directory / f"{trial.name}.submitted"

    def log(self, trial: Trial) -> Path:
        """Return the file of what the command of a trial printed, next to its run directory."""
        return self.directory / f"{trial.name}.log"

    def check_folder(self, config: str) -> dict[str, Any]:
        """Return what `sweep.json` is to say.

        Axes may change from one call to the next: their trials are added. What all trials share
        may not, or the folder would hold runs that cannot be compared.

        Args:
            config: A digest of the experiment's config, which code may change.

        Raises:
            ConfigError: The folder has a sweep of another experiment or other settings, or a run
                that has the name of a trial and is another one.
        """
        path = self.directory / SWEEP_NAME
        shared: dict[str, Any] = {
            "experiment": self.experiment,
            "arguments": list(self.arguments),
            "config": config,
        }
        before: dict[str, Any] = read_json_file(path) if path.exists() else shared
        trials = {trial.name: self.varied(trial) for trial in self.trials()}
        there = before.get("trials", {})
        differing = [key for key in shared if before.get(key) != shared[key]]
        named = [name for name in trials if there.get(name, trials[name]) != trials[name]]
        if differing or named:
            raise ConfigError(
                "; ".join(
                    [
                        *(
                            f"{key} of the sweep in this folder is {before.get(key)!r}, and now "
                            f"{shared[key]!r}"
                            for key in differing
                        ),
                        *(f"{one} was trained with {there[one]}" for one in named[:3]),
                    ]
                ),
                where=str(path),
                hint="give another --dir; more values of --over may be added to this one",
            )
        return {**shared, "trials": {**there, **trials}}

    def save(self, config: str) -> None:
        """Write what the sweep is to its folder; raises as `check_folder` does."""
        said = self.check_folder(config)
        self.directory.mkdir(parents=True, exist_ok=True)
        write_whole(self.directory / SWEEP_NAME, json.dumps(said, indent=2) + "\n")

    def results(self, metric: str) -> list[Result]:
        """Return what each trial came to.

        Args:
            metric: `split/name` of `metrics.jsonl`, such as `validation/loss`.
        """
        return [_result(trial, self.directory / trial.name, metric) for trial in self.trials()]


def parse_axis(text: str) -> Axis:
    """Return the axis of `PATH=V1,V2,...` or `PATH=LOW..HIGH:N`, N values at equal ratios.

    Raises:
        ConfigError: It is neither.
    """
    path, equals, values = text.partition("=")
    if not path or not equals or not values:
        raise ConfigError(
            f"{text!r} names no values",
            where="--over",
            hint="write PATH=V1,V2,... or PATH=LOW..HIGH:N, as in data.batch_size=8..64:4",
        )
    spaced = _RANGE.fullmatch(values)
    return Axis("--set", path, _spaced(text, spaced) if spaced else _split(text, values))


def _spaced(text: str, found: re.Match[str]) -> tuple[str, ...]:
    low, high, count = found[1], found[2], int(found[3])
    try:
        first, last = float(low), float(high)
    except ValueError:
        first = last = 0.0
    if not 0 < first < last < math.inf or count < 2:
        raise ConfigError(
            f"{text!r} is not a range; LOW and HIGH are numbers above 0, and N is 2 or more",
            where="--over",
            hint="write learner.schedule.peak=1e-4..1e-2:5",
        )
    ratio = (last / first) ** (1 / (count - 1))
    between = [first * ratio**index for index in range(1, count - 1)]
    is_whole = low.isdigit() and high.isdigit()  # sizes and counts are whole numbers
    shown = [str(round(value)) if is_whole else f"{value:.3g}" for value in between]
    return tuple(dict.fromkeys((low, *shown, high)))


def _split(text: str, values: str) -> tuple[str, ...]:
    """Return the parts between commas that are in no brackets and no quotes."""
    parts, depth, quote = [""], 0, ""
    for character in values:
        if character in "'\"" and quote in ("", character):
            quote = "" if quote else character
        depth += 0 if quote else (character in "([{") - (character in ")]}")
        if character == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += character
    if any(not part.strip() for part in parts):
        raise ConfigError(
            f"{text!r} has an empty value", where="--over", hint="write PATH=V1,V2,..."
        )
    return tuple(part.strip() for part in parts)


def _labels(axes: Sequence[Axis]) -> list[str]:
    """Return a short name for each axis: the last part of its path that no other axis ends with."""
    paths = [axis.path.split(".") if axis.path else ["modify"] for axis in axes]

    def label(path: list[str]) -> str:
        for size in range(1, len(path) + 1):
            if sum(other[-size:] == path[-size:] for other in paths) == 1:
                return ".".join(path[-size:])
        return ".".join(path)

    return [label(path) for path in paths]


def _name(labels: Sequence[str], values: Sequence[str]) -> str:
    # Commas and brackets would have to be quoted in a shell, where these folders are named a lot.
    pairs = zip(labels, values, strict=True)
    name = "_".join(_BESIDE.sub("-", f"{label}-{value}").strip("-") for label, value in pairs)
    if len(name) <= _MAX_NAME:
        return name
    digest = blake2b(repr([*labels, *values]).encode(), digest_size=6).hexdigest()
    return f"{name[:_MAX_NAME]}-{digest}"


def _result(trial: Trial, directory: Path, metric: str) -> Result:
    if not (directory / "axcore.lock").exists():
        return Result(trial, "not started", None, None)
    summary = summarise_run(directory)
    split, _, name = metric.partition("/")
    found = read_metrics(directory / "metrics.jsonl").get(split, {}).get(name)
    value = None if found is None or not len(found) else float(found[-1])
    return Result(trial, summary.state, summary.last_step, value)


class _Running:
    """The command of a trial in a process of its own; what it prints goes to a file."""

    def __init__(self, sweep: Sweep, trial: Trial) -> None:
        self.trial, self.began = trial, time.monotonic()
        self.log = sweep.log(trial)
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "axcore", *sweep.command(trial)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                # Ctrl-C goes to the sweep, which passes it on once.
                start_new_session=True,
            )

    def exit_code(self) -> int | None:
        return self._process.poll()

    def send(self, number: int) -> None:
        self._process.send_signal(number)


def run_trials(
    sweep: Sweep, *, num_jobs: int, report: Callable[[Trial, str, float], Any]
) -> list[Trial]:
    """Train the trials that are not done, or submit them, and return those that failed.

    Ctrl-C and SIGTERM go to the trials, which save and stop; no other is started then.

    Args:
        sweep: What to train.
        num_jobs: Trials at a time.
        report: Called with a trial, what happened, and the seconds that it took.

    Raises:
        KeyboardInterrupt: It was asked to stop, after all trials have.
    """
    left = [
        one.trial for one in sweep.results("train/loss") if one.state not in ("done", "running")
    ]
    if sweep.engine:
        for trial in left:
            if (queued := sweep.submission(trial)).exists():
                report(trial, f"was submitted before; delete {queued} to submit it again", 0.0)
        left = [trial for trial in left if not sweep.submission(trial).exists()]
    waiting = iter(left)
    running: list[_Running] = []
    failed: list[Trial] = []
    with StopRequests() as stops:
        while True:
            fresh = () if stops.count else itertools.islice(waiting, num_jobs - len(running))
            running += [_started(sweep, trial, report) for trial in fresh]
            stops.reach(running)  # type: ignore[arg-type]
            if not running:
                break
            time.sleep(_POLL_S)
            for one in [one for one in running if one.exit_code() is not None]:
                running.remove(one)
                code = one.exit_code() or 0
                if code and not stops.count:
                    failed.append(one.trial)
                ended = "submitted" if sweep.engine else "done"
                what = f"{describe_exit(code)}; see {one.log}{_tail(one.log)}" if code else ended
                if sweep.engine and not code:
                    sweep.submission(one.trial).touch()
                report(one.trial, what, time.monotonic() - one.began)
        if stops.count:
            raise KeyboardInterrupt
    return failed


def _tail(log: Path) -> str:
    """Return the last lines of a log, in which an error says what to do, each on a new line."""
    lines = log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
    return "".join(f"\n{line}" for line in lines)


def _started(sweep: Sweep, trial: Trial, report: Callable[[Trial, str, float], Any]) -> _Running:
    report(trial, "started", 0.0)
    return _Running(sweep, trial)


@attrs.frozen
class Group:
    """Trials that differ in their seed alone.

    Args:
        values: Of the axes but that of the seed.
        results: Of the trials.
    """

    values: tuple[str, ...]
    results: tuple[Result, ...]

    @property
    def mean(self) -> float | None:
        """The mean of what the trials came to; None until all are done."""
        found = self._found()
        return statistics.fmean(found) if found else None

    @property
    def standard_error(self) -> float | None:
        """The standard error of the mean over seeds; None of one, or where one is not finite."""
        found = self._found()
        if len(found) < 2 or not all(map(math.isfinite, found)):
            return None
        error: float = statistics.stdev(found) / len(found) ** 0.5
        return error

    @property
    def state(self) -> str:
        """The states of the trials, each with how many have it."""
        states = [one.state for one in self.results]
        if len(states) == 1:
            return states[0]
        return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))

    def _found(self) -> list[float]:
        # A trial that has just begun has a higher loss than one at its end.
        if any(one.state != "done" for one in self.results):
            return []
        return [one.value for one in self.results if one.value is not None]


def grouped(sweep: Sweep, results: Sequence[Result], *, is_better_higher: bool) -> list[Group]:
    """Return results by all axes but seeds, the best first, and those without a value last."""
    kept = [index for index, axis in enumerate(sweep.axes) if not is_seed(axis)]
    by_values: dict[tuple[str, ...], list[Result]] = {}
    for one in results:
        by_values.setdefault(tuple(one.trial.values[index] for index in kept), []).append(one)
    groups = [Group(values, tuple(found)) for values, found in by_values.items()]

    def rank(group: Group) -> tuple[int, float]:
        mean = group.mean
        if mean is None or math.isnan(mean):
            return (1, 0.0)
        return (0, -mean if is_better_higher else mean)

    return sorted(groups, key=rank)


def group_labels(sweep: Sweep) -> Iterator[str]:
    """Yield short names of the axes that groups have."""
    labels = _labels(sweep.axes)
    yield from (label for label, axis in zip(labels, sweep.axes, strict=True) if not is_seed(axis))


def is_seed(axis: Axis) -> bool:
    """Return whether an axis varies a seed, over which results are averaged."""
    return axis.path.rsplit(".", 1)[-1] == "seed"
