"""Metric writers for dashboards: TensorBoard, Weights & Biases, Prometheus and MLflow.

A metric has the name SPLIT/NAME on each, as `train/loss`. MLflow allows few characters in it and
keeps metrics as files and folders, so every other character of NAME becomes a point there.
"""

import logging
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from axcore.config.json_files import read_json_file
from axcore.errors import TrainingError
from axcore.extras import import_extra
from axcore.whole_files import write_whole

TENSORBOARD_FOLDER, WANDB_FOLDER, PROMETHEUS_NAME = "tensorboard", "wandb", "metrics.prom"


def tensorboard(directory: str, step: int) -> "TensorBoardWriter":
    """Open the writer `tensorboard`: event files in the run directory.

    Raises:
        TrainingError: tensorboardX is not installed.
    """
    return TensorBoardWriter(Path(directory) / TENSORBOARD_FOLDER, step=step)


def wandb(directory: str, step: int) -> "WeightsAndBiasesWriter":
    """Open the writer `wandb`: the run under its own id, resumed where it was.

    Raises:
        TrainingError: wandb is not installed.
    """
    return WeightsAndBiasesWriter(Path(directory), step=step)


def prometheus(directory: str, step: int) -> "PrometheusWriter":
    """Open the writer `prometheus`: the newest values, as a collector of text files reads them."""
    return PrometheusWriter(Path(directory))


class TensorBoardWriter:
    """Event files; TensorBoard drops what an earlier start wrote past the step."""

    def __init__(self, folder: Path, *, step: int) -> None:
        library = import_extra(
            "tensorboardX", used_by="the metric writer 'tensorboard'", error=TrainingError
        )
        logging.getLogger("tensorboardX.x2num").setLevel(
            logging.ERROR
        )  # values that are not finite
        self._writer = library.SummaryWriter(
            str(folder),
            purge_step=step + 1 if step else None,
            # Two starts within a second would share a file, and the second empty it.
            filename_suffix=f".{time.time_ns()}",
        )

    def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Add a point to each curve, and hand all of them to the operating system."""
        for name, value in metrics.items():
            self._writer.add_scalar(f"{split}/{name}", value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class WeightsAndBiasesWriter:
    """One run of Weights & Biases for a run of ours, over all its starts.

    `WANDB_PROJECT`, `WANDB_MODE` and the other variables of the library hold. Its server keeps the
    first value that it got for a step, so points that a resumed run writes again change nothing.
    """

    def __init__(self, directory: Path, *, step: int) -> None:
        library = import_extra("wandb", used_by="the metric writer 'wandb'", error=TrainingError)
        identity = read_json_file(directory / "run.json")["id"]
        self._run = library.init(
            dir=str(directory),
            id=identity,
            name=directory.resolve().name,
            resume="allow",
            config=read_json_file(directory / "config.json"),
            settings=library.Settings(console="off", silent=True),
        )
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Add a point to each curve, over `step`."""
        self._run.log({"step": step, **{f"{split}/{k}": float(v) for k, v in metrics.items()}})

    def close(self) -> None:
        """Upload what is left, where the run is not offline, and end it."""
        self._run.finish()


class PrometheusWriter:
    """A file in the text format of Prometheus: the newest value of each metric.

    The node exporter's textfile collector reads it, where a link in its folder leads here.
    Source: https://prometheus.io/docs/instrumenting/exposition_formats/.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / PROMETHEUS_NAME
        self._run = directory.resolve().name.replace("\\", "\\\\").replace('"', '\\"')
        self._newest: dict[str, float] = {}

    def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Write the file again, whole or not at all."""
        values = {f"{split}/step": step, **{f"{split}/{k}": v for k, v in metrics.items()}}
        self._newest |= {_prometheus_name(name): float(value) for name, value in values.items()}
        lines = [
            f'# TYPE {name} gauge\n{name}{{run="{self._run}"}} {_prometheus_value(value)}\n'
            for name, value in sorted(self._newest.items())
        ]
        write_whole(self._path, "".join(lines).encode())

    def close(self) -> None:
        """Leave the last values there."""


