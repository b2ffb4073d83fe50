"""What happens around the steps: a directory that goes away, time that steps do not see."""

import json
import time

import pytest

from axcore.errors import CheckpointError
from axcore.trainer import CheckpointSaved, Evaluated, RunFinished, StepsDone
from axcore.trainer.callbacks.metrics import MetricsFile


@pytest.fixture(scope="module")
def removed(toy_trainer, tmp_path_factory):
    """The events and the error of a run that waits after step 4 and loses its directory at 6.

    The directory goes at once, and when no save is in flight, which would fail first.
    """
    run, events, on_disk = tmp_path_factory.mktemp("removed") / "run", [], []

    def observer(event):
        events.append(event)
        if isinstance(event, CheckpointSaved):
            on_disk.append((run / f"checkpoints/step_{event.step:08d}/manifest.json").exists())
        if isinstance(event, Evaluated):
            time.sleep(0.2)
        if isinstance(event, StepsDone) and event.step == 6:
            while not (run / "checkpoints/step_00000004/known_good").exists():
                time.sleep(0.01)
            run.rename(run.with_name("gone"))

    with pytest.raises(CheckpointError) as error:
        toy_trainer.run(run, [observer])
    return events, error.value, on_disk


@pytest.mark.slow
def test_a_run_whose_directory_was_removed_ends_with_an_error(removed):
    events, error, _ = removed
    assert "the run directory was removed or moved while the run trained" in error.what
    assert not any(isinstance(event, RunFinished) for event in events)
    assert max(event.step for event in events if isinstance(event, StepsDone)) == 6


@pytest.mark.slow
def test_wall_clock_throughput_counts_evaluations_and_saves(removed):
    (line,) = [e.metrics for e in removed[0] if isinstance(e, StepsDone) and e.step == 5]
    assert line["wall_clock_tokens_per_s"] < 8 * 16 / 0.2
    assert line["wall_clock_tokens_per_s"] < line["tokens_per_s"]


def test_a_checkpoint_is_reported_when_it_is_on_the_disk(removed):
    assert removed[2] in ([], [True])  # the directory may be gone before it is reported


def test_damaged_lines_of_metrics_are_named_and_one_cut_short_by_a_kill_is_not(tmp_path, recwarn):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": step, "split": "train"}) for step in range(1, 5)]
    path.write_text("\n".join([*lines, '{"step": 5, "sp']), encoding="utf-8")
    MetricsFile(path, step=4).close()
    assert not recwarn.list
    path.write_text("\n".join([lines[0], "{sp\x00lit}", *lines[2:], ""]), encoding="utf-8")
    with pytest.warns(UserWarning, match=r"metrics\.jsonl is damaged at line 2: no metrics"):
        MetricsFile(path, step=4).close()
    assert path.read_text(encoding="utf-8").splitlines() == [lines[0], *lines[2:]]
