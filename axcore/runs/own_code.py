"""Bringing back the code that a run's config names."""

import ast
import importlib
import sys
import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from axcore.config import from_dict, trusting
from axcore.config.json_files import read_json_file
from axcore.errors import CheckpointError
from axcore.plugins import plugin_host
from axcore.trainer.run_directory.code import SCRIPT, definitions_of, diff_sources, package_digest
from axcore.trainer.run_directory.origin import CODE, EARLIER_CODE, is_signed
from axcore.trainer.run_directory.run_history import RUN_HISTORY_NAME, read_run_history


def read_run_config(run: Path, origin: Mapping[str, Any], *, trust_code: bool) -> Any:
    """Return the config of a run, its own code imported first.

    Raises:
        CheckpointError: The code was not recorded by this user and is not trusted, or cannot be
            imported.
        ConfigError: The config cannot be read.
    """
    file = run / "config.json"
    code = origin.get("code")
    renamed = _loaded(run, code, trust_code=trust_code) if code else {}
    modules = (*code["modules"], *renamed.values()) if code else ()
    plugin_host()  # files may name classes of a plugin only once it is loaded
    try:
        data = read_json_file(file)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"config.json cannot be read: {error}", where=str(file)) from error
    with trusting({module.partition(".")[0] for module in modules}):
        cfg = from_dict(_renamed(data, renamed), set_in=str(file))
    _warn_of_other_code(run, origin)
    return cfg


def _warn_of_other_code(run: Path, origin: Mapping[str, Any]) -> None:
    """Warn where the run computes with other code here than it was trained with."""
    code = origin.get("code") or {"files": {}, "script": None}
    trained, imported = {}, {}
    for place in code["files"]:
        copy = (run / CODE / place).resolve()
        module = place.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        file = getattr(sys.modules.get(module), "__file__", None)
        if place != code["script"] and file and Path(file).resolve() != copy:
            trained[place] = copy.read_text(encoding="utf-8")
            imported[place] = Path(file).read_text(encoding="utf-8")
    changes = [diff_sources(trained, imported)]
    changes += [
        f"{name} was {digest}, and is {package_digest(name)}"
        for name, digest in origin.get("packages", {}).items()
        if name in sys.modules and package_digest(name) != digest
    ]
    if text := "\n".join(one for one in changes if one):
        warnings.warn(
            f"{run} was trained with other code than is imported here, so it may compute something "
            f"else (before: the run's, now: what is imported):\n{text}",
            stacklevel=2,
        )


def warn_of_earlier_code(run: Path, step: int) -> None:
    """Warn where a checkpoint was trained with code that a later start of the run changed."""
    starts = [one for one in read_run_history(run / RUN_HISTORY_NAME) if "code" in one]
    before = [one["code"] for one in starts if one["step"] < step]
    if before and before[-1] != starts[-1]["code"]:
        warnings.warn(
            f"step {step} was trained with the code in {run / EARLIER_CODE / before[-1]}, which a "
            "later start changed; it is used with the newest code",
            stacklevel=2,
        )


def _loaded(run: Path, code: Mapping[str, Any], *, trust_code: bool) -> dict[str, str]:
    """Import a run's own code; return the new names of modules."""
    # A run directory may come from anybody, and importing is running. The signature is made with a
    # key of this user, so only what this user trained opens without a question.
    if not (trust_code or is_signed(code)):
        listed = ", ".join(f"{CODE}/{place}" for place in code["files"]) or ", ".join(
            code["modules"]
        )
        raise CheckpointError(
            f"opening the run would run code that came with it: {listed}",
            where=str(run),
            hint="read it, then give --trust-code, or load_run(..., trust_code=True); "
            "code of your own runs is recognised where you trained them",
        )
    folder = str((run / CODE).absolute())
    # First, so that the run's module wins over another of its name, and only while importing.
    sys.path.insert(0, folder)
    try:
        for module in code["modules"]:
            importlib.import_module(module)
        script = code["script"]
        return {} if script is None else {SCRIPT: _script_module(run / CODE / script, code)}
    except Exception as error:
        raise CheckpointError(
            f"the run's own code cannot be imported: {type(error).__name__}: {error}",
            where=folder,
            hint="install what it imports",
        ) from error
    finally:
        sys.path.remove(folder)


def _script_module(file: Path, code: Mapping[str, Any]) -> str:
    """Return the name of the module that contains what a script defined.

    That is the script that runs now, where it defines the same; otherwise the run's copy of it.
    """
    source = file.read_text(encoding="utf-8")
    if _is_running(source):
        return SCRIPT
    name = f"run_code_{code['files'][file.name][:16]}"
    if name not in sys.modules:
        module = types.ModuleType(name)
        module.__file__ = str(file.absolute())
        # Before it runs: dataclasses and pickles look up the module of a class while it is made.
        sys.modules[name] = module
        try:
            exec(compile(source, str(file), "exec"), module.__dict__)
        except BaseException:
            del sys.modules[name]
            raise
    return name


def _is_running(source: str) -> bool:
    """Whether the script of this process defines all that a source does, in the same words."""
    main = sys.modules[SCRIPT]
    file = getattr(main, "__file__", None)
    if file is None or not Path(file).is_file():
        return False
    names = [node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    is_defined = all(hasattr(main, name) for name in names)
    if not (names and is_defined):
        return False
    return definitions_of(Path(file).read_text(encoding="utf-8"), names) == source


def _renamed(data: Any, modules: Mapping[str, str]) -> Any:
    """Return plain data in which references name other modules."""
    if isinstance(data, list):
        return [_renamed(item, modules) for item in data]
    if not isinstance(data, dict):
        return data
    return {key: _reference(key, value, modules) for key, value in data.items()}


def _reference(key: str, value: Any, modules: Mapping[str, str]) -> Any:
    if key in ("type", "call", "function") and isinstance(value, str):
        module, colon, name = value.partition(":")
        return modules.get(module, module) + colon + name
    return _renamed(value, modules)
