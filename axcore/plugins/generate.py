"""Writes what follows from the classes of records: the list of hooks, and their page.

`python -m axcore.plugins.generate` is run after a record or its docstring changed, in a checkout of
axcore where axcore and all of its plugins are installed.
"""

import subprocess
import sys
from pathlib import Path

import axcore.plugins.records as records
from axcore.plugins.hook_reference import COMMAND, hook_reference, record_classes

PAGE = Path("docs/plugins/hooks.md")

_HEAD = f'''"""Every record, and `hook`, which has a decorator for each.

Written by `{COMMAND}`.
"""

'''

_LINE_LENGTH = 100


def records_module() -> str:
    """Return the source of `axcore/plugins/records/__init__.py`."""
    classes = record_classes()
    origins = {"axcore.plugins.hooks": ["HookDecorator", "HookTable"]}
    for cls in classes.values():
        origins.setdefault(cls.__module__, []).append(cls.__name__)
    names = sorted(cls.__name__ for cls in classes.values())
    lines = [
        *(_import(module, sorted(named)) for module, named in sorted(origins.items())),
        "",
        "__all__ = [",
        *(f'    "{name}",' for name in [*names, "hook"]),
        "]",
        "",
        "",
        "class Hooks(HookTable):",
        '    """A decorator for each hook."""',
        "",
        *(f"    {hook} = HookDecorator({cls.__name__})" for hook, cls in classes.items()),
        "",
        "",
        "hook = Hooks()",
        "",
    ]
    return _HEAD + "\n".join(lines)


def _import(module: str, names: list[str]) -> str:
    """Return an import as `ruff format` writes it."""
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= _LINE_LENGTH:
        return line
    return "\n".join((f"from {module} import (", *(f"    {name}," for name in names), ")"))


def main() -> None:
    """Write the list, and in an interpreter of its own, which reads the new list, the page."""
    if sys.argv[1:] != ["page"]:
        Path(records.__file__).write_text(records_module(), encoding="utf-8")
        subprocess.run([sys.executable, "-m", "axcore.plugins.generate", "page"], check=True)
        return
    PAGE.write_text(hook_reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
