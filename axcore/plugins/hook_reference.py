"""The hook reference of the documentation, made from the docstrings of records."""

import importlib
import inspect
import pkgutil
import textwrap

import attrs

import axcore.plugins.records as records
from axcore.plugins.host import plugin_host
from axcore.registration import CORE, Record

COMMAND = "python -m axcore.plugins.generate"

_HEAD = f"""\
# Hooks

Each is called once, takes no arguments, and yields records. A hook is implemented by a function of
the plugin's module under the decorator of its name. Those marked *provisional* have no user outside
of axcore yet, and may change in any release.

This page is made by `{COMMAND}`.
"""


def record_classes() -> dict[str, type[Record]]:
    """Return every class of records that `record` declares a hook for, by hook, sorted."""
    for module in pkgutil.iter_modules(records.__path__):
        importlib.import_module(f"{records.__name__}.{module.name}")
    found = {cls.hook: cls for cls in Record.__subclasses__() if "hook" in vars(cls)}
    return {hook: found[hook] for hook in sorted(found) if found[hook].__module__[:7] == "axcore."}


def hook_reference() -> str:
    """Return the page: every hook, its record with an example, and who uses it here."""
    classes = record_classes()
    lines = [f"- [{hook}](#{hook}): {_first_line(cls)}" for hook, cls in classes.items()]
    return "\n".join([_HEAD, *lines, "", *map(_section, classes.values())])


def _section(record: type[Record]) -> str:
    users = [plugin.name for plugin in plugin_host().plugins() if record.hook in plugin.hooks]
    doc = inspect.getdoc(record) or ""
    return "\n".join(
        [
            f"## {record.hook}",
            "",
            *(["*Provisional.*", ""] if users == [CORE] else []),
            f"`{record.__name__}`: {doc.partition('Args:')[0].strip()}",
            "",
            "```python",
            example(record),
            "```",
            "",
            *_fields(record),
            "",
            f"Used by {', '.join(users) or 'nobody yet'}.",
            "",
        ]
    )


def example(record: type[Record]) -> str:
    """Return the code under `Example:` in a record's docstring."""
    return textwrap.dedent((inspect.getdoc(record) or "").partition("Example:\n")[2]).strip()


def _fields(record: type[Record]) -> list[str]:
    """Return a line for each field, with the text of the record's docstring."""
    texts = _argument_texts(inspect.getdoc(record) or "")
    lines = []
    for field in attrs.fields(record):
        if field.name == "plugin":
            continue
        need = "required" if field.default is attrs.NOTHING else "optional"
        lines.append(f"- `{field.name}` ({need}): {texts[field.name]}")
    return lines


def _argument_texts(doc: str) -> dict[str, str]:
    _, _, part = doc.partition("Args:\n")
    texts: dict[str, str] = {}
    name = ""
    for line in part.splitlines():
        if line.startswith("        "):
            texts[name] += f" {line.strip()}"
        elif line.startswith("    "):
            name, _, text = line.strip().partition(": ")
            texts[name] = text
        else:
            break
    return texts


def _first_line(record: type[Record]) -> str:
    return (inspect.getdoc(record) or "").splitlines()[0]
