"""`wrong_return`: the error of brought code that returns something else than it should."""

import reprlib
from collections.abc import Iterable
from types import UnionType
from typing import Any, get_args

from axcore.errors import PluginError

CORE = "core"
"""The plugin whose records are axcore's own."""

Returns = type | UnionType


def wrong_return(
    who: str, value: Any, expected: str, *, plugin: str, verb: str = "returned", shown: str = ""
) -> PluginError:
    """Return the error of a wrong value.

    Args:
        who: What returned it, with its plugin.
        value: What it returned.
        expected: What it should have returned.
        plugin: Who brought it; empty, or the core, where nobody can be blocked.
        verb: What it did with the value.
        shown: The value as text; its repr, shortened, and its type where empty.
    """
    got = "" if shown else f", got {type(value).__name__}"
    return PluginError(
        f"{who} {verb} {shown or reprlib.repr(value)}; expected {expected}{got}",
        where=f"plugin {plugin!r}" if plugin else None,
        hint="correct it"
        if plugin in ("", CORE)
        else f"report this to the authors of {plugin}, or set AXCORE_BLOCK={plugin}",
    )


def note_owner(error: BaseException, where: str, plugin: str) -> None:
    """Note on an exception that it is from a plugin's code, and how to run without that.

    Args:
        error: Keeps its type.
        where: Which code, with its plugin.
        plugin: Empty, or the core, where nobody can be blocked: nothing is noted.
    """
    is_said = isinstance(error, PluginError) and error.where == f"plugin {plugin!r}"
    if plugin not in ("", CORE) and not is_said:
        error.add_note(f"in {where}; set AXCORE_BLOCK={plugin} to run without it")


def names_of(returns: Returns) -> str:
    """Return how an error names the types that were expected."""
    kinds: Iterable[Any] = get_args(returns) or (returns,)
    return " or ".join("None" if kind is type(None) else kind.__qualname__ for kind in kinds)
