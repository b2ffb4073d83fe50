"""Metric writers of a run: those of the config, opened, written to and closed together.

Metrics may not be lost in silence, so a writer that raises ends the run with an error that names
it; the checkpoints that were saved are there to resume from. So does one that does not finish in
time. Each works in a thread of its own, while the run waits for it.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from axcore.errors import PluginError, TrainingError
from axcore.plugins import MetricWriter, plugin_host
from axcore.plugins.time_limit import CallThread, TakesTooLongError, callback_timeout_s, longer

DEFAULT_WRITER = "json_lines"
"""The writer that is on in every run."""


@runtime_checkable
class Writer(Protocol):
    """What a `MetricWriter` record opens."""

    def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Keep the metrics of a step; `split` is "train" or "validation". Values may be nan."""

    def close(self) -> None:
        """Finish what is not written yet."""


def find_writers(names: Iterable[str]) -> tuple[MetricWriter, ...]:
    """Return the records of writers by name, with the one that is always on first."""
    known = {record.name: record for record in plugin_host().records(MetricWriter)}
    # First, so that what is on the disk does not depend on a board that hangs.
    return tuple(known[name] for name in dict.fromkeys((DEFAULT_WRITER, *names)))


class Writers:
    """Several writers as one, open between entry and exit."""

    def __init__(self, records: Iterable[MetricWriter], directory: Path, *, step: int) -> None:
        self._records = tuple(records)
        self._directory = directory
        self._step = step
        self._limit_s = callback_timeout_s()
        self._threads: list[CallThread] = []
        self._open: list[tuple[MetricWriter, CallThread, Writer]] = []

    def __enter__(self) -> Self:
        """Open every writer.

        Raises:
            TrainingError: One raised, or did not finish in time; those before it are closed again.
            PluginError: One is not a writer.
        """
        arguments = (str(self._directory), self._step)
        try:
            for record in self._records:
                # A thread for each: one that hangs must not hold up the others at the end.
                thread = CallThread(record.fn.target.partition(".")[0])
                self._threads.append(thread)
                opened = self._try(record, thread, "is opened", record.fn.resolve(), arguments)
                if not isinstance(opened, Writer):
                    raise record.wrong_return("fn", opened, "a writer, which can write and close")
                self._open.append((record, thread, opened))
        except (TrainingError, PluginError) as error:
            # Those that are open are closed again; a file
            # that stays open would lose its last lines.
            self.__exit__(type(error), error, None)
            raise
        return self

    def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Hand metrics to every writer.

        Raises:
            TrainingError: One raised, or did not finish in time.
        """
        self._step = step
        for record, thread, writer in self._open:
            doing, arguments = f"writes {split} metrics", (step, split, metrics)
            self._try(record, thread, doing, writer.write, arguments)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close every writer, also where some raise.

        Raises:
            TrainingError: One raised, and nothing else ends the run; else the error that does gets
                a note.
        """
        # In reverse, as usual for what was opened one after another.
        problems = [self._close(*one) for one in reversed(self._open)]
        self._open.clear()
        for thread in self._threads:
            thread.end()
        for problem in filter(None, problems):
            # Not instead of the error that ends the run, which people look for.
            if error is None:
                raise problem
            error.add_note(problem.what)

    def _close(
        self, record: MetricWriter, thread: CallThread, writer: Writer
    ) -> TrainingError | None:
        try:
            self._try(record, thread, "is closed", writer.close, ())
        except TrainingError as error:
            return error
        return None

    def _try(
        self,
        record: MetricWriter,
        thread: CallThread,
        doing: str,
        fn: Callable[..., Any],
        arguments: tuple[Any, ...],
    ) -> Any:
        who = f"the metric writer {record.name!r} of plugin {record.plugin!r}"
        where = f"step {self._step} of {self._directory}"
        try:
            return thread.within(self._limit_s, lambda: fn(*arguments))
        except TakesTooLongError as place:
            # Its thread is busy for ever: nothing can close it.
            self._open = [one for one in self._open if one[1] is not thread]
            raise TrainingError(
                f"{who} has not finished after {self._limit_s:g} s while it {doing}; it is at "
                f"{place}",
                where=where,
                hint=f"{_hint(record)}; or {longer(self._limit_s)}",
            ) from None
        except (Exception, SystemExit) as error:  # the latter would end the run without a word
            raise TrainingError(
                f"{who} raised {type(error).__name__} while it {doing}: {error}",
                where=where,
                hint=_hint(record),
            ) from error


def _hint(record: MetricWriter) -> str:
    again = "fix that and start the run again, which resumes from its last checkpoint"
    return (
        again
        if record.name == DEFAULT_WRITER
        else f"{again}; or take {record.name!r} out of `writers`"
    )
