"""What a report shows of a run: read from its directory, while it trains or after.

What cannot be read is named among `problems`, and the rest is shown: a report is wanted most where
something went wrong.
"""

import functools
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from jax.sharding import AbstractMesh

from axcore.aot.out_of_memory import MEMORY_NAME
from axcore.aot.report.report import LargeBuffer, Memory
from axcore.config import find_config, render_config
from axcore.config.json_files import read_json_file
from axcore.data import Mixture
from axcore.errors import AxcoreError, CheckpointError
from axcore.parallel import (
    MESH_AXES,
    bytes_per_device,
    describe_sharding,
    mesh_sizes,
)
from axcore.plugins import Hardware
from axcore.profiles import read_profile, recorded_profiles
from axcore.profiles.capture import PROFILE_NAME
from axcore.report.page import packed_batch_content
from axcore.resilience.ledger import read_ledger
from axcore.resilience.run_summary import slow_parts, story, summarise_run
from axcore.runs.run import Metrics, Run, read_metrics
from axcore.runs.text_samples import SAMPLES_NAME, read_samples
from axcore.trainer.run_directory.json_lines import read_json_lines
from axcore.trainer.run_directory.run_history import (
    FIRST_BATCH_NAME,
    KERNELS_NAME,
    RUN_HISTORY_NAME,
    read_first_batch,
)
from axcore.trainer.shardings import state_shardings
from axcore.trainer.step import TrainStep
from axcore.whole_files import read_regular

SAMPLE_NAME, ROLLBACKS_NAME = "sample.txt", "rollbacks.jsonl"


@attrs.frozen(kw_only=True)
class RunFacts:
    """What is known of a run; every value can be written as JSON.

    Args:
        name: Of its directory.
        directory: Where it is.
        state: "running", "done" or "stopped".
        step: Of its newest metrics, and `max_steps` of its config.
        curves: By split and name: a value for each line of the split, None where it is not finite
            or missing; `step` with them, and of training `tokens` and `seconds` so far.
        seconds: Of the run so far, by what they were spent on.
        goodput: Which part of them made progress.
        config: Its lines, path and value, defaults folded away.
        starts: What each start was made with, the oldest first.
        rollbacks: Each return to an older checkpoint, and why.
        story: What a supervisor saw, a line an event.
        slow: Which processes and devices were named as slow, the newest first.
        kernels: Which kernel serves each call, and why.
        sample: Text generated at the end.
        samples: Text generated at evaluations, by step.
        problems: What could not be read, and why.
        arrays: Of each parameter: path, shape, split of each dimension, bytes per device.
        mesh: Number of devices along each axis with more than one.
        memory: Bytes per device by kind.
        step_memory: What the compiled step needs of a device, its largest buffers among it.
        num_params: Of the model.
        batch: Some rows of the first batch, as the picture of a packed batch has them.
        mixture: From which step on the sources of its data have which shares.
        evaluations: What tasks found at which steps.
        profile: What the time of the newest recorded steps went to, if any were.
    """

    name: str
    directory: str
    state: str
    step: int | None
    max_steps: int | None
    curves: dict[str, dict[str, list[float | None]]]
    seconds: dict[str, float]
    goodput: float | None
    config: list[str]
    starts: list[dict[str, Any]]
    rollbacks: list[dict[str, Any]]
    story: list[str]
    slow: list[str]
    kernels: list[dict[str, Any]]
    sample: str | None
    samples: list[dict[str, Any]]
    problems: list[str]
    arrays: list[dict[str, Any]] = attrs.field(factory=list)
    mesh: dict[str, int] = attrs.field(factory=dict)
    memory: dict[str, int] = attrs.field(factory=dict)
    step_memory: dict[str, Any] | None = None
    num_params: int | None = None
    batch: dict[str, Any] | None = None
    mixture: list[dict[str, Any]] = attrs.field(factory=list)
    evaluations: list[dict[str, Any]] = attrs.field(factory=list)
    profile: dict[str, Any] | None = None


