"""Which files of `axcore.ops` a kernel of an op is compiled with."""

import ast
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

import axcore
from axcore.plugins import Kernel, Ref, plugin_host
from axcore.testing.imports import imported_files, imports_of, steps_of

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
