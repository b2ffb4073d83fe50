"""What files import: a walk through imports, and through strings that name modules."""

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path


def imported_files(roots: Iterable[Path], modules: Mapping[str, Path]) -> frozenset[Path]:
    """Return the roots and what they import, directly or not, among `modules`."""
    found: set[Path] = set()
    left = list(roots)
    while left:
        file = left.pop()
        if file not in found:
            found.add(file)
            named = imports_of(file.read_text(encoding="utf-8"))
            left += [modules[name] for name in named if name in modules]
    return frozenset(found)


@functools.cache
def imports_of(program: str) -> frozenset[str]:
    """Return the modules that a program names in imports, and in strings as references do."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value.partition(":")[0])
    return frozenset(names)


def steps_of(file: Path, folder: Path) -> Iterator[str]:
    """Return the steps of a file's module below a folder's."""
    for step in file.relative_to(folder).with_suffix("").parts:
        if step != "__init__":
            yield step
