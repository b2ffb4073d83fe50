"""Which existing modules know a feature: found by reading their imports, without running them."""

import ast
import functools
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path

from axcore.errors import ComplexityError

MAY_NAME_FEATURES = frozenset(
    {"models", "experiments", "features", "complexity", "testing", "cli", "plugin"}
)
"""Rooms that put features together: models that have them, and what measures or lists them."""


def modules_that_import(implementation: Iterable[str]) -> tuple[str, ...]:
    """Returns the modules outside of a feature's own ones that import it, by name.

    They are looked for in the feature's package, in every file but those that only re-export
    (`__init__`) and those of `MAY_NAME_FEATURES`. A name that a package re-exports counts as an
    import of the module that defines it.

    Args:
        implementation: The feature's own modules, `axcore.layers.moe.layer` for example.

    Raises:
        ComplexityError: One of them is not there.
    """
    own = frozenset(implementation)
    packages = {module.split(".")[0] for module in own}
    missing = sorted(module for module in own if _file_of(module) is None)
    if missing:
        raise ComplexityError(
            f"a feature names its modules {', '.join(missing)}, which are not there",
            hint="name the modules that implement it, each as package.module",
        )
    return tuple(
        module
        for package in sorted(filter(None, map(_folder, packages)))
        for module, file in _modules(package)
        if module not in own and not _may_name_features(module) and own & _imported(file)
    )


@functools.cache
def _folder(package: str) -> Path | None:
    """Returns the folder of a package that is installed; finds it without importing it."""
    spec = importlib.util.find_spec(package)
    found = spec.submodule_search_locations if spec is not None else None
    return Path(found[0]) if found else None


def _file_of(module: str) -> Path | None:
    """Returns the file of a module; imports neither it nor the packages that it is in."""
    package, *steps = module.split(".")
    folder = _folder(package)
    if folder is None:
        return None
    path = folder.joinpath(*steps)
    files = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in files if file.is_file()), None)


def _modules(package: Path) -> Iterator[tuple[str, Path]]:
    for file in sorted(package.rglob("*.py")):
        if file.name != "__init__.py":
            yield ".".join((package.name, *file.relative_to(package).with_suffix("").parts)), file


def _may_name_features(module: str) -> bool:
    return module.split(".")[1] in MAY_NAME_FEATURES


@functools.cache
def _imported(file: Path) -> frozenset[str]:
    """Returns the modules that a file imports from, re-exported names traced to their source."""
    return frozenset(_imports(ast.parse(file.read_text(encoding="utf-8"))))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield _source_of(node.module, alias.name)


@functools.cache
def _source_of(module: str, name: str) -> str:
    """Returns the module that a name comes from, one re-export further down."""
    file = _file_of(module)
    if file is None or file.name != "__init__.py":
        return module
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return node.module or module
    return module if _file_of(f"{module}.{name}") is None else f"{module}.{name}"
