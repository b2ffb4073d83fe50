"""`evaluate_tasks`: tasks, one after the other, of one model in one directory of results."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
import jax
import numpy as np

from axcore.checkpoint.lock import FileLock
from axcore.config import REQUIRED, digest, evolve, field_names
from axcore.config.json_files import read_json
from axcore.errors import ConfigError, DataError
from axcore.evaluation.kept_answers import RESTART
from axcore.evaluation.questions import LanguageModel
from axcore.evaluation.scored_task import ScoredTask
from axcore.evaluation.task_run import ANSWER_S, TaskResult, TaskRun
from axcore.whole_files import write_whole

MODEL_NAME = "model.json"
_LOOKED_AT = 1024


@attrs.frozen(kw_only=True)
class ModelIdentity:
    """Which model gave the answers in a directory.

    Args:
        name: Of its directory; does not matter.
        step: The checkpoint; None of a published model.
        weights: What distinguishes its weights from others.
    """

    name: str
    step: int | None
    weights: str


def identity_of(name: str, step: int | None, state: Any) -> ModelIdentity:
    """Returns the identity of a model, from up to 1024 numbers of each of its arrays."""
    found = hashlib.blake2b(digest_size=16)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        flat = leaf.reshape(-1)
        some = np.asarray(flat[:: max(1, flat.size // _LOOKED_AT)])
        found.update(f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}".encode())
        found.update(some.tobytes())
    return ModelIdentity(name=name, step=step, weights=found.hexdigest())


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
    """Returns what each task found; samples that were answered before are not asked again.

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
    lock = FileLock(folder / "lock", doing="keeping answers")
    with contextlib.ExitStack() as stack:
        stack.callback(lock.release)
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
    """Checks what can be known of tasks without a model: that there are samples to ask.

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
        (folder / MODEL_NAME).unlink(missing_ok=True)


def _check_is_same(
    folder: Path, tasks: Mapping[str, ScoredTask.Config], identity: ModelIdentity
) -> None:
    """Refuses to mix answers, and keeps whose they are."""
    file = folder / MODEL_NAME
    kept = read_json(file, MODEL_NAME, error=DataError) if file.exists() else {"tasks": {}}
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
    """Returns what distinguishes a task from others; how many samples are asked does not matter."""
    return str(digest(evolve(cfg, limit=None)))


def directory_of(name: str, run: Path | None, step: int | None) -> Path:
    """Returns where results are kept unless another directory is named."""
    return Path("evaluation") / name if run is None else run / "evaluation" / str(step)
