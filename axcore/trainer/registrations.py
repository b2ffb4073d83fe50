"""The metric writers and the observers of the core."""

from collections.abc import Iterator

from axcore.plugins import MetricWriter, Ref, RunObserver, hook


@hook.metric_writers
def metric_writers() -> Iterator[MetricWriter]:
    """Where metrics go."""
    yield MetricWriter(
        name="json_lines",
        fn=Ref("axcore.trainer.callbacks.metrics:json_lines"),
        summary="metrics.jsonl in the run directory, an object a line",
    )
    yield MetricWriter(
        name="tensorboard",
        fn=Ref("axcore.trainer.callbacks.boards:tensorboard"),
        summary="event files in the run directory, for TensorBoard",
        library="tensorboardX",
    )
    yield MetricWriter(
        name="wandb",
        fn=Ref("axcore.trainer.callbacks.boards:wandb"),
        summary="Weights & Biases, under the run's own id",
        library="wandb",
    )
    yield MetricWriter(
        name="prometheus",
        fn=Ref("axcore.trainer.callbacks.boards:prometheus"),
        summary="metrics.prom in the run directory: newest values, for a collector of files",
    )
    yield MetricWriter(
        name="mlflow",
        fn=Ref("axcore.trainer.callbacks.boards:mlflow"),
        summary="MLflow, on its server or as files in the run directory",
        library="mlflow",
    )


@hook.observers
def observers() -> Iterator[RunObserver]:
    """What can watch a run."""
    yield RunObserver(
        name="heartbeat",
        fn=Ref("axcore.trainer.callbacks.events:Heartbeat"),
        summary="heartbeat.json in the run directory, for a supervisor to watch",
    )
    yield RunObserver(
        name="opentelemetry",
        fn=Ref("axcore.trainer.callbacks.traces:Traces"),
        summary="Spans of the run, its steps, saves and evaluations, by OTLP",
        library="opentelemetry",
    )
