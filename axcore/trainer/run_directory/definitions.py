"""The part of a script that defines given names: what can be run again without training again."""

import __future__

import ast
import symtable
from collections.abc import Iterable


def definitions_of(source: str, names: Iterable[str]) -> str:
    """Returns the top-level statements of a script that some of its names depend on.

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
    wanted = {*names, *__future__.all_feature_names}
    chosen: set[int] = set()
    while True:
        more = {i for i, one in enumerate(bound) if one & wanted} - chosen
        if not more:
            return "\n\n".join(texts[i] for i in sorted(chosen)) + "\n"
        chosen |= more
        wanted |= {name for i in more for name in used[i]}


def imported_modules(source: str, package: str = "") -> set[str]:
    """Returns the modules that a source imports, or may import: `a.b` of `from a import b`.

    Args:
        source: The code.
        package: What relative imports begin at.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: 1 - node.level or None] if node.level else []
            module = ".".join([*parts, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def _text(source: str, statement: ast.stmt) -> str:
    """Returns a statement as it is written, with its decorators."""
    first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])
    return "\n".join(source.splitlines()[first - 1 : statement.end_lineno])


def _binds(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()


def _globals_of(table: symtable.SymbolTable) -> set[str]:
    """Returns the names that a piece of code may look up at the top level of its module."""
    is_function = table.get_type() == "function"
    own = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if (symbol.is_global() if is_function else symbol.is_referenced())
    }
    return own.union(*(_globals_of(child) for child in table.get_children()))
