"""The import graph: packages import only packages below them, and plugins only what is public."""

import ast
import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Container, Iterator
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[2]

LAYERS = (
    ("errors", "_jax_compat", "markup", "whole_files"),
    ("extras", "progress", "tcp"),
    ("config",),
    ("registration",),
    ("hardware",),
    ("plugins",),
    ("module",),
    ("distributed", "parallel"),
    ("ops",),
    ("layers",),
    ("interop",),
    ("models",),
    ("learner",),
    ("data", "checkpoint"),
    ("modifiers", "tasks"),
    ("trainer",),
    ("inference",),
    ("report",),
    ("aot",),
    ("profiles",),
    ("complexity",),
    ("launch",),
    ("resilience",),
    ("experiments",),
    ("runs", "sandbox"),
    ("rewards",),
    ("environments",),
    ("rollouts",),
    ("evaluation",),
    ("batch_inference",),
    ("serving",),
    ("testing",),
    ("cli",),
    ("__init__", "__main__"),
)
"""Packages from the ground up; those of one line do not import each other."""

REGISTRATIONS = "registrations.py"
"""What each package registers. Its records may name code of packages above by string, as the
contracts of ops do: a record is made without importing what it names."""

WITHOUT_JAX = (
    "axcore",
    "axcore.environments",
    "axcore.errors",
    "axcore.config",
    "axcore.registration",
    "axcore.hardware",
    "axcore.plugins",
    "axcore.launch",
    "axcore.resilience",
    "axcore.rewards",
    "axcore.sandbox",
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
    verb: str = "imports"

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} {self.verb} {self.module}"


REFERENCE = re.compile(r"(axcore(?:\.\w+)+)(?::[\w.]*|\.)?")


def imports(folder: Path) -> list[Import]:
    """Returns every import below a folder, those within functions and conditions included."""
    return [found for found in named_modules(folder) if found.verb == "imports"]


def references(folder: Path) -> list[Import]:
    """Returns every string that names a module of axcore: `Ref`s, `import_module`, `python -m`."""
    return [found for found in named_modules(folder) if found.verb == "names"]


@functools.cache
def named_modules(folder: Path) -> list[Import]:
    return [
        found
        for file in ([folder] if folder.is_file() else sorted(folder.rglob("*.py")))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for found in modules_of(file, node)
    ]


def modules_of(file: Path, node: ast.AST) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(file, node.lineno, alias.name, alias=alias.asname)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{file}:{node.lineno} is a relative import"
        for alias in node.names:
            yield Import(file, node.lineno, node.module or "", alias.name)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        match = REFERENCE.fullmatch(node.value)
        if match and package_of(match[1]) in PACKAGES:
            yield Import(file, node.lineno, match[1], verb="names")


def layer_of(package: str) -> int:
    return next(i for i, packages in enumerate(LAYERS) if package in packages)


def package_of(module: str) -> str:
    """Returns the package of axcore that a module is in."""
    return (*module.split("."), "__init__")[1]


def package_of_file(file: Path) -> str:
    return file.relative_to(ROOT / "axcore").parts[0].removesuffix(".py")


PACKAGES = {path.stem for path in (ROOT / "axcore").iterdir() if not path.name.startswith("__pyc")}


def upward(found: Import) -> bool:
    own, package = package_of_file(found.file), package_of(found.module)
    if found.module == "axcore":  # the package's own name and version, or a package as a whole
        package = found.name if found.name in PACKAGES else "errors"
    return package != own and layer_of(package) >= layer_of(own)


def test_every_room_has_its_place():
    assert {package for packages in LAYERS for package in packages} == PACKAGES - {"py"}, (
        "complete LAYERS"
    )


def test_rooms_import_only_rooms_below_them():
    found = [one for one in imports(ROOT / "axcore") if one.module.split(".")[0] == "axcore"]
    assert [str(one) for one in found if upward(one)] == []


def test_rooms_name_in_strings_only_rooms_below_them():
    found = [one for one in references(ROOT / "axcore") if upward(one)]
    assert [str(one) for one in found if one.file.name != REGISTRATIONS] == []


