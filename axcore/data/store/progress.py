"""How far a build is, on stderr: a line that changes on a terminal, and lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import Self

from axcore.data.store.build import BuildProgress

_EVERY_S = 10.0
_MIB = 1 << 20


class ProgressLine:
    """Shows a build's progress."""

    def __init__(self) -> None:
        self._is_live = sys.stderr.isatty()
        self._shown_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_live and self._shown_at:
            print(file=sys.stderr)

    def show(self, progress: BuildProgress) -> None:
        """Shows how far the build is; elsewhere than on a terminal not more often than need be."""
        is_first_or_last = progress.left_s in (None, 0)
        if self._is_live:
            print(f"\r\x1b[K{progress_text(progress)}", end="", file=sys.stderr, flush=True)
        elif is_first_or_last or time.monotonic() - self._shown_at >= _EVERY_S:
            print(progress_text(progress), file=sys.stderr, flush=True)
        else:
            return
        self._shown_at = time.monotonic()


def progress_text(progress: BuildProgress) -> str:
    """Returns progress as one line."""
    done, total = progress.done_bytes / _MIB, progress.total_bytes / _MIB
    text = f"data: {done:,.1f} of {total:,.1f} MiB"
    if progress.left_s is None:
        return text
    return f"{text}, {progress.bytes_per_s / _MIB:,.1f} MiB/s, {_duration(progress.left_s)} left"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