def run_facts(directory: Path | str, *, trust_code: bool = False) -> RunFacts:
    """Return what is known of a run.

    Args:
        directory: What training was given as its directory.
        trust_code: As `Run` takes it; without it, a run of another user whose model needs code that
            came with it is shown without its parameters, and the reason is among the problems.

    Raises:
        CheckpointError: Not a run directory.
    """
    folder = Path(directory)
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            "not a run directory: it has no config.json",
            where=str(directory),
            hint="name a directory that training made, such as runs/tiny",
        )
    problems = _Problems()
    with problems.noted():
        summary = summarise_run(folder)
        ledger = read_ledger(folder)
    starts, rollbacks = (
        problems.or_none(name, functools.partial(read_json_lines, folder / name)) or []
        for name in (RUN_HISTORY_NAME, ROLLBACKS_NAME)
    )
    metrics = problems.or_none("metrics.jsonl", lambda: read_metrics(folder / "metrics.jsonl"))
    read_layout = lambda: _layout_of(folder, starts, trust_code)  # noqa: E731
    layout = problems.or_none("the model", read_layout) or {}
    config_text = problems.or_none("config.txt", lambda: _text(folder / "config.txt"))
    read_newest = lambda: _profile(folder, trust_code)  # noqa: E731
    return RunFacts(
        name=folder.resolve().name,
        directory=str(directory),
        state=summary.state,
        step=summary.last_step,
        max_steps=summary.max_steps,
        curves=_curves(metrics or {}),
        seconds={} if ledger is None else dict(ledger.as_dict()["seconds"]),
        goodput=None if ledger is None else ledger.goodput,
        config=layout.pop("config", None) or (config_text or "").splitlines(),
        starts=starts,
        rollbacks=rollbacks,
        story=story(folder),
        slow=slow_parts(folder),
        kernels=problems.or_none(KERNELS_NAME, lambda: _kernels(folder)) or [],
        samples=problems.or_none(SAMPLES_NAME, lambda: read_samples(folder)) or [],
        sample=problems.or_none(SAMPLE_NAME, lambda: _text(folder / SAMPLE_NAME)),
        step_memory=problems.or_none(MEMORY_NAME, lambda: _step_memory_facts(folder)),
        profile=problems.or_none("the newest profile", read_newest),
        batch=problems.or_none(FIRST_BATCH_NAME, lambda: first_batch(folder, trust_code)),
        evaluations=problems.or_none(_EVALUATION_FOLDER, lambda: evaluations(folder)) or [],
        **layout,
        problems=list(dict.fromkeys(problems.found)),
    )


