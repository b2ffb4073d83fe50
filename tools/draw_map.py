"""Draws docs/architecture.svg, the packages of axcore and what imports what, from the imports.

Run `python tools/draw_map.py`. A package is drawn below all packages that import it. A line is left
out where others already lead there. Lines that span rows pass between boxes by way points.
"""

import ast
import math
import textwrap
from collections.abc import Iterator, Mapping
from html import escape
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "axcore"
MAP = ROOT / "docs" / "architecture.svg"

ROW, BOX_WIDTH, BOX_HEIGHT, LANE = 118, 184, 74, 30
STYLE = """
  text { font-family: system-ui, sans-serif; text-anchor: middle; fill: #1b2430 }
  .name { font-size: 15px; font-weight: 600 } .what { font-size: 11px; fill: #4a5666 }
  .package { fill: #fff3dc; stroke: #c98a1b } .light { fill: #e4f0ff; stroke: #4a7fc1 }
  path { fill: none; stroke: #8793a3; stroke-width: 1.3 } .key { text-anchor: start }
"""

Graph = dict[str, set[str]]


def module_imports(file: Path, *, at_import: bool) -> Iterator[str]:
    """Yield the modules that a file imports; with `at_import` those that load with it."""
    nodes: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        is_lazy = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        )
        if not (at_import and is_lazy):
            nodes.extend(ast.iter_child_nodes(node))


def packages() -> Graph:
    """Return for each package the packages that it imports, anywhere in its files."""
    found: Graph = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        package = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if not package.startswith("_"):
            names = (name.split(".") for name in module_imports(file, at_import=False))
            used = {name[1] for name in names if name[0] == "axcore" and len(name) > 1}
            found.setdefault(package, set()).update(used - {package})
    return {package: {used for used in below if used in found} for package, below in found.items()}


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Return all that can be reached from `start`, which is itself among it only by a circle."""
    found: set[str] = set()
    left = [start]
    while left:
        new = graph.get(left.pop(), set()) - found
        found |= new
        left.extend(new)
    return found


def reduced(graph: Graph) -> Graph:
    """Return the graph without the lines that longer ways replace, and without circles."""
    acyclic = {
        package: {one for one in below if package not in reachable(graph, one) or package < one}
        for package, below in graph.items()
    }
    return {
        package: {
            one
            for one in below
            if not any(one in reachable(acyclic, other) for other in below - {one})
        }
        for package, below in acyclic.items()
    }


def loads_jax(package: str) -> bool:
    """Whether `import axcore.PACKAGE` loads jax, by the imports that run with it."""
    seen: set[Path] = set()
    left = [f"axcore.{package}"]
    while left:
        name = left.pop()
        if name.split(".")[0] in ("jax", "jaxlib", "optax"):
            return True
        base = ROOT.joinpath(*name.split("."))
        for file in (base / "__init__.py", base.with_suffix(".py")):
            if file.exists() and file not in seen and name.startswith("axcore"):
                seen.add(file)
                left.extend(module_imports(file, at_import=True))
        if (
            name.startswith("axcore.")
            and not base.exists()
            and not base.with_suffix(".py").exists()
        ):
            left.append(name.rpartition(".")[0])
    return False


def rows_of(graph: Graph) -> list[list[str]]:
    """Return packages by row, from the top, with way points `upper>lower:row` for long lines."""
    above: Graph = {package: {one for one in graph if package in graph[one]} for package in graph}
    rank: dict[str, int] = {}

    def depth(package: str) -> int:
        if package not in rank:
            rank[package] = 1 + max((depth(one) for one in above[package]), default=-1)
        return rank[package]

    rows: list[list[str]] = [[] for _ in range(1 + max(map(depth, graph)))]
    for package in sorted(graph):
        rows[rank[package]].append(package)
        for one in sorted(graph[package]):
            for row in range(rank[package] + 1, rank[one]):
                rows[row].append(f"{package}>{one}:{row}")
    return rows


def chains(graph: Graph, rows: list[list[str]]) -> list[list[str]]:
    """Return each line as the packages and way points that it passes, from its upper end."""
    points: dict[str, list[str]] = {}
    for row in rows:
        for node in row:
            points.setdefault(node.split(":")[0], []).append(node)
    return [
        [package, *(points.get(f"{package}>{one}", [])), one]
        for package in sorted(graph)
        for one in sorted(graph[package])
    ]


def places(rows: list[list[str]], lines: list[list[str]]) -> dict[str, float]:
    """Return where each node of each row is, ordered so that few lines cross."""
    neighbours: dict[str, list[str]] = {}
    for line in lines:
        for upper, lower in pairwise(line):
            neighbours.setdefault(upper, []).append(lower)
            neighbours.setdefault(lower, []).append(upper)
    x = {node: BOX_WIDTH * (i - len(row) / 2) for row in rows for i, node in enumerate(row)}
    for sweep in range(24):
        for row in rows if sweep % 2 else rows[::-1]:
            wanted = {
                node: math.fsum(x[one] for one in neighbours.get(node, [node]))
                / len(neighbours.get(node, [node]))
                for node in row
            }
            row.sort(key=lambda node: (wanted[node], node))
            x.update(_spread(row, wanted))
    left = min(x[row[0]] - _half(row[0]) for row in rows) - 24
    return {node: place - left for node, place in x.items()}


def _spread(row: list[str], wanted: Mapping[str, float]) -> dict[str, float]:
    """Return places near the wanted ones at which no box touches the next."""
    half = [_half(node) for node in row]
    found = [wanted[node] for node in row]
    for i in range(1, len(row)):
        found[i] = max(found[i], found[i - 1] + half[i - 1] + half[i])
    shift = math.fsum(wanted[node] - place for node, place in zip(row, found, strict=True)) / len(
        row
    )
    return {node: place + shift for node, place in zip(row, found, strict=True)}


def _half(node: str) -> float:
    return (LANE if ">" in node else BOX_WIDTH + 22) / 2


def summary(package: str) -> str:
    """Return the first sentence or clause of a package's docstring."""
    files = (PACKAGE / package / "__init__.py", PACKAGE / f"{package}.py")
    text = next(file for file in files if file.exists()).read_text(encoding="utf-8")
    doc = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].replace("\n", " ")
    sentence = doc.partition(". ")[0].removesuffix(".").replace("`", "")
    title, _, rest = sentence.partition(": ")
    return sentence if " " in title else rest or sentence