def test_nothing_but_the_command_itself_imports_the_cli():
    users = {
        package_of_file(one.file)
        for one in imports(ROOT / "axcore")
        if package_of(one.module) == "cli"
    }
    assert users == {"cli", "__main__"}


def runtime_imports(file: Path, modules: Container[str]) -> Iterator[str]:
    """Yields what a file imports when it runs: nothing under `if TYPE_CHECKING`."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    unseen = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for branch in node.body
        for inner in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if node in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules else node.module or ""


def circles(folder: Path) -> list[list[str]]:
    """Returns the groups of files that import one another, sorted.

    A package imports what its `__init__` does; that importing a module runs the `__init__` of its
    packages first does not count.
    """
    files = {
        ".".join(file.relative_to(folder.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): file
        for file in sorted(folder.rglob("*.py"))
    }
    below = {
        name: set(runtime_imports(file, files)) & set(files) - {name}
        for name, file in files.items()
    }
    while alone := [name for name, others in below.items() if not others & set(below)]:
        for name in alone:
            del below[name]
    above = {name: {user for user in below if name in below[user]} for name in below}
    while unused := [name for name, users in above.items() if not users & set(above)]:
        for name in unused:
            del above[name]
    return [sorted(above)] if above else []


def test_no_files_import_one_another():
    assert circles(ROOT / "axcore") == []


def test_circles_are_found_wherever_the_import_is(tmp_path):
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("from pack.a import f\n")
    (package / "a.py").write_text("def f():\n    from pack import b\n")
    (package / "b.py").write_text("import pack.c\n")
    (package / "c.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pack.a\n"
    )
    assert circles(package) == []
    (package / "c.py").write_text("from pack.a import f\n")
    assert circles(package) == [["pack.a", "pack.b", "pack.c"]]


def test_the_core_imports_no_plugin():
    wrong = [str(found) for found in imports(ROOT / "axcore") if found.module.startswith("axl")]
    assert wrong == []


@pytest.mark.parametrize("package", ["config", "registration.py", "hardware", "plugins"])
def test_packages_before_the_jax_line_do_not_name_jax(package):
    found = imports(ROOT / "axcore" / package)
    assert [str(one) for one in found if one.module.split(".")[0] == "jax"] == []


def test_rooms_before_the_jax_line_load_no_jax():
    program = f"import sys, {', '.join(WITHOUT_JAX)}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


UNSTABLE = re.compile(r"jax(?:\._src|\.extend|\.interpreters|\.experimental|\.make_user_context)\b")


def unstable_names(folder: Path) -> list[str]:
    """Returns the private and unstable names of jax below a folder, but for `_jax_compat.py`."""
    return [
        f"{file.relative_to(folder)}:{number}: {name}"
        for file in sorted(folder.rglob("*.py"))
        if file.name != "_jax_compat.py"
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        for name in UNSTABLE.findall(line)
    ]


def test_private_and_unstable_names_of_jax_are_in_one_file():
    assert unstable_names(ROOT / "axcore") == []


def test_the_rule_on_names_of_jax_sees_imports_and_strings(tmp_path):
    text = "import jax._src.core\nx = 'jax.extend.core'\njax.make_user_context()\njax.jit(f)\n"
    (tmp_path / "_jax_compat.py").write_text(text)
    assert unstable_names(tmp_path) == []
    (tmp_path / "a.py").write_text(text)
    assert unstable_names(tmp_path) == [
        "a.py:1: jax._src",
        "a.py:2: jax.extend",
        "a.py:3: jax.make_user_context",
    ]


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


@pytest.mark.parametrize("package", PLUGIN_PACKAGES, ids=lambda path: path.name)
def test_plugin_leaves_devices_to_the_core(package):
    """Kernels are split over devices by their op, so that no plugin can forget to."""
    found = [str(one) for one in imports(package) if one.module.startswith("axcore.parallel")]
    calls = [
        str(file)
        for file in package.rglob("*.py")
        if "shard_map(" in file.read_text(encoding="utf-8")
    ]
    assert (found, calls) == ([], [])


def _is_public(found: Import) -> bool:
    """Whether what is used is listed by a package, which is a module directly below axcore."""
    if found.module.count(".") != 1:
        return False
    package = importlib.import_module(found.module)
    public = set(getattr(package, "__all__", vars(package)))
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
