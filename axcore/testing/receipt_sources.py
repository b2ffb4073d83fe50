"""The code that a receipt of compilation is of, found through imports and through names.

A kernel is compiled with the files that it imports, and those of `axcore.ops` that its op needs:
`imported_files`, `op_files`. A test's own code is what its file defines, and what that uses of
given modules: `own_code`. There imports and files do not count, so that a definition may move, and
its file may be merged with another or be renamed, without a change of what is found.
"""

import ast
import copy
import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import attrs

import axcore
from axcore.plugins import Kernel, Ref, plugin_host

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


OPS = Path(axcore.__file__).parent / "ops"


def op_files(kernel: Kernel, kernel_files: Iterable[Path]) -> frozenset[Path]:
    """Return the files of the op, and what they and the kernel's own files import of `axcore.ops`.

    Args:
        kernel: The kernel.
        kernel_files: Its files in its plugin.
    """
    folders = _op_folders(kernel.op)
    if not folders:
        return frozenset(OPS.rglob("*.py"))
    modules = _modules()
    programs = [file for file in kernel_files if file.suffix == ".py"]
    named = {name for file in programs for name in imports_of(file.read_text(encoding="utf-8"))}
    roots = [file for folder in folders for file in folder.rglob("*.py")]
    roots += [modules[name] for name in named if name in modules]
    return imported_files(roots, modules)


def _op_folders(op: str) -> set[Path]:
    """Return the folders that the core's own kernels of an op are in."""
    targets = {
        value.target
        for one in plugin_host().records(Kernel)
        if one.op == op
        for value in attrs.asdict(one, recurse=False).values()
        if isinstance(value, Ref)
    }
    steps = [target.partition(":")[0].split(".") for target in targets]
    return {OPS / step[2] for step in steps if step[:2] == ["axcore", "ops"] and len(step) > 3}


@functools.cache
def _modules() -> Mapping[str, Path]:
    """Return the modules of all ops, by what they are imported as.

    `axcore.ops` is left out, since it imports every op; a name that is exported there is mapped to
    the module that it is from.
    """
    modules = {
        ".".join(("axcore", "ops", *steps_of(file, OPS))): file for file in OPS.rglob("*.py")
    }
    face = ast.parse(modules.pop("axcore.ops").read_text(encoding="utf-8"))
    exported = {
        f"axcore.ops.{alias.name}": node.module
        for node in ast.walk(face)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return modules | {
        name: modules[module] for name, module in exported.items() if module in modules
    }
