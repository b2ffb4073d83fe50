"""Evaluate a model: find tasks by name or file, run them, and write their results."""

import contextlib
import hashlib
import importlib.util
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import jax
import numpy as np
from jax.sharding import PartitionSpec

from axcore.checkpoint.lock import FileLock
from axcore.config import (
    REQUIRED,
    apply_overrides,
    digest,
    evolve,
    field_names,
    is_config,
    suggest_names,
)
from axcore.config.json_files import read_json
from axcore.config.yaml_text import load_yaml
from axcore.errors import ConfigError, DataError
from axcore.evaluation.questions import LanguageModel
from axcore.evaluation.samples import SampleFile
from axcore.evaluation.scored_task import ScoredTask
from axcore.evaluation.task_run import ANSWER_S, RESTART, TaskResult, TaskRun
from axcore.evaluation.tasks import CodeExecution, MultipleChoice, Perplexity, WrittenAnswer
from axcore.interop.array_source import LazyArray
from axcore.plugins import EvaluationTask, plugin_host
from axcore.whole_files import write_whole

_MODEL_NAME = "model.json"
_LOOKED_AT = 1024


@attrs.frozen(kw_only=True)
class ModelIdentity:
    """Which model gave the answers in a directory.

    Args:
        name: Of its directory; does not matter.
        step: The checkpoint; None of a pretrained checkpoint.
        weights: What distinguishes its weights from others.
    """

    name: str
    step: int | None
    weights: str


