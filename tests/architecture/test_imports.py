"""The import graph: rooms import only rooms below them, and plugins only what is public."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[2]

STOREYS = (
    ("errors",),
    ("config",),
    ("plugins",),
    ("modifiers",),
    ("module",),
    ("ops",),
    ("parallel",),
    ("layers",),
    ("models",),
    ("learner", "data", "checkpoint"),
    ("trainer",),
)
"""Rooms from the ground up; whatever is not named stands on top of all of them."""

WITHOUT_JAX = (
    "axcore",
    "axcore.errors",
    "axcore.config",
    "axcore.plugins",
    "axcore.launch",
    "axcore.modifiers",
    "axcore.testing",
)


@attrs.frozen
class Import:
    """A module that a file imports, and the name taken from it, or the alias for the whole."""

    file: Path
    line: int
    module: str
    name: str | None = None
    alias: str | None = None

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.module}"


def imports(folder: Path) -> Iterator[Import]:
    """Yields every import below a folder, those within functions and conditions included."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(file, node.lineno, alias.name, alias=alias.asname)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file}:{node.lineno} is a relative import"
                for alias in node.names:
                    yield Import(file, node.lineno, node.module or "", alias.name)


def storey(room: str) -> int:
    return next((i for i, rooms in enumerate(STOREYS) if room in rooms), len(STOREYS))


def room_of(module: str) -> str | None:
    """Returns the room of axcore that a module is in; None for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else None


def room_of_file(file: Path) -> str:
    return file.relative_to(ROOT / "axcore").parts[0].removesuffix(".py")


def test_every_room_that_is_named_is_there():
    there = {path.stem for path in (ROOT / "axcore").iterdir()}
    assert {room for rooms in STOREYS for room in rooms} <= there


def test_rooms_import_only_rooms_below_them():
    wrong = [
        str(found)
        for found in imports(ROOT / "axcore")
        if found.module.split(".")[0] == "axcore"
        and (room := room_of(found.module)) is not None
        and room != (own := room_of_file(found.file))
        and storey(room) >= storey(own)
        and storey(own) < len(STOREYS)
    ]
    assert wrong == []


def test_the_core_imports_no_plugin():
    wrong = [str(found) for found in imports(ROOT / "axcore") if found.module.startswith("axl")]
    assert wrong == []


@pytest.mark.parametrize("room", ["config", "plugins", "modifiers"])
def test_rooms_before_the_jax_line_do_not_name_jax(room):
    found = imports(ROOT / "axcore" / room)
    assert [str(one) for one in found if one.module.split(".")[0] == "jax"] == []


def test_rooms_before_the_jax_line_load_no_jax():
    program = f"import sys, {', '.join(WITHOUT_JAX)}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


PLUGIN_PACKAGES = sorted(
    path.parent for path in ROOT.glob("plugins/axl_*/axl_*/plugin.py")
) + sorted(path.parent for path in ROOT.glob("examples/axl_*/axl_*/plugin.py"))


@pytest.mark.parametrize("package", PLUGIN_PACKAGES, ids=lambda path: path.name)
def test_plugin_uses_only_the_public_api_and_no_other_plugin(package):
    wrong = []
    for found in imports(package):
        top = found.module.split(".")[0]
        is_foreign = top.startswith("axl_") and top != package.name
        is_private = top == "axcore" and not _is_public(found)
        wrong += [str(found)] * (is_foreign or is_private)
    assert wrong == []


def _is_public(found: Import) -> bool:
    """Whether what is used is listed by a room, which is a module directly below axcore."""
    if found.module.count(".") != 1:
        return False
    room = importlib.import_module(found.module)
    public = set(getattr(room, "__all__", vars(room)))
    if found.name is None:
        return found.alias is not None and _attributes(found.file, found.alias) <= public
    return found.name in public


def _attributes(file: Path, alias: str) -> set[str]:
    """Returns the names that a file takes from a module by its alias."""
    return {
        node.attr
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == alias
    }


def test_the_walk_sees_imports_wherever_they_stand(tmp_path):
    (tmp_path / "a.py").write_text("import os as o\ndef f():\n    from a.b import c, d\n")
    found = [(one.line, one.module, one.name) for one in imports(tmp_path)]
    assert found == [(1, "os", None), (3, "a.b", "c"), (3, "a.b", "d")]
