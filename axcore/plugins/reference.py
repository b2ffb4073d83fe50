"""The hook reference of the documentation, made from the specs.

`python -m axcore.plugins.reference > docs/plugins/hooks.md` writes it; a test holds it up to date.
"""

import inspect
import textwrap

import attrs

from axcore.plugins import hookspecs
from axcore.plugins.hooks import HOOKS
from axcore.plugins.host import plugin_host
from axcore.plugins.record import Record

COMMAND = "python -m axcore.plugins.reference > docs/plugins/hooks.md"


def hook_reference() -> str:
    """Returns the page: every hook, what it asks for, an example, its record, who uses it here."""
    names = sorted(HOOKS)
    head = [
        "# Hooks",
        "",
        f"There are {len(names)}. Each is called once, takes no arguments, and yields records. A",
        "hook is implemented by a function of the plugin's module under the decorator of its name.",
        "",
        f"This page is made by `{COMMAND}`.",
        "",
        *(f"- [{name}](#{name}): {_first_line(name)}" for name in names),
        "",
    ]
    return "\n".join([*head, *(_section(name) for name in names)])


def _section(name: str) -> str:
    doc = inspect.getdoc(getattr(hookspecs, name)) or ""
    text, _, example = doc.partition("Example:\n")
    record: type[Record] = HOOKS[name].record
    return "\n".join(
        [
            f"## {name}",
            "",
            text.strip(),
            "",
            "```python",
            textwrap.dedent(example).strip(),
            "```",
            "",
            f"`{record.__name__}`: {(inspect.getdoc(record) or '').splitlines()[0]}",
            "",
            *(f"- {line}" for line in _fields(record)),
            "",
            f"Used by {', '.join(_users(name)) or 'nobody yet'}.",
            "",
        ]
    )


def _fields(record: type[Record]) -> list[str]:
    """Returns a line for each field, with the text of the record's docstring."""
    texts = _argument_texts(inspect.getdoc(record) or "")
    lines = []
    for field in attrs.fields(record):
        if field.name == "plugin":
            continue
        need = "required" if field.default is attrs.NOTHING else "optional"
        lines.append(f"`{field.name}` ({need}): {texts[field.name]}")
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


def _users(name: str) -> list[str]:
    return [plugin.name for plugin in plugin_host().plugins() if name in plugin.hooks]


def _first_line(name: str) -> str:
    return (inspect.getdoc(getattr(hookspecs, name)) or "").splitlines()[0]


if __name__ == "__main__":
    print(hook_reference(), end="")
