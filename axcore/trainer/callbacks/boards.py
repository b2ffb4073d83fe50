"""Metric writers for boards that people know: TensorBoard, Weights & Biases, Prometheus.

A metric has the name SPLIT/NAME on each, as `train/loss`.
"""

import logging
import re
import time
from collections.abc import Mapping
from pathlib import Path

from axcore.config.json_files import read_json_file
from axcore.errors import TrainingError
from axcore.extras import import_extra
from axcore.whole_files import write_whole

TENSORBOARD_FOLDER, WANDB_FOLDER, PROMETHEUS_NAME = "tensorboard", "wandb", "metrics.prom"


def tensorboard(directory: str, step: int) -> "TensorBoardWriter":
    """Opens the writer `tensorboard`: event files in the run directory.

    Raises:
        TrainingError: tensorboardX is not installed.
    """
    return TensorBoardWriter(Path(directory) / TENSORBOARD_FOLDER, step=step)


def wandb(directory: str, step: int) -> "WeightsAndBiasesWriter":
    """Opens the writer `wandb`: the run under its own id, taken up where it was.

    Raises:
        TrainingError: wandb is not installed.
    """
    return WeightsAndBiasesWriter(Path(directory), step=step)


def prometheus(directory: str, step: int) -> "PrometheusWriter":
    """Opens the writer `prometheus`: the newest values, as a collector of text files reads them."""
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
        """Adds a point to each curve, and hands all of them to the operating system."""
        for name, value in metrics.items():
            self._writer.add_scalar(f"{split}/{name}", value, step)
        self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
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
        """Adds a point to each curve, over `step`."""
        self._run.log({"step": step, **{f"{split}/{k}": float(v) for k, v in metrics.items()}})

    def close(self) -> None:
        """Uploads what is left, where the run is not offline, and ends it."""
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
        """Writes the file again, whole or not at all."""
        values = {f"{split}/step": step, **{f"{split}/{k}": v for k, v in metrics.items()}}
        self._newest |= {_prometheus_name(name): float(value) for name, value in values.items()}
        lines = [
            f'# TYPE {name} gauge\n{name}{{run="{self._run}"}} {_prometheus_value(value)}\n'
            for name, value in sorted(self._newest.items())
        ]
        write_whole(self._path, "".join(lines).encode())

    def close(self) -> None:
        """Leaves the last values there."""


def _prometheus_name(name: str) -> str:
    return "axcore_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)


def _prometheus_value(value: float) -> str:
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(str(value), repr(value))
