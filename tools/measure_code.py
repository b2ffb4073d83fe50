"""Measure how a codebase reads: size of files and functions, public names, comments, importers.

    python tools/measure_code.py                      # axcore and its plugins
    python tools/measure_code.py PATH/TO/site-packages/optax

`__init__.py` files do not count. A public name is a class, function or constant of a module's top
level without an underscore. A file's importers are the other files that name its module, counted
only among the files that are measured.
"""

import argparse
import ast
import io
import statistics
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
OURS = [ROOT / "axcore", *sorted(ROOT.glob("plugins/axl_*/axl_*"))]


def main(arguments: Sequence[str]) -> None:
    """Print the measures of the folders that are named, together."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, default=OURS)
    folders = parser.parse_args(arguments).folders
    files = [file for folder in folders for file in folder.rglob("*.py")]
    texts = {file: file.read_text() for file in files if file.name != "__init__.py"}
    lines = {file: len(text.splitlines()) for file, text in texts.items()}
    total = sum(lines.values())
    functions = sorted(length for text in texts.values() for length in _function_lengths(text))
    names = sum(len(_public_names(text)) for text in texts.values())
    comments = sum(_comment_lines(text) for text in texts.values())
    code = sum(_code_lines(text) for text in texts.values())
    sizes = sorted(lines.values())
    rows = {
        "files": f"{len(texts):,}",
        "lines": f"{total:,}",
        "lines of code, without comments and docstrings": f"{code:,}",
        "files per 1,000 lines": f"{1000 * len(texts) / total:.1f}",
        "lines a file, median / p90": f"{statistics.median(sizes):.0f} / {_p90(sizes)}",
        "files below 40 lines": f"{sum(size < 40 for size in sizes) / len(sizes):.0%}",
        "function lines, median / p90 / max": f"{statistics.median(functions):.0f} / "
        f"{_p90(functions)} / {functions[-1]}",
        "comment-only lines": f"{comments / total:.1%}",
        "public names per 1,000 lines": f"{1000 * names / total:.1f}",
        "files with one importer": f"{_with_one_importer(folders, files):.0%}",
    }
    for name, value in rows.items():
        print(f"{name:48} {value}")


def _p90(ordered: Sequence[int]) -> int:
    return ordered[len(ordered) * 9 // 10]


def _docstring_lines(node: ast.AST) -> int:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
        first = node.body[0]
        return (first.end_lineno or first.lineno) - first.lineno + 1
    return 0


def _function_lengths(text: str) -> Iterator[int]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1 - _docstring_lines(node)


def _public_names(text: str) -> set[str]:
    names: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {one.id for one in targets if isinstance(one, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def _comment_lines(text: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(
        token.type == tokenize.COMMENT and token.line.lstrip().startswith("#") for token in tokens
    )


def _code_lines(text: str) -> int:
    written = sum(bool(line.strip()) for line in text.splitlines()) - _comment_lines(text)
    return written - sum(map(_docstring_lines, ast.walk(ast.parse(text))))


def _with_one_importer(folders: Sequence[Path], files: Sequence[Path]) -> float:
    modules = {
        ".".join(file.relative_to(folder.parent).with_suffix("").parts): file
        for folder in folders
        for file in files
        if folder in file.parents and file.name != "__init__.py"
    }
    importers: dict[str, set[Path]] = {module: set() for module in modules}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in (node.module, *(f"{node.module}.{one.name}" for one in node.names)):
                    if name in importers:
                        importers[name].add(file)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                importers.get(node.value.partition(":")[0], set()).add(file)
    return sum(len(by) == 1 for by in importers.values()) / len(importers)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