def identity_of(name: str, step: int | None, state: Any) -> ModelIdentity:
    """Return the identity of a model, from up to 1024 numbers of each of its arrays."""
    found = hashlib.blake2b(digest_size=16)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        found.update(f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}".encode())
        for array in _arrays(leaf):
            flat = array.reshape(-1)
            found.update(_on_host(flat[:: max(1, flat.size // _LOOKED_AT)]).tobytes())
    return ModelIdentity(name=name, step=step, weights=found.hexdigest())


def _on_host(array: Any) -> np.ndarray:
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        # Parts are in other processes, all of which are here.
        sharding: Any = array.sharding
        everywhere = PartitionSpec()  # type: ignore[no-untyped-call]
        array = jax.device_put(array, sharding.update(spec=everywhere))
    return np.asarray(array)


def _arrays(leaf: Any) -> Iterator[Any]:
    """Yield an array, or those that are stacked in one that is still in its file."""
    if not isinstance(leaf, LazyArray):
        yield leaf
        return
    stacked = leaf.reshape(-1, *leaf.origins[0].shape)
    # One by one: all layers of a large model do not fit into the host's memory.
    for place in range(len(leaf.origins)):
        yield stacked[place : place + 1]


def evaluate_tasks(
    tasks: Mapping[str, ScoredTask.Config],
    model: LanguageModel,
    identity: ModelIdentity,
    directory: Path | str,
    *,
    restarts: bool = False,
    timeout_s: float = ANSWER_S,
    report: Callable[[TaskResult], None] = lambda _: None,
) -> dict[str, TaskResult]:
    """Return what each task found; samples that were answered before are not asked again.

    Args:
        tasks: By name.
        model: What is asked.
        identity: Which model that is.
        directory: Where results are kept; made where it is absent.
        restarts: Whether what is kept there of these tasks is dropped first.
        timeout_s: Seconds after which an answer is given up.
        report: Is called with each result.

    Raises:
        DataError: The directory has answers of another model or to another task, or a task has no
            sample that counts.
        CheckpointError: Another process writes to the directory.
    """
    check_tasks(tasks)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    # Two evaluations would append to the same files, line between line.
    lock = FileLock(folder / "lock", doing="keeping answers")
    with contextlib.ExitStack() as stack:
        stack.callback(lock.release)
        # All of them first: what is wrong with the last task shows before the first is asked.
        runs = [TaskRun(name, cfg, folder, timeout_s=timeout_s) for name, cfg in tasks.items()]
        if restarts:
            _forget(folder, tasks)
        _check_is_same(folder, tasks, identity)
        found = {}
        for run in runs:
            found[run.name] = run.run(model)
            report(found[run.name])
    return found


def check_tasks(tasks: Mapping[str, ScoredTask.Config]) -> None:
    """Check what can be known of tasks without a model: that there are samples to ask.

    Raises:
        ConfigError: A task lacks the path of its samples.
        DataError: The samples cannot be read, or there are too few of them.
    """
    for name, cfg in tasks.items():
        for part in ("samples", "shots"):
            _check_is_set(f"{name}.{part}", getattr(cfg, part))
        task = cfg.build()
        if next(iter(task.samples()), None) is None:
            raise DataError("the task has no samples", where=name)
        task.solved()


def _check_is_set(where: str, source: Any) -> None:
    missing = (
        [one for one in field_names(source) if getattr(source, one) is REQUIRED] if source else []
    )
    if missing:
        name, path = where.partition(".")[0], f"{where}.{missing[0]}"
        is_path = where.endswith(".samples") and missing == ["path"]
        hint = f"--tasks {name}:FILE, or --set {path}=FILE" if is_path else f"--set {path}=..."
        raise ConfigError(f"{missing[0]} is not set", where=path, hint=hint)


def _forget(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        for ending in ("json", "samples.jsonl", "bad.jsonl"):
            (folder / f"{name}.{ending}").unlink(missing_ok=True)
    if not list(folder.glob("*.samples.jsonl")):
        (folder / _MODEL_NAME).unlink(missing_ok=True)


def _check_is_same(
    folder: Path, tasks: Mapping[str, ScoredTask.Config], identity: ModelIdentity
) -> None:
    """Refuse to mix answers, and keep whose they are."""
    file = folder / _MODEL_NAME
    kept = read_json(file, _MODEL_NAME, error=DataError) if file.exists() else {"tasks": {}}
    if kept.get("weights", identity.weights) != identity.weights:
        step = kept.get("step")
        shown = kept.get("name", "?") + ("" if step is None else f" of step {step}")
        raise DataError(
            f"the answers there are of another model: {shown}", where=str(folder), hint=RESTART
        )
    digests = {name: _task_digest(cfg) for name, cfg in tasks.items()}
    for name, one in digests.items():
        file_of = folder / f"{name}.samples.jsonl"
        has_answers = file_of.exists() and file_of.stat().st_size > 0
        if has_answers and kept["tasks"].get(name) != one:
            raise DataError(
                f"the answers there are to another {name}: its config was changed",
                where=str(folder),
                hint=RESTART,
            )
    whole = {**attrs.asdict(identity), "tasks": {**kept["tasks"], **digests}}
    write_whole(file, json.dumps(whole, indent=1) + "\n")


def _task_digest(cfg: ScoredTask.Config) -> str:
    """Return what distinguishes a task from others; how many samples are asked does not matter."""
    return str(digest(evolve(cfg, limit=None)))


def directory_of(name: str, run: Path | None, step: int | None) -> Path:
    """Return where results are kept unless another directory is named."""
    return Path("evaluation") / name if run is None else run / "evaluation" / str(step)


KINDS: dict[str, type[ScoredTask.Config]] = {
    "code_execution": CodeExecution.Config,
    "multiple_choice": MultipleChoice.Config,
    "perplexity": Perplexity.Config,
    "written_answer": WrittenAnswer.Config,
}
"""What the `kind` of a YAML file may be."""

_PYTHON = re.compile(r"(.+\.py):([A-Za-z_]\w*)")


def find_tasks(names: Iterable[str], overrides: Iterable[str] = ()) -> dict[str, ScoredTask.Config]:
    """Return tasks by the names of their results.

    Args:
        names: Each is one or several with commas between them: `NAME` or `NAME:PATH` of a task that
            a plugin or the core brings, PATH being the file of its samples; `FILE.yaml`; or
            `FILE.py:FUNCTION`, which runs the file.
        overrides: `TASK.PATH=VALUE`, as `arithmetic.num_shots=3`.

    Raises:
        ConfigError: There is no such task, two have one name, or a value does not fit.
    """
    found: dict[str, ScoredTask.Config] = {}
    for text in (part.strip() for one in names for part in one.split(",")):
        name, cfg = find_task(text)
        if name in found:
            raise ConfigError(f"two tasks are named {name!r}", where="--tasks")
        found[name] = cfg
    for override in overrides:
        name, dot, rest = override.partition(".")
        if name not in found or not dot:
            raise ConfigError(
                f"{override!r} sets nothing of a task; {suggest_names(name, found)}",
                where="--set",
                hint="--set TASK.PATH=VALUE, as arithmetic.num_shots=3",
            )
        found[name] = apply_overrides(found[name], (rest,))
    return found


def find_task(text: str) -> tuple[str, ScoredTask.Config]:
    """Return a task and the name of its results; see `find_tasks`."""
    python = _PYTHON.fullmatch(text)
    if python:
        return python[2], _from_python(Path(python[1]), python[2])
    if text.endswith((".yaml", ".yml")):
        return Path(text).stem, _from_yaml(Path(text))
    name, _, path = text.partition(":")
    known = {one.name: one for one in plugin_host().records(EvaluationTask)}
    if name not in known:
        raise ConfigError(
            f"there is no task {name!r}; {suggest_names(name, known)}",
            where="--tasks",
            hint="or name a file: capitals.yaml, or tasks.py:capitals",
        )
    cfg = known[name].call("config", returns=ScoredTask.Config)
    if not path:
        return name, cfg
    if "path" not in field_names(cfg.samples):
        raise ConfigError(f"{name} reads no file", where=f"--tasks {text}")
    return name, evolve(cfg, samples=evolve(cfg.samples, path=path))


def _from_yaml(path: Path) -> ScoredTask.Config:
    where = str(path)
    try:
        values = load_yaml(path.read_text(encoding="utf-8"), where)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the task cannot be read: {error}", where=where) from None
    kind = values.get("kind") if isinstance(values, dict) else None
    if kind not in KINDS:
        raise ConfigError(
            f"kind is {kind!r}; {suggest_names(str(kind), KINDS)}",
            where=where,
            hint="kind: multiple_choice",
        )
    cls, rest = KINDS[kind], {key: value for key, value in values.items() if key != "kind"}
    unknown = next((key for key in rest if key not in field_names(cls)), None)
    if unknown is not None:
        raise ConfigError(
            f"{kind} has no {unknown!r}; {suggest_names(unknown, field_names(cls))}", where=where
        )
    for key in ("samples", "shots"):
        if key in rest:
            rest[key] = _file(path.parent, rest[key], f"{where}: {key}")
    return cls(**rest)


def _file(folder: Path, value: Any, where: str) -> SampleFile.Config:
    """Return the file that a YAML file names, relative to its own folder."""
    if not isinstance(value, str):
        raise ConfigError(f"it is {value!r:.60}; expected the path of a file", where=where)
    return SampleFile.Config(path=str(folder / Path(value).expanduser()))


def _from_python(path: Path, name: str) -> ScoredTask.Config:
    if not path.is_file():
        raise ConfigError("there is no such file", where=str(path))
    spec = importlib.util.spec_from_file_location(f"axcore_task_{path.stem}", path)
    assert spec is not None, "it ends in .py"
    assert spec.loader is not None, "it is a source file"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        known = suggest_names(name, [one for one in vars(module) if not one.startswith("_")])
        raise ConfigError(f"there is no function {name!r}; {known}", where=str(path))
    cfg = function()
    if not (is_config(cfg) and isinstance(cfg, ScoredTask.Config)):
        raise ConfigError(
            f"{name} returns {cfg!r:.60}; expected the config of a task", where=str(path)
        )
    return cfg
