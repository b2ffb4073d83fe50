"""What existing modules let callers say: the fields of their configs and the arguments of their
functions. A feature that needs another one of these is not encapsulated.

`python -m axcore.complexity.surface > tests/complexity/surface.txt` records it.
"""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from axcore.errors import ComplexityError

PACKAGES = ("module", "ops", "layers", "models", "trainer")
"""The packages whose modules models are made of."""


def read_surface(package: Path, packages: Iterable[str] = PACKAGES) -> dict[str, tuple[str, ...]]:
    """Return what can be said to each class and function that the packages re-export.

    Keys are `file:Class.Config` for the fields of a config, `file:Class.method` and
    `file:function` for arguments; private ones are left out.

    Args:
        package: The folder of the package.
        packages: Folders in it whose `__init__.py` re-exports what is public.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name in packages:
        for file, names in _exported(package, name).items():
            tree = ast.parse((package / file).read_text(encoding="utf-8"))
            for node in tree.body:
                if getattr(node, "name", None) in names:
                    found.update({f"{file}:{key}": said for key, said in _said_to(node, "")})
    return dict(sorted(found.items()))


def check_surface(recorded: dict[str, tuple[str, ...]], now: dict[str, tuple[str, ...]]) -> None:
    """Check that nothing that was recorded takes another field or argument by now.

    Members that are new as a whole, or removed, are fine.

    Raises:
        ComplexityError: Naming every field and argument that was added.
    """
    added = [
        f"{key} takes {name}"
        for key, names in now.items()
        if key in recorded
        for name in names
        if name not in recorded[key]
    ]
    if added:
        raise ComplexityError(
            "existing modules were widened:\n" + "\n".join(added),
            hint="put the feature into a module of its own that takes the old one's place; if the "
            "module itself was at fault, record its new surface and say why in the commit",
        )


def surface_text(surface: dict[str, tuple[str, ...]]) -> str:
    """Return a surface as lines of text, `key: name name`."""
    return "".join(f"{key}: {' '.join(names)}\n" for key, names in surface.items())


def parse_surface(text: str) -> dict[str, tuple[str, ...]]:
    """Return what `surface_text` wrote."""
    rows = (line.partition(": ") for line in text.splitlines())
    return {key: tuple(names.split()) for key, _, names in rows}


def _exported(package: Path, name: str) -> dict[str, set[str]]:
    """Return the names that a package re-exports, by the file that defines them."""
    names: dict[str, set[str]] = {}
    tree = ast.parse((package / name / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            file = "/".join(node.module.split(".")[1:]) + ".py"
            if (package / file).exists():
                names.setdefault(file, set()).update(alias.name for alias in node.names)
    return names


def _said_to(node: ast.AST, above: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        extra = [arg for arg in (node.args.vararg, node.args.kwarg) if arg is not None]
        yield above + node.name, tuple(arg.arg for arg in (*every, *extra))
    elif isinstance(node, ast.ClassDef):
        fields = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
        names = tuple(field.id for field in fields if isinstance(field, ast.Name))
        bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
        if not (node.decorator_list or bases & {"NamedTuple", "TypedDict"}):
            names = ()  # a plain class is not built from its annotations: type checkers read them
        if names:
            yield above + node.name, names
        for inner in node.body:
            if not getattr(inner, "name", "_").startswith("_"):
                yield from _said_to(inner, f"{above}{node.name}.")


if __name__ == "__main__":
    print(surface_text(read_surface(Path(__file__).parents[1])), end="")
