"""Runs the Python blocks of a documentation page, in order, as one program.

A block in `text` that follows a block in `python` is what that block prints. A block whose first
line is `# raises NAME` ends in an exception of that name, and prints the message.
"""

import contextlib
import io
import re
import sys
import types
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_RAISES = re.compile(r"# raises (\w+)\n")


class Block(NamedTuple):
    """Code of a page, its line, and what it should print; None says nothing of it."""

    code: str
    line: int
    printed: str | None


def python_blocks(page: Path) -> list[Block]:
    """Returns the blocks of a page that are to be run."""
    return _blocks(page, "python")


def commands(page: Path) -> list[Block]:
    """Returns the commands of a page, those of one block each with all that the block prints."""
    return [
        block._replace(code=line.split("  #")[0].strip())
        for block in _blocks(page, "")
        for line in block.code.splitlines()
        if line.startswith("axcore ")
    ]


def _blocks(page: Path, language: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = list(_BLOCK.finditer(text))
    blocks = []
    for i, match in enumerate(found):
        if match[1] != language:
            continue
        after = found[i + 1] if i + 1 < len(found) else None
        follows = after is not None and not text[match.end() : after.start()].strip()
        printed = after[2] if after is not None and follows and after[1] == "text" else None
        blocks.append(Block(match[2], text.count("\n", 0, match.start()) + 2, printed))
    return blocks


def run_page(page: Path) -> int:
    """Runs a page and checks what it prints; returns the number of its blocks."""
    name = "page_" + re.sub(r"\W", "_", page.stem)
    module = types.ModuleType(name)
    sys.modules[name] = module
    blocks = python_blocks(page)
    for block in blocks:
        code = compile("\n" * (block.line - 1) + block.code, page.name, "exec")
        printed = _run(code, module.__dict__, _RAISES.match(block.code))
        if block.printed is not None:
            assert printed == block.printed, f"{page}:{block.line} prints\n{printed}"
    return len(blocks)


def _run(code: types.CodeType, namespace: dict[str, object], raises: re.Match[str] | None) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        raised = None
        try:
            exec(code, namespace)
        except Exception as error:
            if raises is None:
                raise
            raised = error
            print(f"{type(error).__name__}: {error}")
            print("".join(f"{note}\n" for note in getattr(error, "__notes__", ())), end="")
    assert type(raised).__name__ == (raises[1] if raises else "NoneType"), raised
    return out.getvalue()
