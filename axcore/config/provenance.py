"""Provenance: which function, file or flag set each value of a config.

A config remembers, outside of its value (equality and hash ignore it), where each field that
differs from its default was set. `origin_of` returns it, and errors show it as `set in:`.
"""

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

_ORIGINS = "__config_origins__"


class Origin(NamedTuple):
    """Where a value was set: a function with file and line, or a named source such as a flag."""

    source: str
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source} ({_short(self.file)}:{self.line})" if self.file else self.source


def _short(file: str) -> str:
    """Return a source file's name from the folder that it is imported from."""
    roots = [root for root in sys.path if root and file.startswith(root.rstrip("/") + "/")]
    return file[len(max(roots, key=len).rstrip("/")) + 1 :] if roots else file


_given: ContextVar[Origin | None] = ContextVar("axcore_origin", default=None)


@contextlib.contextmanager
def setting_from(origin: Origin) -> Iterator[None]:
    """Make `origin` that of every value that is set while code runs."""
    token = _given.set(origin)
    try:
        yield
    finally:
        _given.reset(token)


def calling_origin() -> Origin:
    """Return the nearest caller outside of `axcore.config` and attrs' generated code."""
    given = _given.get()
    if given is not None:
        return given
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        generated = frame.f_code.co_filename.startswith("<attrs generated")
        if not generated and not name.startswith(("axcore.config.", "attr.", "attrs.")):
            break
        frame = frame.f_back
    code = frame.f_code
    return Origin(code.co_qualname, code.co_filename, frame.f_lineno)


def set_origins(cfg: Any, origins: dict[str, Origin]) -> None:
    """Attaches origins to a config that was just made."""
    object.__setattr__(cfg, _ORIGINS, origins)


def origins_of(cfg: Any) -> dict[str, Origin]:
    """Return the origin of every field of `cfg` itself that differs from its default."""
    found: dict[str, Origin] = getattr(cfg, _ORIGINS, {})
    return found


def carry_origins(new: Any, old: Any, changed: dict[str, Origin]) -> None:
    """Give `new` the origins of `old`, but for the fields in `changed`."""
    mine = origins_of(new)
    kept = {name: origin for name, origin in origins_of(old).items() if name in mine}
    mine.update(kept)
    mine.update({name: origin for name, origin in changed.items() if name in mine})
