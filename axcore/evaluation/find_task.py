"""`find_tasks`: tasks as users name them: those of plugins, YAML files and functions of files."""

import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from axcore.config import apply_overrides, evolve, field_names, is_config, suggest_names
from axcore.config.yaml_text import load_yaml
from axcore.errors import ConfigError
from axcore.evaluation.code_execution import CodeExecution
from axcore.evaluation.multiple_choice import MultipleChoice
from axcore.evaluation.perplexity import Perplexity
from axcore.evaluation.sample_file import SampleFile
from axcore.evaluation.scored_task import ScoredTask
from axcore.evaluation.written_answer import WrittenAnswer
from axcore.plugins import EvaluationTask, plugin_host

KINDS: dict[str, type[ScoredTask.Config]] = {
    "code_execution": CodeExecution.Config,
    "multiple_choice": MultipleChoice.Config,
    "perplexity": Perplexity.Config,
    "written_answer": WrittenAnswer.Config,
}
"""What the `kind` of a YAML file may be."""

_PYTHON = re.compile(r"(.+\.py):([A-Za-z_]\w*)")


def find_tasks(names: Iterable[str], overrides: Iterable[str] = ()) -> dict[str, ScoredTask.Config]:
    """Returns tasks by the names of their results.

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
    """Returns a task and the name of its results; see `find_tasks`."""
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
    """Returns the file that a YAML file names, relative to its own folder."""
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
