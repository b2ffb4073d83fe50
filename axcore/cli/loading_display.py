"""`LoadingDisplay`: how far a command is that loads a model and works with it, on stderr."""

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from axcore.cli.work_lines import work_text
from axcore.progress import Work

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID


class LoadingDisplay:
    """Shows phases, and how far one of several parts is. A context manager.

    Its `hear` is a listener of `heard_by`.

    Args:
        console: Where it is shown; stderr where None.
        every_s: Seconds between two lines of one phase, where it is not a terminal.
    """

    def __init__(self, console: "Console | None" = None, *, every_s: float = 1.0) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = console or Console(stderr=True)
        self._live = self._console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[part]}"),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._task: "TaskID | None" = None
        self._every_s = every_s
        self._name, self._began, self._said = "", 0.0, 0.0

    def __enter__(self) -> Self:
        if self._live:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()
        if self._live:
            self._bar.stop()

    def begin(self, name: str, part: str = "") -> None:
        """Begin a phase, and end the one before."""
        self.finish()
        self._name, self._began = name, time.monotonic()
        if self._live:
            self._task = self._bar.add_task(name, total=None, part=part)
        else:
            self._print(f"{name}: {part}" if part else name)

    def advance(self, num_done: int, num_parts: int, part: str) -> None:
        """Show that so many parts of the phase are done, the newest of them `part`."""
        if self._live and self._task is not None:
            text = f"{num_done}/{num_parts} {part}"
            self._bar.update(self._task, completed=num_done, total=num_parts, part=text)
        elif not self._live and (
            num_done == num_parts or time.monotonic() - self._said > self._every_s
        ):
            self._said = time.monotonic()
            self._print(f"{self._name}: {num_done} of {num_parts}, {part}")

    def hear(self, work: Work) -> None:
        """Show how far work of the phase is, on a terminal; elsewhere what is long in it."""
        if self._live and self._task is not None:
            self._bar.update(
                self._task, completed=work.done, total=work.total, part=work_text(work)
            )
        elif not self._live and time.monotonic() - max(self._said, self._began) > self._every_s:
            self._said = time.monotonic()
            self._print(f"{self._name}: {work_text(work)}")

    def finish(self) -> None:
        """End the phase."""
        if self._live and self._task is not None:
            self._bar.update(self._task, completed=1, total=1, refresh=True)
            self._bar.stop_task(self._task)
        elif self._name:
            self._print(f"{self._name}: done in {time.monotonic() - self._began:.1f} s")
        self._task, self._name = None, ""

    def _print(self, text: str) -> None:
        print(text, file=self._console.file, flush=True)
