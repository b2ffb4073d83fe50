"""The linter of kernel files: a subset of Python that both of NKI's compilers take, and calls that
the table of signatures knows.

NKI to 0.6 compiled kernels itself, from a subset of Python; from 0.7 on it runs them as Python to
trace them. Kernels keep to what means the same in both: functions, constants, `for` over
`range`, `if` on static values, assignments and calls. Whether a value is static cannot be seen
here; the simulator refuses to branch on what is known on the chip only.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

from axl_trainium.signatures import (
    ISA,
    ISA_NAMES,
    LANGUAGE,
    LANGUAGE_NAMES,
    TENSOR,
    TENSOR_ATTRIBUTES,
    PublicName,
)

BUILTINS = frozenset({"float", "int", "len", "max", "min", "range"})

SDK_MODULE = "axl_trainium.sdk"
SDK_NAMES = frozenset({"nisa", "nki", "nl"})
KERNELS_PACKAGE = "axl_trainium.kernels"

_STATEMENTS = (ast.FunctionDef, ast.Return, ast.Assign, ast.AugAssign, ast.For, ast.If, ast.Expr)
_EXPRESSIONS = (
    *(ast.Call, ast.Name, ast.Attribute, ast.Constant, ast.Tuple, ast.List, ast.keyword),
    *(ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.IfExp, ast.Subscript, ast.Slice),
    *(ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.expr_context, ast.arguments, ast.arg),
)
_HINTS = {
    "While": "write a for over range(), or nl.fori_loop",
    "Lambda": "name the function with def",
    "ListComp": "write the loop out",
    "Assert": "refuse the call in the kernel's predicate",
    "Raise": "refuse the call in the kernel's predicate",
    "Try": "refuse the call in the kernel's predicate",
    "Import": "import nisa, nki and nl from axl_trainium.sdk",
}


@attrs.frozen
class Finding:
    """What is wrong in one line of a kernel file, and how to fix it."""

    path: str
    line: int
    text: str
    hint: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}; {self.hint}"


def lint_folder(folder: Path) -> list[Finding]:
    """Return what is wrong in the kernel files of a folder."""
    return [
        finding
        for path in sorted(folder.rglob("nki_*.py"))
        for finding in lint(path.read_text(), str(path))
    ]


def lint(source: str, path: str) -> list[Finding]:
    """Return what is wrong in the source of a kernel file, by line."""
    file = _File(path, ast.parse(source))
    return sorted(file.findings(), key=lambda finding: finding.line)


class _File:
    def __init__(self, path: str, tree: ast.Module) -> None:
        self.path = path
        self.tree = tree
        self.helpers = {
            alias.asname or alias.name
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        } - SDK_NAMES
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                self.helpers |= {node.name, *(arg.arg for arg in node.args.args)}

    def findings(self) -> Iterator[Finding]:
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef):
                yield from self._function(node)
            elif isinstance(node, ast.ImportFrom):
                yield from self._import(node)
            elif isinstance(node, ast.Assign):
                yield from self._parts(node.value)
            elif not _is_docstring(node):
                yield self._construct(node)

    def _at(self, node: ast.AST, text: str, hint: str) -> Finding:
        return Finding(self.path, getattr(node, "lineno", 0), text, hint)

    def _construct(self, node: ast.AST) -> Finding:
        name = type(node).__name__
        hint = _HINTS.get(name, "write it with functions, for, if and calls")
        return self._at(node, f"{name} is not of NKI's Python", hint)

    def _import(self, node: ast.ImportFrom) -> Iterator[Finding]:
        module = node.module or ""
        names = {alias.name for alias in node.names}
        is_sdk = module == SDK_MODULE and names <= SDK_NAMES
        if not is_sdk and not module.startswith(f"{KERNELS_PACKAGE}."):
            yield self._at(
                node,
                f"imports {', '.join(sorted(names))} from {module}",
                f"import {', '.join(sorted(SDK_NAMES))} from {SDK_MODULE}, and helpers from "
                f"{KERNELS_PACKAGE}",
            )

    def _function(self, node: ast.FunctionDef, *, is_nested: bool = False) -> Iterator[Finding]:
        for decorator in node.decorator_list:
            if is_nested or ast.unparse(decorator) != "nki.jit":
                yield self._at(
                    node, f"{node.name} is under @{ast.unparse(decorator)}", "take @nki.jit or none"
                )
        arguments = node.args
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.defaults:
            yield self._at(
                node,
                f"{node.name} has arguments that are optional, or by keyword only",
                "name every argument and give it by position",
            )
        yield from self._body(node.body)
        for inner in _statements(node.body):
            if isinstance(inner, ast.Return) and inner is not node.body[-1]:
                yield self._at(inner, f"{node.name} returns early", "return at its end only")

    def _body(self, body: list[ast.stmt]) -> Iterator[Finding]:
        for node in body:
            if isinstance(node, ast.FunctionDef):
                yield from self._function(node, is_nested=True)
            elif isinstance(node, (ast.For, ast.If)):
                yield from self._block(node)
            elif not isinstance(node, _STATEMENTS):
                yield self._construct(node)
            elif not _is_docstring(node):
                for part in ast.iter_child_nodes(node):
                    yield from self._parts(part)

    def _block(self, node: ast.For | ast.If) -> Iterator[Finding]:
        if isinstance(node, ast.For):
            called = node.iter.func if isinstance(node.iter, ast.Call) else None
            if not (isinstance(called, ast.Name) and called.id == "range") or node.orelse:
                yield self._at(
                    node,
                    f"loops over {ast.unparse(node.iter)}",
                    "loop over range(), or by nl.fori_loop",
                )
            yield from self._parts(node.iter)
        else:
            yield from self._parts(node.test)
        yield from self._body(node.body)
        yield from self._body(node.orelse)

    def _parts(self, root: ast.AST) -> Iterator[Finding]:
        """Yield what is wrong in an expression, from the outside in."""
        if not isinstance(root, _EXPRESSIONS):
            yield self._construct(root)
            return
        children = list(ast.iter_child_nodes(root))
        if isinstance(root, ast.Call):
            yield from self._call(root)
            children.remove(root.func)
            if isinstance(root.func, ast.Attribute) and _owner(root.func) not in SDK_NAMES:
                children.append(root.func.value)
        elif isinstance(root, ast.Attribute):
            yield from self._attribute(root)
            if _owner(root) in SDK_NAMES:
                return
        for child in children:
            yield from self._parts(child)

    def _attribute(self, node: ast.Attribute) -> Iterator[Finding]:
        owner, _, name = ast.unparse(node).partition(".")
        if owner in SDK_NAMES:
            if name not in {"nl": LANGUAGE_NAMES, "nisa": ISA_NAMES}.get(owner, ()):
                yield self._unknown(node)
        elif node.attr not in TENSOR_ATTRIBUTES:
            yield self._at(
                node,
                f"{ast.unparse(node)} is not an attribute of tensors that the table knows",
                f"take one of {', '.join(sorted(TENSOR_ATTRIBUTES))}",
            )

    def _unknown(self, node: ast.AST) -> Finding:
        return self._at(
            node,
            f"{ast.unparse(node)} is not in the table of public signatures",
            "take what is, or add it to axl_trainium/signatures.py with its page",
        )

    def _call(self, node: ast.Call) -> Iterator[Finding]:
        if isinstance(node.func, ast.Name):
            yield from self._helper_call(node, node.func.id)
            return
        if not isinstance(node.func, ast.Attribute):
            yield self._construct(node.func)
            return
        owner = _owner(node.func)
        tables: Mapping[str, Mapping[str, PublicName]] = {"nisa": ISA, "nl": LANGUAGE, "nki": {}}
        public = tables.get(owner, TENSOR).get(node.func.attr)
        if public is None:
            yield self._unknown(node.func)
            return
        yield from self._bound(node, public)
        if owner == "nisa" and node.args:
            yield self._at(
                node, f"{node.func.attr} has arguments by position", "name them: dst=, ..."
            )
        if node.func.attr == "nc_matmul" and "accumulate" not in _keywords(node):
            yield self._at(
                node,
                "nc_matmul does not say whether it adds to dst",
                "pass accumulate=True or False",
            )

    def _helper_call(self, node: ast.Call, name: str) -> Iterator[Finding]:
        if name not in BUILTINS | self.helpers:
            yield self._at(
                node,
                f"calls {name}, which is neither of {KERNELS_PACKAGE} nor of NKI's Python",
                f"take {', '.join(sorted(BUILTINS))}, or a function of a kernel file",
            )
        elif node.keywords:
            yield self._at(
                node,
                f"calls {name} by keyword",
                "give functions of kernels their arguments by position",
            )

    def _bound(self, node: ast.Call, public: PublicName) -> Iterator[Finding]:
        if any(isinstance(arg, ast.Starred) for arg in node.args) or None in _keywords(node):
            yield self._at(node, f"calls {public.name} with unpacked arguments", "write them out")
            return
        try:
            public.signature().bind(*node.args, **{name or "": None for name in _keywords(node)})
        except TypeError as error:
            yield self._at(
                node,
                f"{public.name}: {error}",
                f"its arguments are ({public.parameters}): {public.page}",
            )


def _owner(node: ast.Attribute) -> str:
    """Return the name that a chain of attributes begins with; empty if it begins with none."""
    value = node.value
    while isinstance(value, ast.Attribute):
        value = value.value
    return value.id if isinstance(value, ast.Name) else ""


def _keywords(node: ast.Call) -> list[str | None]:
    return [keyword.arg for keyword in node.keywords]


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a function, without those of functions inside of it."""
    for node in body:
        yield node
        if isinstance(node, (ast.For, ast.If, ast.While, ast.With)):
            yield from _statements(node.body)
            yield from _statements(getattr(node, "orelse", []))
