"""Do all processes of a run have the same plugins, versions, kernels and flags?"""

from collections.abc import Sequence

from axcore.errors import PluginError

_MOST = 8
"""Differences shown; two environments can differ in hundreds of lines."""


def first_difference(first: Sequence[str], own: Sequence[str]) -> str:
    """Return what a process lacks and has beside the first, empty where they are the same.

    Args:
        first: What process 0 is made of, as `PluginHost.fingerprint_lines` says.
        own: What the process in question is made of.
    """
    missing, more = sorted(set(first) - set(own)), sorted(set(own) - set(first))
    shown = [f"lacks {line!r}" for line in missing] + [f"has {line!r}" for line in more]
    rest = f" and {len(shown) - _MOST} more" if len(shown) > _MOST else ""
    return ", ".join(shown[:_MOST]) + rest


def require_consistency(differences: Sequence[str]) -> None:
    """Let a run continue only where all processes say the same of themselves.

    Args:
        differences: What `first_difference` says of each process, in their order.

    Raises:
        PluginError: Naming the processes that differ from the first, and in what.
    """
    problems = [f"process {process} {text}" for process, text in enumerate(differences) if text]
    if problems:
        raise PluginError(
            "the processes of this run differ:\n" + "\n".join(problems),
            where="compared with process 0",
            hint="install the same versions and code everywhere, and set the same variables",
        )
