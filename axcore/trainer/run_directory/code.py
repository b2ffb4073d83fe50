"""The code that a run's config names, beside that of axcore.

A class of the script that trains is kept as the part of the script that defines it; a class of a
module that is not installed, as a copy of the module and of the modules beside it that it imports;
an installed package or plugin, by its name, version and a digest. `axcore.runs` brings it back.
"""

import difflib
import functools
import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

import attrs

from axcore.config import class_tag, is_trusted, to_dict, walk
from axcore.config.values import is_config
from axcore.errors import ConfigError
from axcore.trainer.run_directory.definitions import definitions_of, imported_modules

SCRIPT = "__main__"
_SHOWN = 40


@attrs.frozen
class RunCode:
    """Code to keep with a run.

    Attributes:
        modules: What to import before the config is read.
        files: Sources by their path below the run's folder of code.
        script: Which of these files is what the script defines; None where nothing is of it.
        packages: Version and digest of each installed package that the config names, plugins too.
    """

    modules: tuple[str, ...] = ()
    files: dict[str, str] = attrs.field(factory=dict)
    script: str | None = None
    packages: dict[str, str] = attrs.field(factory=dict)


def find_code(cfg: Any) -> RunCode:
    """Returns the code that reading a config again needs.

    Raises:
        ConfigError: Something in the config could not be found again: it is defined within a
            function, or in an interactive session.
    """
    names: dict[str, set[str]] = {}
    packages: set[str] = set()
    for kind, reference in sorted(set(_references(to_dict(cfg)))):
        module, _, name = reference.partition(":")
        if not _is_local(module) and module != SCRIPT:
            packages.add(module.partition(".")[0])
        if is_trusted(module, functions=kind != "type"):
            continue
        if "<locals>" in name or _file_of(module) is None:
            raise _unreachable(cfg, reference)
        names.setdefault(module, set()).add(name.split(".")[0])
    named = {name: package_digest(name) for name in sorted(packages - {"axcore"})}
    return attrs.evolve(_gathered(names), packages=named)


@functools.cache
def package_digest(name: str) -> str:
    """Returns a package's version, and a digest of its Python sources.

    A package that is installed to be edited keeps its version while its sources change.
    """
    module = sys.modules[name]
    folders = [Path(one) for one in getattr(module, "__path__", ())]
    files = [(path.relative_to(one), path) for one in folders for path in one.rglob("*.py")]
    if not folders and (file := _file_of(name)) is not None:
        files = [(Path(file.name), file)]
    digest = hashlib.sha256()
    for place, path in sorted(files):
        digest.update(f"{place}\0".encode() + path.read_bytes() + b"\0")
    return f"{_version_of(name)} {digest.hexdigest()[:16]}"


def loaded_sources(packages: Iterable[str]) -> dict[str, str]:
    """Returns a digest of each file of Python that this process has imported, by its module.

    Args:
        packages: Those that are looked at wherever they are installed. Of others, only what no
            distribution brought is: a script and the modules beside it, packages that are edited.
    """
    wanted, installed = frozenset(packages), _installation_folders()
    found = {}
    for name in sorted(sys.modules):
        file = _file_of(name)
        if file is None or file.suffix != ".py":
            continue
        is_own = not any(file.is_relative_to(folder) for folder in installed)
        if is_own or name.partition(".")[0] in wanted:
            place = file.name if name == SCRIPT else _place(name)
            found[place] = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    return found


def _version_of(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        distributions = _distributions().get(name)
        return version(distributions[0]) if distributions else "unversioned"


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()  # reads what every package installed, for half a second


def diff_sources(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Returns how files of code differ, as a unified diff of limited length; empty if equal."""
    lines = [
        line.rstrip("\n")
        for place in sorted({**before, **now})
        for line in difflib.unified_diff(
            before.get(place, "").splitlines(),
            now.get(place, "").splitlines(),
            f"{place} before",
            f"{place} now",
            lineterm="",
            n=1,
        )
    ]
    more = len(lines) - _SHOWN
    return "\n".join([*lines[:_SHOWN], *([f"... and {more} more lines"] if more > 0 else [])])


def _gathered(names: dict[str, set[str]]) -> RunCode:
    files: dict[str, str] = {}
    script = None
    modules = [module for module in names if module != SCRIPT]
    todo = [module for module in modules if _is_local(module)]
    if SCRIPT in names:
        file = _file_of(SCRIPT)
        assert file is not None, "find_code refuses what has no file"
        script = file.with_suffix(".py").name
        files[script] = definitions_of(file.read_text(encoding="utf-8"), names[SCRIPT])
        todo += _local_imports(files[script], "")
    for module in _with_packages(todo):
        place, file = _place(module), _file_of(module)
        if place in files or file is None:
            continue
        files[place] = file.read_text(encoding="utf-8")
        is_package = hasattr(sys.modules[module], "__path__")
        todo += _local_imports(files[place], module if is_package else module.rpartition(".")[0])
    return RunCode(tuple(sorted(modules)), files, script)


def _with_packages(todo: list[str]) -> Iterator[str]:
    """Yields modules, and the packages that they are in; the list may grow meanwhile."""
    for module in todo:
        parts = module.split(".")
        yield from (".".join(parts[:i]) for i in range(1, len(parts) + 1))


def _local_imports(source: str, package: str) -> list[str]:
    return sorted(name for name in imported_modules(source, package) if _is_local(name))


def _references(data: Any) -> Iterator[tuple[str, str]]:
    """Yields every `module:name` of a config as plain data, with the key that it has there."""
    if isinstance(data, list):
        for item in data:
            yield from _references(item)
    elif isinstance(data, dict):
        for key, value in data.items():
            if key in ("type", "call", "function") and isinstance(value, str) and ":" in value:
                yield key, value
            else:
                yield from _references(value)


def _is_local(module: str) -> bool:
    """Whether a module was found as a file that no distribution installed."""
    file = _file_of(module)
    top = module.partition(".")[0]
    if file is None or is_trusted(module) or top in _distributions():
        return False
    return not any(file.is_relative_to(folder) for folder in _installation_folders())


@functools.cache
def _installation_folders() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple({Path(sysconfig.get_path(name)).resolve(): None for name in names})


def _file_of(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    path = Path(file).resolve() if file else None
    return path if path is not None and path.is_file() else None


def _place(module: str) -> str:
    """Returns where a module's source belongs below a folder that it is imported from."""
    is_package = hasattr(sys.modules[module], "__path__")
    return "/".join(module.split(".")) + ("/__init__.py" if is_package else ".py")


def _unreachable(cfg: Any, reference: str) -> ConfigError:
    module, _, name = reference.partition(":")
    is_main = module == SCRIPT
    where = [
        path for path, node in walk(cfg) if is_config(node) and class_tag(type(node)) == reference
    ]
    return ConfigError(
        f"{name} is defined in {'an interactive session' if is_main else module}, "
        "where nothing that opens the run later would find it",
        where=_formatted(where),
        hint="define it at the top level of a file, and import it from there",
    )


def _formatted(paths: Iterable[Any]) -> str:
    from axcore.config.paths import format_path

    return ", ".join(format_path(path) or "the root" for path in paths) or "the config"