class _Problems:
    """What went wrong while reading, warnings among it."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def or_none(self, what: str, read: Callable[[], Any]) -> Any:
        """Return what is read, or None with a problem noted."""
        try:
            with self.noted():
                return read()
        except (AxcoreError, OSError, ValueError, KeyError, TypeError) as error:
            self.found.append(f"{what}: {error}")
            return None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is warned of."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        self.found += [str(one.message) for one in caught]


def _profile(folder: Path, trust_code: bool) -> dict[str, Any] | None:
    recordings = recorded_profiles(folder)
    if not recordings:
        return None
    written = (recordings[-1] / PROFILE_NAME).stat().st_mtime_ns
    return dict(_read_profile(recordings[-1], trust_code, written))


@functools.lru_cache(maxsize=64)
def _read_profile(recording: Path, trust_code: bool, written: int) -> dict[str, Any]:
    """Read a recording; `written` is when it was, as one of the same steps may take its place."""
    model = Run(recording.parent.parent, trust_code=trust_code).config.model.build()
    return attrs.asdict(read_profile(recording, model))


def _text(path: Path) -> str | None:
    return read_regular(path).decode("utf-8") if path.exists() else None


def _kernels(folder: Path) -> list[dict[str, Any]]:
    path = folder / KERNELS_NAME
    found: list[dict[str, Any]] = read_json_file(path) if path.exists() else []
    return found


def _curves(metrics: Metrics) -> dict[str, dict[str, list[float | None]]]:
    """Return metrics as lists; training gets tokens and seconds so far, validation those of its
    steps."""
    curves = {
        split: {k: np.asarray(v, float) for k, v in found.items()}
        for split, found in metrics.items()
    }
    train = curves.get("train")
    if train and {"tokens_per_s", "step_time_s", "wall_clock_tokens_per_s"} <= train.keys():
        steps = np.diff(train["step"], prepend=0.0)
        tokens = np.nan_to_num(train["tokens_per_s"] * train["step_time_s"] * steps)
        speed = np.maximum(np.nan_to_num(train["wall_clock_tokens_per_s"]), 1e-9)
        train["tokens"] = np.cumsum(tokens)
        train["seconds"] = np.cumsum(np.where(tokens > 0, tokens / speed, 0))
        for split, found in curves.items():
            if split != "train":
                for name in ("tokens", "seconds"):
                    found[name] = np.interp(found["step"], train["step"], train[name])
    return {
        split: {name: [_finite(one) for one in values] for name, values in found.items()}
        for split, found in curves.items()
    }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _layout_of(folder: Path, starts: list[dict[str, Any]], trust_code: bool) -> dict[str, Any]:
    """Return what the config says about arrays and devices, as the newest start had them."""
    written = (folder / "config.json").stat().st_mtime_ns
    hardware = str(starts[-1]["hardware"]) if starts else "cpu-1"
    return dict(_layout(str(folder), hardware, trust_code, written))


@functools.lru_cache(maxsize=64)
def _layout(folder: str, hardware: str, trust_code: bool, written: int) -> dict[str, Any]:
    """Build the model; `written` is when the config was, since what watches a run asks often."""
    cfg = Run(folder, trust_code=trust_code).config
    devices = Hardware.parse(hardware).num_devices
    mesh = AbstractMesh(mesh_sizes(cfg.mesh or {}, devices, slices=cfg.slices), MESH_AXES)
    step = TrainStep(cfg.model.build(), cfg.learner.build(total_steps=cfg.max_steps))
    state = step.abstract_state()
    split = state_shardings(cfg, step.specs, state, mesh)
    arrays = describe_sharding(step.specs, split.model)
    return {
        "config": render_config(cfg).splitlines(),
        "arrays": [attrs.asdict(array) for array in arrays],
        "mesh": {name: size for name, size in mesh.shape.items() if size > 1},
        "memory": {
            "parameters": bytes_per_device(state.model, split.model),
            "optimizer state": bytes_per_device(state.opt_state, split.opt_state),
        },
        "mixture": mixture_shares(cfg),
        "num_params": sum(math.prod(array.shape) for array in arrays),
    }


def first_batch(folder: Path, trust_code: bool) -> dict[str, Any] | None:
    """Return some rows of a run's first batch, as the picture of a packed batch has them.

    None where the run kept none: its batches are not of packed text, or it made no step.
    """
    path = folder / FIRST_BATCH_NAME
    if not path.exists():
        return None
    return dict(_read(folder, trust_code, path.stat().st_mtime_ns))


@functools.lru_cache(maxsize=64)
def _read(folder: Path, trust_code: bool, written: int) -> dict[str, Any]:
    rows = read_first_batch(folder)
    cfg: Any = Run(folder, trust_code=trust_code).opened_config
    tokenizer = cfg.data.build().tokenizer
    shown = len(rows["tokens"]) if rows else 0
    title = f"{shown} of {cfg.data.batch_size} rows of the first step"
    return packed_batch_content(rows, tokenizer, title=title) if rows else {}


def mixture_shares(cfg: Any) -> list[dict[str, Any]]:
    """Return from which step on a config's sources have which shares; empty of one source."""
    mixtures = [one for _, one in find_config(cfg.data, Mixture.Config)]
    return [
        {"step": step, "over_steps": over, "shares": _shares(weights)}
        for one in mixtures[:1]
        for step, over, weights in (
            (0, 0, one.weights),
            *((new.from_step, new.over_steps, new.weights) for new in one.changes),
        )
    ]


def _shares(weights: Any) -> dict[str, float]:
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items() if weight}


def _step_memory_facts(folder: Path) -> dict[str, Any] | None:
    """Return what the step of a run's newest start needs; None where no start has kept it.

    Raises:
        ValueError: The file is damaged.
    """
    path = folder / MEMORY_NAME
    if not path.exists():
        return None
    try:
        found = read_json_file(path)
        largest = tuple(LargeBuffer(**one) for one in found.pop("largest"))
        return attrs.asdict(Memory(**found, largest=largest))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from error


_EVALUATION_FOLDER = "evaluation"


def evaluations(folder: Path) -> list[dict[str, Any]]:
    """Return the results of each task and step, the oldest step first.

    Raises:
        ValueError: A file is not a result.
    """
    files = (folder / _EVALUATION_FOLDER).glob("*/*.json")
    steps = [file for file in files if file.parent.name.isdecimal() and file.name != "model.json"]
    found = [_result(file) for file in steps]
    return sorted(found, key=lambda one: (one["step"], one["task"]))


def _result(file: Path) -> dict[str, Any]:
    try:
        found = read_json_file(file)
        metrics = {
            name: {key: one[key] for key in ("value", "standard_error")}
            for name, one in found["metrics"].items()
        }
        return {
            "step": int(file.parent.name),
            "task": str(found["task"]),
            "num_samples": int(found["num_samples"]),
            "metrics": metrics,
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{file} is not a result of an evaluation: {type(error).__name__}: {error}"
        ) from error
