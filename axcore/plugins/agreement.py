"""Do all processes of a run have the same plugins, versions, kernels and flags?"""

from collections.abc import Sequence

from axcore.errors import PluginError

_MOST = 8
"""Differences shown; two environments can differ in hundreds of lines."""


def require_agreement(lines_by_process: Sequence[Sequence[str]]) -> None:
    """Lets a run go on only where all processes say the same of themselves.

    Args:
        lines_by_process: What each process is made of, as `PluginHost.fingerprint_lines` says,
            in the order of processes.

    Raises:
        PluginError: Naming the processes that differ from the first, and in what.
    """
    first = set(lines_by_process[0])
    problems = []
    for process, lines in enumerate(lines_by_process):
        missing, more = sorted(first - set(lines)), sorted(set(lines) - first)
        shown = [f"lacks {line!r}" for line in missing] + [f"has {line!r}" for line in more]
        if shown:
            rest = f" and {len(shown) - _MOST} more" if len(shown) > _MOST else ""
            problems.append(f"process {process} {', '.join(shown[:_MOST])}{rest}")
    if problems:
        raise PluginError(
            "the processes of this run differ:\n" + "\n".join(problems),
            where="compared with process 0",
            mend="install the same versions everywhere, and set the same variables",
        )
