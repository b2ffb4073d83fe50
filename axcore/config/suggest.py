"""Did-you-mean: the names close to a misspelt one."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], max_names: int = 3) -> str | None:
    """Return `did you mean 'x' or 'y'?`, or None where nothing known is close to `name`."""
    close = difflib.get_close_matches(name, list(known), n=max_names, cutoff=0.6)
    if not close:
        return None
    return "did you mean " + " or ".join(repr(match) for match in close) + "?"


def suggest_names(name: str, known: Iterable[str], max_names: int = 12) -> str:
    """Return a did-you-mean, or a list of what there is where nothing is close."""
    names = sorted(known)
    shown = ", ".join(names[:max_names]) + (
        f", ... ({len(names)} in all)" if len(names) > max_names else ""
    )
    return did_you_mean(name, names) or f"known: {shown or '(none)'}"
