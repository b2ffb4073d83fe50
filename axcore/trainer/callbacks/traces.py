"""The observer `opentelemetry`: the phases of a run as spans.

run           from the first step's preparation to the end; rollbacks and saved checkpoints are
              events of it
compile, evaluation, save
              each from its begin to the next phase
steps         from the first step after a log line to the next line, with the line's metrics
"""

import atexit
import os
import time
from pathlib import Path
from typing import Any

import attrs

from axcore.errors import TrainingError
from axcore.extras import import_extra
from axcore.trainer.callbacks.events import (
    CheckpointSaved,
    Event,
    PhaseStarted,
    RolledBack,
    RunFinished,
    RunStarted,
    StepsDone,
)

_SHOWN_PHASES = ("compile", "restore", "evaluation", "save")
_NAME = "axcore"


class Traces:
    """Records spans, with the program's own provider or one that sends them by OTLP over HTTP.

    The variables of OpenTelemetry hold: `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, ....
    A process that ends by an error ends its spans too, those of the run as failed.
    """

    sees_phases = True

    def __init__(self, provider: Any = None) -> None:
        """Make the observer.

        Args:
            provider: Makes the spans; by default the one that the program has set, or a new one.
        """
        self._library = _library("trace")
        self._provider = provider or self._library.get_tracer_provider()
        if isinstance(self._provider, self._library.ProxyTracerProvider):
            self._provider = _otlp_provider()
        self._tracer = self._provider.get_tracer(_NAME)
        self._run: Any = None
        self._phase: Any = None
        self._steps: Any = None
        self._first_step = 0

    def __call__(self, event: Event) -> None:
        """Begin or end spans."""
        match event:
            case RunStarted():
                self._begin_run(event)
            case PhaseStarted(label=label):
                self._begin_phase(label)
            case StepsDone():
                self._end_steps(event)
            case RolledBack():
                self._run.add_event("rollback", attributes=attrs.asdict(event))
                self._first_step = event.step + 1
            case CheckpointSaved():
                self._run.add_event("checkpoint saved", attributes=attrs.asdict(event))
            case RunFinished():
                self._finish(is_complete=event.is_complete)
            case _:
                pass

    def _begin_run(self, event: RunStarted) -> None:
        shown = ("directory", "step", "max_steps", "num_params", "hardware", "mesh")
        values = {f"axcore.{name}": getattr(event, name) for name in shown}
        name = f"run {Path(event.directory).resolve().name}"
        self._run = self._tracer.start_span(name, attributes=values)
        self._first_step = event.step + 1
        # A process that ends by an error sends no event, and its spans would never be sent.
        atexit.register(self._finish)

    def _begin_phase(self, label: str) -> None:
        if self._phase is not None:
            self._phase.end()
            self._phase = None
        if self._run is None:
            return
        if label in _SHOWN_PHASES:
            self._phase = self._child(label)
        elif label == "step" and self._steps is None:
            self._steps = self._child("steps")

    def _end_steps(self, event: StepsDone) -> None:
        if self._steps is None:
            return
        self._steps.set_attribute("axcore.first_step", self._first_step)
        self._steps.set_attribute("axcore.last_step", event.step)
        for name, value in event.metrics.items():
            self._steps.set_attribute(f"train/{name}", float(value))
        self._steps.end()
        self._steps, self._first_step = None, event.step + 1

    def _child(self, name: str) -> Any:
        parent = self._library.set_span_in_context(self._run)
        # In nanoseconds of the wall clock: spans of several processes are laid side by side.
        return self._tracer.start_span(name, context=parent, start_time=time.time_ns())

    def _finish(self, *, is_complete: bool | None = None) -> None:
        """End all spans, and hand them out; `is_complete` is None where the run did not end."""
        # First, or the handler would keep this observer and its provider alive.
        atexit.unregister(self._finish)
        if self._run is None:
            return
        for span in (self._phase, self._steps):
            if span is not None:
                span.end()
        if is_complete is None:
            status = self._library.Status(self._library.StatusCode.ERROR, "the run did not end")
            self._run.set_status(status)
        else:
            self._run.set_attribute("axcore.is_complete", is_complete)
        self._run.end()
        self._run = self._phase = self._steps = None
        # Batches are sent in the background; a process that ends now would lose the last.
        self._provider.force_flush()


def _otlp_provider() -> Any:
    """Return a provider that sends spans as the variables of OpenTelemetry say."""
    otlp = _library("exporter.otlp.proto.http.trace_exporter")
    service = os.environ.get("OTEL_SERVICE_NAME", _NAME)
    resource = _library("sdk.resources").Resource.create({"service.name": service})
    provider = _library("sdk.trace").TracerProvider(resource=resource)
    processor = _library("sdk.trace.export").BatchSpanProcessor(otlp.OTLPSpanExporter())
    provider.add_span_processor(processor)
    return provider


def _library(name: str) -> Any:
    return import_extra(
        f"opentelemetry.{name}", used_by="the observer 'opentelemetry'", error=TrainingError
    )
