"""What a run was started with: versions, plugins, hardware, mesh, kernels, and its first batch.

run_history.jsonl    one JSON object a line for each start of the run
kernels.json         the newest start's kernel plan, with every reason
first_batch.npz      rows of each array that the first batch has a value a token in
"""

import os
import platform
import re
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from axcore.ops import KernelPlan
from axcore.plugins import plugin_host
from axcore.trainer.run_directory.code import RunCode, package_digest
from axcore.trainer.run_directory.json_lines import append_json_line, read_json_lines
from axcore.trainer.run_directory.origin import code_digest, renew_code
from axcore.whole_files import open_regular, whole_file, write_whole

RUN_HISTORY_NAME = "run_history.jsonl"
KERNELS_NAME = "kernels.json"
_COMPARED = ("python", "packages", "plugins", "flags", "hardware", "mesh", "kernels")


def record_run_start(
    directory: Path,
    *,
    step: int,
    changes: Sequence[str],
    hardware: str,
    mesh: str,
    plan: KernelPlan,
    code: RunCode,
    units: Mapping[str, str],
    is_step_kept: bool = False,
    init_from: str = "",
    data: str = "",
    edits: Sequence[tuple[str, str]] = (),
) -> None:
    """Append a start to the run's, and warn where it differs from the one before.

    Args:
        directory: The run directory.
        step: The step that the start resumes from.
        changes: How the config differs from that of the start before.
        hardware: The hardware's name.
        mesh: The mesh, as people read it.
        plan: The kernels that the step uses.
        code: The code that the config names; that of the start before is kept where it differs.
        units: Of metrics, by name, as the task says them.
        is_step_kept: Whether an attempt before had compiled the step.
        init_from: The config of the initial weights' source, with all edits; empty where there is
            none.
        data: What there is to train on, a line for people.
        edits: What changed the experiment's own config, in order: who did, and a diff.
    """
    now = {
        "step": step,
        "config_changes": list(changes),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": _package_versions(),
        "plugins": _plugin_versions(),
        "fingerprint": plugin_host().fingerprint(),
        "code": code_digest(code.files),
        "sources": _source_digests() | code.packages,
        "flags": os.environ.get("XLA_FLAGS", ""),
        "hardware": hardware,
        "mesh": mesh,
        "kernels": _kernel_names(plan),
        "is_step_kept": is_step_kept,
        "init_from": init_from.splitlines(),
        "data": data,
        "units": dict(units),
        "edits": [{"origin": origin, "lines": diff.splitlines()} for origin, diff in edits],
    }
    path = directory / RUN_HISTORY_NAME
    before = read_run_history(path)
    if before:
        _warn_of_changes(before[-1], now)
    sources = _changed_sources(before[-1], now) if before else []
    changes = [one for one in (renew_code(directory, code), *sources) if one]
    if changes and step:
        warnings.warn(
            f"the run resumes from step {step} with other code than before, so it may learn "
            "something else:\n" + "\n".join(changes),
            stacklevel=2,
        )
    append_json_line(path, now)
    write_whole(directory / KERNELS_NAME, f"{plan.to_json()}\n".encode())


def read_run_history(path: Path) -> list[dict[str, Any]]:
    """Return the starts of a run, oldest first; damaged lines are named in a warning."""
    return read_json_lines(path)


def describe_kernels(plan: KernelPlan) -> str:
    """Return a plan as one line: `attention portable, cross_entropy portable`."""
    return ", ".join(f"{op} {names}" for op, names in _kernel_names(plan).items())


def _kernel_names(plan: KernelPlan) -> dict[str, str]:
    names: dict[str, dict[str, None]] = {}
    for choice in plan.choices:
        names.setdefault(choice.call.op, {})[choice.kernel.name] = None
    return {op: " and ".join(found) for op, found in names.items()}


@cache
def _package_versions() -> dict[str, str]:
    """Return the versions of axcore, of what it needs at run time, and of jaxlib and numpy."""
    needed = [line for line in requires("axcore") or () if "extra ==" not in line]
    names = {match[0] for line in needed if (match := re.match(r"[\w.-]+", line))}
    return {name: _version(name) for name in sorted(names | {"axcore", "jaxlib", "numpy"})}


def _plugin_versions() -> dict[str, str]:
    return {
        plugin.name: str(plugin.candidate.version)
        for plugin in plugin_host().plugins()
        if plugin.state == "loaded"
    }


def _source_digests() -> dict[str, str]:
    """Return versions and digests of the sources of axcore and of each plugin."""
    modules = [one.candidate.module for one in plugin_host().plugins() if one.state == "loaded"]
    return {name: package_digest(name) for name in sorted({one.split(".")[0] for one in modules})}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _warn_of_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changes = [
        f"{name} was {old}, is {new}"
        for key in _COMPARED
        if key in before
        for name, old, new in _differences(key, before[key], now[key])
    ]
    if changes:
        warnings.warn(
            f"the run resumes from step {now['step']} with other software or hardware than "
            f"before, so its numbers may differ in the last bits: {'; '.join(changes)}",
            stacklevel=2,
        )


def _changed_sources(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return which packages have other sources; other versions are said by `_warn_of_changes`."""
    if "sources" not in before:
        return []
    differing = _differences("sources", before["sources"], now["sources"])
    told = {**now["packages"], **now["plugins"]}
    return [
        f"the sources of {name} were {old}, and are {new}"
        for name, old, new in differing
        if name not in told or str(old).split()[0] == str(new).split()[0]
    ]


def _differences(key: str, before: Any, now: Any) -> list[tuple[str, Any, Any]]:
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return [(key, before, now)] if before != now else []
    names = {**before, **now}
    values = [(name, before.get(name, "absent"), now.get(name, "absent")) for name in names]
    return [item for item in values if item[1] != item[2]]


FIRST_BATCH_NAME = "first_batch.npz"
_MAX_ROWS, _MAX_TOKENS = 8, 2048
"""How much of it is kept: rows, and tokens of each."""

_NEEDED = ("tokens", "targets", "positions", "loss_weights")


def keep_first_batch(directory: Path, batch: Any) -> None:
    """Keep some rows of a batch of packed text; of another batch nothing."""
    if not isinstance(batch, Mapping) or not set(_NEEDED) <= batch.keys():
        return
    kept = [name for name in (*_NEEDED, "segment_ids", "token_mask") if name in batch]
    rows = {name: np.asarray(batch[name])[:_MAX_ROWS, :_MAX_TOKENS] for name in kept}
    with whole_file(directory / FIRST_BATCH_NAME) as file:
        np.savez_compressed(file, allow_pickle=False, **rows)


def read_first_batch(directory: Path) -> dict[str, NDArray[Any]] | None:
    """Return the rows that were kept; None where none were.

    Raises:
        ValueError: The file is damaged.
    """
    path = directory / FIRST_BATCH_NAME
    if not path.exists():
        return None
    try:
        with open_regular(path) as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, EOFError, BadZipFile) as error:
        raise ValueError(f"the file is damaged: {error}") from error
