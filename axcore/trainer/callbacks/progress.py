"""Progress of a run: a live display on a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from axcore.trainer.callbacks.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    Observer,
    RolledBack,
    RunFinished,
    RunStarted,
    StepsDone,
)
from axcore.trainer.callbacks.metrics import validation_line

_BLOCKS = "▁▂▃▄▅▆▇█"


def progress(console: Console | None = None) -> Observer:
    """Return the observer that suits a console; stdout where none is given."""
    console = console or Console()
    return LiveProgress(console) if console.is_terminal else PlainProgress(console)


class Clock:
    """Estimates the time left from the steps done since the first report of a run.

    What comes before that report, such as compiling, is not counted: it does not come again.
    """

    def __init__(self, started: RunStarted) -> None:
        self._max_steps = started.max_steps
        self._first: tuple[int, float] | None = None

    def left(self, done: StepsDone) -> str:
        """Return the time left as `1h02m` or `2m05s`."""
        now, step = time.monotonic(), done.step
        if self._first is None:
            self._first = (step, now)
        first_step, began = self._first
        is_measured = step > first_step
        step_time = (now - began) / (step - first_step) if is_measured else _step_time(done)
        return duration_text(step_time * (self._max_steps - step))


def duration_text(seconds: float) -> str:
    """Return a duration as `1h02m` or `2m05s`."""
    minutes, whole_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{whole_seconds:02d}s"


def _step_time(done: StepsDone) -> float:
    return done.metrics["step_time_s"]


def header(event: RunStarted) -> list[str]:
    """Return the lines that open a run."""
    begin = f"resuming at step {event.step} of" if event.step else "training for"
    lines = [
        f"{begin} {event.max_steps} steps in {event.directory}",
        *(f"changed: {change}" for change in event.config_changes),
        f"model: {event.num_params:,} parameters",
        f"hardware: {event.hardware}, mesh: {event.mesh}",
        *(f"  {line}" for line in event.hardware_changes.splitlines()),
        f"data: {event.data}",
        *(f"weights: {line}" for line in event.initial_weights.splitlines()),
    ]
    return [*lines, *([f"kernels: {event.kernels}"] if event.kernels else []), _mfu(event)]


def _mfu(event: RunStarted) -> str:
    if event.flops is None:
        return "MFU: not shown, the model does not say what its FLOPs are"
    if event.peak_flops is None:
        return f"MFU: not shown, the peak of {event.hardware} is not known"
    per_unit, formula = event.flops
    return (
        f"MFU: {formula} = {per_unit:.3g} FLOPs per {event.unit}, over a peak of "
        f"{event.peak_flops:.3g} FLOP/s"
    )


def figures(metrics: Mapping[str, float], started: RunStarted) -> str:
    """Return the figures of a step that people watch."""
    units_per_s = metrics[f"{started.unit}s_per_s"]
    text = f"loss {metrics['loss']:.4f}"
    for name in started.watched:
        if name in metrics:
            text += f"  {name.removeprefix('loss/')} {metrics[name]:.3g}"
    text += f"  {units_per_s:,.0f} {started.unit}s/s"
    if started.peak_flops and started.flops:
        text += f"  MFU {units_per_s * started.flops.per_unit / started.peak_flops:.1%}"
    if metrics["skipped_steps"]:
        text += f"  skipped {metrics['skipped_steps']:.0f}"
    return text


def _validation(event: Evaluated, started: RunStarted | None) -> str:
    return validation_line(event.metrics, started.units if started else {})


def rollback(event: RolledBack) -> str:
    """Return the line that says why a run went back, and to where."""
    data = "skipping their data" if event.skips_data else "on the same data"
    return f"step {event.from_step}  back to step {event.step}, {data}: {event.reason}"


def footer(event: RunFinished) -> str:
    """Return the line that closes a run."""
    if event.stop_reason:
        return f"stopped early at step {event.step}: {event.stop_reason}"
    if event.is_complete:
        return f"done at step {event.step}"
    return f"stopped at step {event.step}; the same command resumes here"


class PlainProgress:
    """One line an event, for files and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started: RunStarted | None = None
        self._clock: Clock | None = None

    def __call__(self, event: Event) -> None:
        """Print a line where there is something to say."""
        if isinstance(event, RunStarted):
            self._started, self._clock = event, Clock(event)
            self._print("\n".join(header(event)))
        elif isinstance(event, StepsDone) and self._started and self._clock:
            text = figures(event.metrics, self._started)
            self._print(f"step {event.step}  {text}  {self._clock.left(event)} left")
        elif isinstance(event, Evaluated):
            self._print(f"step {event.step}  {_validation(event, self._started)}")
        elif isinstance(event, CheckpointSaved):
            self._print(f"step {event.step}  checkpoint saved")
        elif isinstance(event, RolledBack):
            self._print(rollback(event))
        elif isinstance(event, RunFinished):
            self._print(footer(event))

    def _print(self, text: str) -> None:
        print(text, file=self._console.file, flush=True)


class LiveProgress:
    """A bar with the figures and the course of the loss, and a line for what stays."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started: RunStarted | None = None
        self._clock: Clock | None = None
        self._losses: list[float] = []
        self._bar = Progress(
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[figures]}"),
            TextColumn("[dim]{task.fields[course]}"),
            TextColumn("{task.fields[left]}"),
            console=console,
        )

    def __call__(self, event: Event) -> None:
        """Bring the display up to date."""
        if isinstance(event, RunStarted):
            self._start(event)
        elif isinstance(event, StepsDone):
            self._advance(event)
        elif isinstance(event, Evaluated):
            line = f"step {event.step}: {_validation(event, self._started)}"
            self._console.print(Text(line, style="bold"))
        elif isinstance(event, RolledBack):
            self._console.print(Text(rollback(event), style="bold"))
        elif isinstance(event, RunFinished):
            self._bar.stop()
            self._console.print(footer(event))

    def _start(self, event: RunStarted) -> None:
        self._started, self._clock = event, Clock(event)
        for line in header(event):
            self._console.print(Text(line, style="dim"))
        self._bar.start()
        self._task = self._bar.add_task(
            "", total=event.max_steps, completed=event.step, figures="compiling", course="", left=""
        )

    def _advance(self, event: StepsDone) -> None:
        assert self._started is not None
        assert self._clock is not None
        self._losses.append(event.metrics["loss"])
        self._bar.update(
            self._task,
            completed=event.step,
            figures=figures(event.metrics, self._started),
            course=_sparkline(self._losses[-24:]),
            left=f"{self._clock.left(event)} left",
        )


def _sparkline(values: list[float]) -> str:
    """Return values as a row of blocks, the highest the tallest."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BLOCKS[round((value - low) / span * (len(_BLOCKS) - 1))] for value in values)
