"""Metric writers of a run: those of the config, opened, written to and closed together.

Metrics may not be lost in silence, so a writer that raises ends the run with an error that names
it; the checkpoints that were saved are there to resume from.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from axcore.errors import PluginError, TrainingError
from axcore.plugins import MetricWriter, plugin_host

DEFAULT_WRITER = "json_lines"
"""The writer that is on in every run."""


@runtime_checkable
class Writer(Protocol):
    """What a `MetricWriter` record opens."""

    def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Keeps the metrics of a step; `split` is "train" or "validation". Values may be nan."""

    def close(self) -> None:
        """Finishes what is not written yet."""


def find_writers(names: Iterable[str]) -> tuple[MetricWriter, ...]:
    """Returns the records of writers by name, with the one that is always on first."""
    known = {record.name: record for record in plugin_host().records(MetricWriter)}
    return tuple(known[name] for name in dict.fromkeys((DEFAULT_WRITER, *names)))


class Writers:
    """Several writers as one, open between entry and exit."""

    def __init__(self, records: Iterable[MetricWriter], directory: Path, *, step: int) -> None:
        self._records = tuple(records)
        self._directory = directory
        self._step = step
        self._open: list[tuple[MetricWriter, Writer]] = []

    def __enter__(self) -> Self:
        """Opens every writer.

        Raises:
            TrainingError: One raised; those before it are closed again.
            PluginError: One is no writer.
        """
        arguments = (str(self._directory), self._step)
        try:
            for record in self._records:
                opened = self._try(record, "is opened", record.fn.resolve(), arguments)
                if not isinstance(opened, Writer):
                    raise record.wrong_return("fn", opened, "a writer, which can write and close")
                self._open.append((record, opened))
        except (TrainingError, PluginError) as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Hands metrics to every writer.

        Raises:
            TrainingError: One raised.
        """
        self._step = step
        for record, writer in self._open:
            self._try(record, f"writes {split} metrics", writer.write, (step, split, metrics))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes every writer, also where some raise.

        Raises:
            TrainingError: One raised, and nothing else ends the run; else the error that does gets
                a note.
        """
        problems = [self._close(record, writer) for record, writer in reversed(self._open)]
        self._open.clear()
        for problem in filter(None, problems):
            if error is None:
                raise problem
            error.add_note(problem.what)

    def _close(self, record: MetricWriter, writer: Writer) -> TrainingError | None:
        try:
            self._try(record, "is closed", writer.close, ())
        except TrainingError as error:
            return error
        return None

    def _try(
        self, record: MetricWriter, doing: str, fn: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Any:
        try:
            return fn(*arguments)
        except Exception as error:
            raise TrainingError(
                f"the metric writer {record.name!r} of plugin {record.plugin!r} raised "
                f"{type(error).__name__} while it {doing}: {error}",
                where=f"step {self._step} of {self._directory}",
                hint=_hint(record),
            ) from error


def _hint(record: MetricWriter) -> str:
    again = "fix that and start the run again, which resumes from its last checkpoint"
    return (
        again
        if record.name == DEFAULT_WRITER
        else f"{again}; or take {record.name!r} out of `writers`"
    )
