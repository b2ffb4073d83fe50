"""The observer `opentelemetry`: spans of a run, as the library's own exporter gets them."""

import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import axcore as ax
from axcore.errors import TrainingError
from axcore.testing import small_experiment, trainer_on
from axcore.trainer.callbacks import (
    Evaluated,
    PhaseStarted,
    RolledBack,
    RunFinished,
    RunStarted,
    StepsDone,
)
from axcore.trainer.callbacks.traces import Traces

STARTED = RunStarted(
    directory="runs/x", step=0, max_steps=4, num_params=5, hardware="cpu-1", hardware_changes="",
    mesh="1 device", data="", kernels="", unit="token", flops=None, peak_flops=None,
)  # fmt: skip


@pytest.fixture
def spans():
    """Returns an observer, and what it has exported."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Traces(provider), exporter.get_finished_spans


@pytest.mark.slow
def test_spans_of_a_run_are_its_phases(spans, tmp_path):
    observer, finished = spans
    cfg = ax.update_config(
        small_experiment(tmp_path / "texts"), {"mesh": {"fsdp": 1}, "logging.every_steps": 1}
    )
    trainer_on(cfg, 1).run(tmp_path / "run", [observer], quiet=True)
    *parts, run = finished()
    assert run.name == "run run"
    assert run.attributes["axcore.is_complete"] is True
    assert [event.name for event in run.events] == ["checkpoint saved"]
    assert {part.parent.span_id for part in parts} == {run.context.span_id}
    names = [part.name for part in parts]
    assert names[0] == "compile"
    assert {"evaluation", "save"} <= set(names)
    windows = [part for part in parts if part.name == "steps"]
    assert [window.attributes["axcore.first_step"] for window in windows] == [1, 2]
    losses = ax.load_run(tmp_path / "run").metrics["train"]["loss"]
    assert [window.attributes["train/loss"] for window in windows] == list(losses)
    assert all(run.start_time <= part.start_time <= part.end_time for part in parts)


def test_steps_that_are_run_again_are_counted_from_there(spans):
    observer, finished = spans
    observer(STARTED)
    for step in (2, 4):
        observer(PhaseStarted("step"))
        observer(StepsDone(step=step, metrics={"loss": 1.0}))
    observer(RolledBack(from_step=4, step=2, reason="spikes", skips_data=True))
    observer(PhaseStarted("step"))
    observer(StepsDone(step=3, metrics={"loss": 1.0}))
    observer(Evaluated(step=3, metrics={"loss": 1.0}))
    observer(RunFinished(step=3, is_complete=False))
    *windows, run = finished()
    bounds = [
        tuple(w.attributes[f"axcore.{end}_step"] for end in ("first", "last")) for w in windows
    ]
    assert bounds == [(1, 2), (3, 4), (3, 3)]
    (event,) = run.events
    assert (event.name, event.attributes["reason"]) == ("rollback", "spikes")
    assert run.attributes["axcore.is_complete"] is False


def test_a_process_that_dies_has_a_failed_run(spans):
    observer, finished = spans
    observer(STARTED)
    observer(PhaseStarted("compile"))
    observer._finish()  # as the interpreter's exit calls it
    part, run = finished()
    assert part.name == "compile"
    assert run.status.status_code is StatusCode.ERROR


def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(TrainingError, match=r"needs opentelemetry, which is not") as found:
        Traces()
    assert "axcore[opentelemetry]" in found.value.hint