def draw() -> str:
    """Return the map as SVG."""
    graph = reduced(packages())
    rows = rows_of(graph)
    lines = chains(graph, rows)
    x = places(rows, lines)
    y = {node: 60 + ROW * i for i, row in enumerate(rows) for node in row}
    width = max(x[row[-1]] + _half(row[-1]) for row in rows) + 24
    height = 60 + ROW * len(rows)
    shapes = [_path([(x[node], y[node], ">" in node) for node in line]) for line in lines]
    shapes += [_box(package, x[package], y[package]) for package in sorted(graph)]
    key = (
        '<rect class="light" x="16" y="14" width="16" height="14"/>'
        '<text class="what key" x="38" y="25">imports no jax</text>'
        '<rect class="package" x="136" y="14" width="16" height="14"/>'
        '<text class="what key" x="158" y="25">imports jax</text>'
        '<text class="what key" x="240" y="25">a line: the upper one imports the lower one</text>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}">',
            f"<style>{STYLE}</style>",
            f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#fdfdfc"/>',
            key,
            *shapes,
            "</svg>\n",
        ]
    )


def _path(points: list[tuple[float, float, bool]]) -> str:
    (x, y, _), *rest = points
    at = y + BOX_HEIGHT
    text = f"M{x:.0f} {at:.0f}"
    for to_x, to_y, is_way_point in rest:
        middle = (at + to_y) / 2
        text += f"C{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} {to_x:.0f} {to_y:.0f}"
        x, at = to_x, to_y
        if is_way_point:
            at += BOX_HEIGHT
            text += f"L{x:.0f} {at:.0f}"
    return f'<path d="{text}"/>'


def _box(package: str, x: float, y: float) -> str:
    kind = "package" if loads_jax(package) else "light"
    left = x - BOX_WIDTH / 2
    shape = (
        f'<rect class="{kind}" x="{left:.0f}" y="{y:.0f}" '
        f'width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="7"/>'
        f'<text class="name" x="{x:.0f}" y="{y + 20:.0f}">{package}</text>'
    )
    for i, line in enumerate(textwrap.wrap(summary(package), 29, max_lines=3, placeholder=" …")):
        shape += f'<text class="what" x="{x:.0f}" y="{y + 37 + 14 * i:.0f}">{escape(line)}</text>'
    return shape


if __name__ == "__main__":
    MAP.write_text(draw(), encoding="utf-8")
