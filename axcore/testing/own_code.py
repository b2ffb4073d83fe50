"""The code of a test, found through names: what it defines, and what that uses of given modules.

Imports and files do not count, so that a definition may move, and its file may be merged with
another or be renamed, without a change of what is found.
"""

import ast
import copy
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_IMPORTS = (ast.Import, ast.ImportFrom)


def own_code(
    file: Path, modules: Mapping[str, Path], also: tuple[tuple[str, str], ...] = ()
) -> tuple[list[str], frozenset[Path]]:
    """Return the statements of a file with what they use of `modules`, and the files of those.

    Args:
        file: A program, all of whose statements count.
        modules: Other modules that count as far as they are used, by what they are imported as.
        also: Definitions that count, too: pairs of a module's name and a name in it.

    Returns:
        Statements without comments, docstrings and imports, sorted; the files that they are in.
    """
    found: dict[tuple[Path, str], None] = {}
    statements: set[str] = set()
    left: list[tuple[Path, str]] = [(file, name) for name in _parsed(file).defined]
    for node in _parsed(file).unnamed:
        statements.add(_text(node))
        left += _used(file, node, modules)
    for module, name in also:
        left += _home(module, name, modules)
    while left:
        at, name = left.pop()
        if (at, name) not in found:
            found[at, name] = None
            for node in _parsed(at).defined.get(name, ()):
                statements.add(_text(node))
                left += _used(at, node, modules)
    return sorted(statements), frozenset({file, *(at for at, _ in found)})


@attrs.frozen
class _Parsed:
    """A program: definitions by name, other statements, and what its imports bind."""

    defined: Mapping[str, list[ast.stmt]]
    unnamed: list[ast.stmt]
    imported: Mapping[str, tuple[str, str | None]]


def _parsed(file: Path) -> _Parsed:
    return _parse(file.read_text(encoding="utf-8"))


@functools.cache
def _parse(program: str) -> _Parsed:
    tree = ast.parse(program)
    defined: dict[str, list[ast.stmt]] = {}
    unnamed: list[ast.stmt] = []
    for node in tree.body:
        names = list(_names_of(node))
        for name in names:
            defined.setdefault(name, []).append(node)
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not names and not isinstance(node, _IMPORTS) and not is_docstring:
            unnamed.append(node)
    imported: dict[str, tuple[str, str | None]] = {}
    for inner in ast.walk(tree):
        if isinstance(inner, ast.Import):
            for alias in inner.names:
                imported[alias.asname or alias.name.partition(".")[0]] = (alias.name, None)
        elif isinstance(inner, ast.ImportFrom) and inner.module:
            for alias in inner.names:
                imported[alias.asname or alias.name] = (inner.module, alias.name)
    return _Parsed(defined, unnamed, imported)


def _names_of(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (one.id for one in targets if isinstance(one, ast.Name))


def _used(file: Path, node: ast.stmt, modules: Mapping[str, Path]) -> Iterator[tuple[Path, str]]:
    """Yield the definitions that a statement names, in its own file and in `modules`."""
    parsed = _parsed(file)
    attributes: dict[str, set[str]] = {}
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name):
            attributes.setdefault(one.value.id, set()).add(one.attr)
    for one in ast.walk(node):
        if not isinstance(one, ast.Name):
            continue
        if one.id in parsed.defined:
            yield file, one.id
        elif one.id in parsed.imported:
            module, name = parsed.imported[one.id]
            if name is not None:
                yield from _home(module, name, modules)
                module = f"{module}.{name}"  # which is a module, or names nothing in `modules`
            for attribute in attributes.get(one.id, ()):
                yield from _home(module, attribute, modules)


def _home(module: str, name: str, modules: Mapping[str, Path]) -> Iterator[tuple[Path, str]]:
    """Yield where a name is defined that a module has, perhaps by import from another."""
    if module in modules:
        parsed = _parsed(modules[module])
        if name in parsed.defined:
            yield modules[module], name
        elif name in parsed.imported:
            further, original = parsed.imported[name]
            if original is not None and (further, original) != (module, name):
                yield from _home(further, original, modules)


def drop_docstrings(tree: ast.AST) -> None:
    """Take the docstrings out of a program, which has no comments once it is parsed."""
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]


def _text(node: ast.stmt) -> str:
    tree = copy.deepcopy(node)
    drop_docstrings(tree)
    for one in ast.walk(tree):
        if isinstance(body := getattr(one, "body", None), list):
            body[:] = [each for each in body if not isinstance(each, _IMPORTS)]
    return ast.unparse(tree)
