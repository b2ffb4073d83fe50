"""`SavedSteps`: which checkpoints a run has, so that losing them is noticed.

saved_steps.json    the newest step that was saved, and where; how often the run went back; the step
                    that each launch went back to
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from axcore.config.json_files import read_json_file
from axcore.errors import CheckpointError, ConfigError
from axcore.trainer.run_directory.json_lines import read_json_lines
from axcore.trainer.run_directory.run_history import RUN_HISTORY_NAME
from axcore.whole_files import write_whole

SAVED_STEPS_NAME = "saved_steps.json"


def record_saved_step(
    run: Path, step: int, place: Path, went_back: tuple[int, Mapping[str, int]] = (0, {})
) -> None:
    """Note the newest checkpoint of a run, and how it went back.

    Args:
        run: The run directory.
        step: Of the checkpoint; 0 for none.
        place: Where checkpoints are.
        went_back: How often the run went back to an older step, and to which one for each launch.
    """
    rewinds, launches = went_back
    values = {"newest": step, "directory": str(place), "rewinds": rewinds}
    text = json.dumps({**values, "launches": dict(launches)})
    write_whole(run / SAVED_STEPS_NAME, f"{text}\n".encode())


def recorded_rewinds(run: Path) -> tuple[int, dict[str, int]]:
    """Return how often a run went back to an older step, and to which one for each launch."""
    recorded = _recorded(run)
    return int(recorded.get("rewinds", 0)), dict(recorded.get("launches", {}))


def check_max_steps(run: Path, max_steps: int, from_step: int | None) -> None:
    """Check that a run resumes before its end.

    Raises:
        ConfigError: It has made more steps than it is to make.
    """
    step = _newest_recorded(run)[0] if from_step is None else from_step
    if step > max_steps:
        raise ConfigError(
            f"max_steps is {max_steps}, and the run resumes from step {step}",
            where="max_steps",
            hint=f"--set max_steps={step} or more; `axcore train --from-step N` goes back to an "
            "earlier checkpoint",
        )


def check_saved_steps(run: Path, steps: Sequence[int], place: Path, *, snapshot: str = "") -> bool:
    """Return whether the newest checkpoint that the run saved is there; warns where it is not.

    Args:
        run: The run directory.
        steps: Of the checkpoints that are there.
        place: Where they are.
        snapshot: What the run resumes from in their stead.

    Raises:
        CheckpointError: The run saved some, there is none, and no snapshot.
    """
    newest, directory = _newest_recorded(run)
    if newest <= max(steps, default=0):
        return True
    moved = f" (it was saved in {directory})" if directory not in ("", str(place)) else ""
    if not steps and not snapshot:
        raise CheckpointError(
            f"the run saved a checkpoint of step {newest}{moved}, and there is none",
            where=str(place),
            hint="put the checkpoints back, mount their disk or name their checkpoint.directory; "
            "`axcore train --from-step 0` starts again on purpose",
        )
    warnings.warn(
        f"step {newest} was saved and is not in {place}{moved}; resuming from "
        f"{snapshot or f'step {max(steps)}'}",
        stacklevel=2,
    )
    return False


def _newest_recorded(run: Path) -> tuple[int, str]:
    """Return the newest step that the run is known to have saved, and where; 0 if none."""
    started = [int(one.get("step", 0)) for one in read_json_lines(run / RUN_HISTORY_NAME)]
    try:
        saved = _recorded(run)
        return int(saved["newest"]), str(saved["directory"])
    except (ValueError, KeyError, TypeError):
        return max(started, default=0), ""


def _recorded(run: Path) -> dict[str, Any]:
    try:
        return dict(read_json_file(run / SAVED_STEPS_NAME))
    except (OSError, ValueError, TypeError):
        return {}