def _prometheus_name(name: str) -> str:
    return "axcore_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)


def _prometheus_value(value: float) -> str:
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(str(value), repr(value))


MLFLOW_FOLDER, EXPERIMENT, ID_TAG = "mlflow", "axcore", "axcore.run_id"
_AT_ONCE, _MAX_CHARACTERS = 100, 6000
"""How many values of the config the library takes at once, and characters of each."""

_USED_BY = "the metric writer 'mlflow'"


def mlflow(directory: str, step: int) -> "MLflowWriter":
    """Open the writer `mlflow`: the server of MLFLOW_TRACKING_URI, or files in the run directory.

    Raises:
        TrainingError: mlflow-skinny is not installed.
    """
    return MLflowWriter(Path(directory))


class MLflowWriter:
    """One run of MLflow for a run of ours, found by a tag that holds our run's id.

    Its params are the lines of the config.

    `MLFLOW_TRACKING_URI`, `MLFLOW_EXPERIMENT_NAME` and the library's other variables hold. MLflow
    deletes no point: it keeps those that a resumed run writes again next to the old ones.
    """

    def __init__(self, directory: Path) -> None:
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if not address:
            address = (directory / MLFLOW_FOLDER).resolve().as_uri()
            # By default MLflow refuses a folder of files and asks for a database.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        library = import_extra("mlflow.tracking", used_by=_USED_BY, error=TrainingError)
        entities = import_extra("mlflow.entities", used_by=_USED_BY, error=TrainingError)
        self._metric, self._param = entities.Metric, entities.Param
        self._client = library.MlflowClient(tracking_uri=address)
        self._run_id = self._resume(directory) or self._create(directory)

    def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Add a point to each curve."""
        now = int(1000 * time.time())
        points = [
            self._metric(f"{split}/{_metric_name(name)}", float(value), now, step)
            for name, value in metrics.items()
        ]
        self._client.log_batch(self._run_id, metrics=points)

    def close(self) -> None:
        """Mark the run as ended."""
        self._client.set_terminated(self._run_id)

    def _resume(self, directory: Path) -> str | None:
        """Return the id of the run that an earlier start made; None where there is none."""
        experiment, identity = self._experiment(), _identity(directory)
        condition = f"tags.`{ID_TAG}` = '{identity}'"
        found = self._client.search_runs([experiment], filter_string=condition)
        if not found:
            return None
        run_id: str = found[0].info.run_id
        self._client.update_run(run_id, status="RUNNING")
        return run_id

    def _create(self, directory: Path) -> str:
        tags = {ID_TAG: _identity(directory)}
        name = directory.resolve().name
        made = self._client.create_run(self._experiment(), run_name=name, tags=tags)
        run_id: str = made.info.run_id
        lines = (directory / "config.txt").read_text("utf-8").splitlines()
        pairs = [line.partition(": ") for line in lines if ": " in line]
        params = [
            self._param(_metric_name(path), value[:_MAX_CHARACTERS]) for path, _, value in pairs
        ]
        for start in range(0, len(params), _AT_ONCE):
            self._client.log_batch(run_id, params=params[start : start + _AT_ONCE])
        return run_id

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        found: Any = self._client.get_experiment_by_name(name)
        identity: str = found.experiment_id if found else self._client.create_experiment(name)
        return identity


def _metric_name(name: str) -> str:
    """Return a metric's name as MLflow allows it: `layer[3]` is `layer.3`."""
    return re.sub(r"[^\w.-]+", ".", name).strip(".")


def _identity(directory: Path) -> str:
    try:
        return str(read_json_file(directory / "run.json")["id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(
            f"the run's id cannot be read: {type(error).__name__}: {error}",
            where=str(directory / "run.json"),
            hint="take 'mlflow' out of `writers`, or restore the file",
        ) from error
