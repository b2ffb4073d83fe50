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
        implementation: The feature's own modules, `axcore.layers.moe` for example.

    Raises:
        ComplexityError: One of them is not there.
    """
    own = frozenset(implementation)
    packages = {_folder(module.split(".")[0]) for module in own}
    missing = sorted(module for module in own if importlib.util.find_spec(module) is None)
    if missing:
        raise ComplexityError(
            f"a feature names its modules {', '.join(missing)}, which are not there",
            mend="name the modules that implement it, each as package.module",
        )
    return tuple(
        module
        for package in sorted(packages)
        for module, file in _modules(package)
        if module not in own and not _may_name_features(module) and own & _imported(file)
    )


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ComplexityError(f"there is no package {package!r}", mend="install it")
    return Path(spec.origin).parent


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


def _source_of(module: str, name: str) -> str:
    """Returns the module that a name comes from, one re-export further down."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith("__init__.py"):
        return module
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return node.module or module
    return f"{module}.{name}" if importlib.util.find_spec(f"{module}.{name}") else module
