"""`StepProfiler`: records some steps of a run, to be read later.

RUN/profiles/FIRST-LAST/
    plugins/profile/...   the trace, as XProf and TensorBoard read it
    program.txt.gz        the compiled step, whose names lead from operations to modules
    profile.json          which steps of what
"""

import gzip
import json
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from axcore.errors import ConfigError
from axcore.trainer import Event, PhaseStarted, RolledBack, RunFinished, RunStarted

PROFILES, PROGRAM_NAME, PROFILE_NAME = "profiles", "program.txt.gz", "profile.json"
_PROFILE_SIGNAL = signal.SIGUSR1
_STEPS_BY_SIGNAL = 3


def parse_steps(text: str) -> range:
    """Return the steps that `FIRST:LAST` means, both of them included.

    Raises:
        ConfigError: It means none.
    """
    first, _, last = text.partition(":")
    if first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last):
        return range(int(first), int(last) + 1)
    raise ConfigError(
        f"{text!r} names no steps",
        where="--profile",
        hint="write FIRST:LAST, as 10:13; the first step of a run is 1",
    )


def recorded_profiles(run: Path) -> list[Path]:
    """Return the folders of a run's recordings, the newest last."""
    found = (run / PROFILES).glob(f"*/{PROFILE_NAME}")
    return [one.parent for one in sorted(found, key=lambda one: one.stat().st_mtime)]


class StepProfiler:
    """An observer that records the steps it was asked for, and those after a signal.

    Args:
        program: Returns the text of the compiled step.
        steps: Which steps; those that a run has done already are not recorded.
    """

    sees_phases = True

    def __init__(self, program: Callable[[], str], steps: range = range(0)) -> None:
        self._program = program
        self._wanted = steps
        self._steps = steps
        self._directory = Path()
        self._hardware = ""
        self._step = 0
        self._folder: Path | None = None
        self._is_asked = threading.Event()
        self._was_recorded = False

    def record_on_signal(self) -> None:
        """Record some steps whenever the process gets SIGUSR1; call it in the main thread."""
        # Only a flag: a handler runs between any two bytecodes, also in the middle of a step.
        signal.signal(_PROFILE_SIGNAL, lambda *_: self._is_asked.set())

    def __call__(self, event: Event) -> None:
        """Begin or end a recording where a step begins, and end it with the run."""
        match event:
            case RunStarted():
                self._directory, self._step = Path(event.directory), event.step
                self._hardware = event.hardware
            case RolledBack():
                self._step = event.step
            case PhaseStarted(label="step"):
                self._before_step(self._step + 1)
                self._step += 1
            case RunFinished():
                self._finish()
                if self._wanted and not self._was_recorded:
                    warnings.warn(
                        f"no step was profiled: {self._wanted[0]}:{self._wanted[-1]} was asked "
                        f"for, and this start ran none of them up to its end, step {event.step}",
                        stacklevel=2,
                    )
            case _:
                pass

    def _before_step(self, step: int) -> None:
        if self._folder is not None and step > self._steps[-1]:
            self._finish()
        if self._folder is None and self._is_asked.is_set():
            self._is_asked.clear()
            self._steps = range(step, step + _STEPS_BY_SIGNAL)
        if self._folder is None and step in self._steps:
            self._begin(range(step, self._steps[-1] + 1))

    def _begin(self, steps: range) -> None:
        # Steps are dispatched ahead: without waiting, the trace would begin with older ones.
        _wait_for_devices()
        self._steps = steps
        self._folder = _new_folder(self._directory / PROFILES, f"{steps[0]}-{steps[-1]}")
        options: Any = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # tracing Python slows the steps that are measured
        jax.profiler.start_trace(str(self._folder), profiler_options=options)

    def _finish(self) -> None:
        if self._folder is None:
            return
        folder, self._folder = self._folder, None
        _wait_for_devices()
        jax.profiler.stop_trace()  # type: ignore[no-untyped-call]
        self._was_recorded = True
        with gzip.open(folder / PROGRAM_NAME, "wt", encoding="utf-8") as file:
            file.write(self._program())
        facts = {"steps": [self._steps[0], self._step], "hardware": self._hardware}
        (folder / PROFILE_NAME).write_text(json.dumps(facts) + "\n", encoding="utf-8")


def _wait_for_devices() -> None:
    """Wait until no step is in flight."""
    jax.block_until_ready(jax.live_arrays())  # type: ignore[no-untyped-call]


def _new_folder(parent: Path, name: str) -> Path:
    names = (name, *(f"{name}.{number}" for number in range(2, 10_000)))
    folder = next(parent / one for one in names if not (parent / one).exists())
    folder.mkdir(parents=True)
    return folder
