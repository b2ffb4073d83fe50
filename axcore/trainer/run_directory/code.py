"""The code that a run's config names, in addition to that of axcore.

A class of the script that trains is kept as the part of the script that defines it; a class of a
module that is not installed, as a copy of the module and of the modules next to it that it imports;
an installed package or plugin, by its name, version and a digest. `axcore.runs` brings it back.
"""

import __future__

import ast
import difflib
import functools
import hashlib
import symtable
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
    """Return the code that reading a config again needs.

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
        # A function's locals cannot be imported by whoever opens the run.
        if "<locals>" in name or _file_of(module) is None:
            raise _unreachable(cfg, reference)
        names.setdefault(module, set()).add(name.split(".")[0])
    named = {name: package_digest(name) for name in sorted(packages - {"axcore"})}
    return attrs.evolve(_gathered(names), packages=named)


@functools.cache
def package_digest(name: str) -> str:
    """Return a package's version, and a digest of its Python sources.

    A package that is installed to be edited keeps its version while its sources change.
    """
    # By its sources, as the version of an editable install says nothing.
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
    """Return a digest of each file of Python that this process has imported, by its module.

    Args:
        packages: Those that are looked at wherever they are installed. Of others, only what no
            distribution brought is: a script and the modules next to it, packages that are edited.
    """
    wanted, installed = frozenset(packages), _installation_folders()
    found = {}
    for name in sorted(sys.modules):
        file = _file_of(name)
        if file is None or file.suffix != ".py":
            continue
        # What no distribution installed may differ between hosts: somebody copied it there.
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
    """Return how files of code differ, as a unified diff of limited length; empty if equal."""
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
        # A script runs when it is imported, so what trains is left out of the copy.
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


# It is appended to while it is read, which a list allows: imports lead to further imports.
def _with_packages(todo: list[str]) -> Iterator[str]:
    """Yield modules, and the packages that they are in; the list may grow meanwhile."""
    for module in todo:
        parts = module.split(".")
        yield from (".".join(parts[:i]) for i in range(1, len(parts) + 1))


def _local_imports(source: str, package: str) -> list[str]:
    return sorted(name for name in _imported_modules(source, package) if _is_local(name))


def _references(data: Any) -> Iterator[tuple[str, str]]:
    """Yield every `module:name` of a config as plain data, with the key that it has there."""
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
    """Return where a module's source belongs below a folder that it is imported from."""
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


def definitions_of(source: str, names: Iterable[str]) -> str:
    """Return the top-level statements of a script that some of its names depend on.

    Beginning with the statements that bind `names`, every statement that binds a name which a
    chosen one refers to is chosen too, its imports among them. What only trains, prints or parses
    arguments is left out, as nothing that is chosen refers to it.
    """
    statements = ast.parse(source).body
    texts = [_text(source, statement) for statement in statements]
    used: list[set[str]] = []
    bound: list[set[str]] = []
    for text in texts:
        table = symtable.symtable(text, "<script>", "exec")
        bound.append({symbol.get_name() for symbol in table.get_symbols() if _binds(symbol)})
        used.append(_globals_of(table))
    # Features of `__future__` change how all of the file is compiled.
    wanted = {*names, *__future__.all_feature_names}
    chosen: set[int] = set()
    while True:
        more = {i for i, one in enumerate(bound) if one & wanted} - chosen
        if not more:
            return "\n\n".join(texts[i] for i in sorted(chosen)) + "\n"
        chosen |= more
        wanted |= {name for i in more for name in used[i]}


def _imported_modules(source: str, package: str = "") -> set[str]:
    """Return the modules that a source imports, or may import: `a.b` of `from a import b`.

    Args:
        source: The code.
        package: What relative imports begin at.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # Relative imports count from the package: one dot is the package itself.
            parts = package.split(".")[: 1 - node.level or None] if node.level else []
            module = ".".join([*parts, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def _text(source: str, statement: ast.stmt) -> str:
    """Return a statement as it is written, with its decorators."""
    first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])
    return "\n".join(source.splitlines()[first - 1 : statement.end_lineno])


def _binds(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()


def _globals_of(table: symtable.SymbolTable) -> set[str]:
    """Return the names that a piece of code may look up at the top level of its module."""
    is_function = table.get_type() == "function"
    own = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if (symbol.is_global() if is_function else symbol.is_referenced())
    }
    return own.union(*(_globals_of(child) for child in table.get_children()))
