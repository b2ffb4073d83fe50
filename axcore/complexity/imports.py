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
"""Packages, or modules of others, that put features together: models that have them, experiments,
and what measures or lists them."""


def modules_that_import(implementation: Iterable[str]) -> tuple[str, ...]:
    """Return the modules outside of a feature's own ones that import it, by name.

    They are looked for in the feature's package, in every file but those that only re-export
    (`__init__`) and those of `MAY_NAME_FEATURES`. A name that a package re-exports counts as an
    import of the module that defines it.

    Where a feature owns a part of a module, the rest of that module counts as another one.

    Args:
        implementation: The feature's own modules, `axcore.layers.moe.experts` for example, or names
            in one, `axcore.layers.attention.rope:RoPE`.

    Raises:
        ComplexityError: One of them is not there.
    """
    own = frozenset(implementation)
    modules = {one.partition(":")[0] for one in own}
    packages = {module.split(".")[0] for module in modules}
    missing = sorted(one for one in own if not _is_there(*one.partition(":")[::2]))
    if missing:
        raise ComplexityError(
            f"a feature names its modules {', '.join(missing)}, which are not there",
            hint="name the modules that implement it, each as package.module",
        )
    return tuple(
        module
        for package in sorted(filter(None, map(_folder, packages)))
        for module, file in _modules(package)
        if module not in own and not _may_name_features(module) and _knows(module, file, own)
    )


def _is_there(module: str, name: str) -> bool:
    file = _file_of(module)
    return file is not None and (not name or name in _definitions(file))


@functools.cache
def _definitions(file: Path) -> dict[str, ast.stmt]:
    """Return the classes and functions of a file by name."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return {node.name: node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}


def _knows(module: str, file: Path, own: frozenset[str]) -> bool:
    """Return whether a module uses what a feature owns, in what the feature does not own of it."""
    parts = {one.partition(":")[2] for one in own if one.startswith(f"{module}:")}
    if not parts:
        return bool(own & _imported(file))
    names = {one.partition(":")[2] for one in own} - {""}
    others = (node for name, node in _definitions(file).items() if name not in parts)
    return any(
        isinstance(node, ast.Name) and node.id in names for one in others for node in ast.walk(one)
    )


@functools.cache
def _folder(package: str) -> Path | None:
    """Return the folder of a package that is installed; finds it without importing it."""
    spec = importlib.util.find_spec(package)
    found = spec.submodule_search_locations if spec is not None else None
    return Path(found[0]) if found else None


def _file_of(module: str) -> Path | None:
    """Return the file of a module; imports neither it nor the packages that it is in."""
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
    _, package, *inner = module.split(".")
    return package in MAY_NAME_FEATURES or inner[-1:] in (["experiments"], ["features"])


@functools.cache
def _imported(file: Path) -> frozenset[str]:
    """Return what a file imports, as `module` and `module:name`, traced through re-exports."""
    return frozenset(_imports(ast.parse(file.read_text(encoding="utf-8"))))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                source = _source_of(node.module, alias.name)
                yield from (source, f"{source}:{alias.name}")


@functools.cache
def _source_of(module: str, name: str) -> str:
    """Return the module that a name comes from, one re-export further down."""
    file = _file_of(module)
    if file is None or file.name != "__init__.py":
        return module
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return node.module or module
    return module if _file_of(f"{module}.{name}") is None else f"{module}.{name}"
