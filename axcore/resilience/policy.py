"""`Policy`: what a supervisor does about a failure, how often, and what it calls a hang."""

from collections.abc import Mapping
from typing import Literal

from axcore.config import NonNegativeInt, PositiveInt, config

Cause = Literal["killed", "crashed", "lost", "hung", "corrupted", "refused"]
"""Why an attempt ended: a signal from outside, a fault of the program, a process that lost another,
a process that made no progress, a device that changed parameters, or an error that another attempt
would meet again."""

Answer = Literal["restart_processes", "stop"]


@config
class Rung:
    """One answer of a ladder, and how often it may be given within the policy's window."""

    answer: Answer = "restart_processes"
    times: int = 10


@config
class Policy:
    """Maps causes to ladders of answers; where all rungs of a ladder are spent, the run stops.

    Args:
        ladder: Answers by cause, the first that has some left; a cause without one stops the run.
        window_s: Answers older than this no longer count.
        attempts_at_one_step: A run that fails so often at one step, and never came further, stops.
        shrink_to: Least number of processes with which a run continues where one that keeps failing
            is left out; 0 leaves none out.
        failures_of_one: A process whose own the newest so many failures are is left out.
        backoff_s: Wait before an attempt that follows one without progress; doubled each time.
        beat_s: Seconds without a beat after which a living process is hung.
        phase_s: Seconds that a phase may take; the first step has that of `compile`.
        step_s: Seconds that any other phase may take, at least.
        step_factor: Any other phase may take that many times a recent step, where that is longer.
        in_process: Whether trainers that survive the loss of another keep their processes, and join
            the next attempt; those that cannot are started again.
        stand_down_s: Seconds that survivors have for it.
        spares: Whether a spare waits for each process, to take its place without imports.
    """

    ladder: Mapping[str, tuple[Rung, ...]] = {
        "killed": (Rung(times=100),),
        "crashed": (Rung(times=10),),
        "lost": (Rung(times=10),),
        "hung": (Rung(times=10),),
        "corrupted": (Rung(times=3),),
    }
    window_s: float = 24 * 3600.0
    attempts_at_one_step: int = 3
    shrink_to: NonNegativeInt = 0
    failures_of_one: PositiveInt = 3
    backoff_s: float = 1.0
    beat_s: float = 60.0
    phase_s: Mapping[str, float] = {
        "start": 900.0,
        "compile": 3600.0,
        "restore": 1800.0,
        "evaluation": 3600.0,
        "save": 1800.0,
    }
    step_s: float = 300.0
    step_factor: float = 20.0
    in_process: bool = False
    stand_down_s: float = 3.0
    spares: bool = True

    def limit_s(self, phase: str, typical_step_s: float | None) -> float:
        """Returns how long a process may make no progress in a phase.

        Args:
            phase: The phase it is in.
            typical_step_s: The time of recent steps; None before the first one has ended.
        """
        if phase in self.phase_s:
            return self.phase_s[phase]
        if typical_step_s is None:
            return max(self.step_s, self.phase_s.get("compile", 0.0))
        return max(self.step_s, self.step_factor * typical_step_s)
