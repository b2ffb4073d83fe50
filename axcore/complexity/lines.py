"""Lines of code, counted from the syntax tree: what a person must write, and nothing else."""

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NOT_CODE = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    }
)

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str) -> frozenset[int]:
    """Return the numbers, from 1, of the lines that contain code.

    Blank lines, comments and docstrings are none; every line of a statement that spans several is.

    Raises:
        SyntaxError: The source is not Python that this interpreter can parse.
    """
    documented = {line for node in ast.walk(ast.parse(source)) for line in _docstring(node)}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {
        line
        for token in tokens
        if token.type not in NOT_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return frozenset(code - documented)


def lines_to_write(fn: Callable[..., Any]) -> int:
    """Return the number of lines that somebody writes to have this function where they need it.

    Those are its own lines of code, signature and decorators included, and one for each import
    statement of its file that binds a name it uses.
    """
    own = inspect.getsource(fn)
    nodes = ast.walk(ast.parse(textwrap.dedent(own)))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    module = ast.parse(Path(inspect.getfile(fn)).read_text(encoding="utf-8"))
    imports = [node for node in module.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    needed = [node for node in imports if used & set(_bound(node))]
    return len(code_lines(textwrap.dedent(own))) + len(needed)


def _bound(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    for alias in node.names:
        yield alias.asname or alias.name.split(".")[0]


def _docstring(node: ast.AST) -> range:
    if not isinstance(node, _DOCUMENTED) or ast.get_docstring(node, clean=False) is None:
        return range(0)
    text = node.body[0]
    return range(text.lineno, (text.end_lineno or text.lineno) + 1)
