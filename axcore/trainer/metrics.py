"""Metrics of a run: averaged over steps, and written as JSON lines."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from axcore.module import Loss


class MetricsFile:
    """`metrics.jsonl`: one JSON object a line, with `step`, `split` and the values.

    Opening it at a step drops the lines of later steps, which a killed run may have left: they will
    be written again.
    """

    def __init__(self, path: Path, *, step: int) -> None:
        self.path = path
        if path.exists():
            _keep_until(path, step)
        self._file = path.open("a", encoding="utf-8")

    def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Appends one line and hands it to the operating system."""
        line = {"step": step, "split": split, **{k: _number(v) for k, v in metrics.items()}}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _keep_until(path: Path, step: int) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if _step_of(line) <= step]
    if len(kept) != len(lines):
        new = path.with_suffix(".tmp")
        new.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        os.replace(new, path)


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")  # a line cut short by a kill


def _number(value: float) -> float | str:
    return value if np.isfinite(value) else repr(float(value))


class LossMeter:
    """Adds up losses as sums and weights, so that batches of unequal weight average rightly."""

    def __init__(self) -> None:
        self._losses: dict[str, Loss] = {}

    def add(self, losses: Mapping[str, Loss]) -> None:
        """Adds the losses of one batch, fetched from the device."""
        for name, loss in losses.items():
            before = self._losses.get(name)
            total, weight = np.asarray(loss.sum), np.asarray(loss.weight)
            if before is not None:
                total, weight = before.sum + total, before.weight + weight
            self._losses[name] = Loss(total, weight, loss.scale)

    def metrics(self) -> dict[str, float]:
        """Returns the total as `loss`, and each loss by its own name where there are several."""
        parts = {name: _contribution(loss) for name, loss in self._losses.items()}
        total = {"loss": sum(parts.values())}
        return total if len(parts) == 1 else {**total, **{f"loss/{k}": v for k, v in parts.items()}}


def _contribution(loss: Loss) -> float:
    weight = np.asarray(loss.weight)
    mean = np.where(weight != 0, loss.sum / np.where(weight != 0, weight, 1), 0)
    return float(loss.scale * np.sum(mean))


def summary_metrics(summaries: Mapping[str, Any]) -> dict[str, float]:
    """Returns summaries as scalars; those of scanned layers get the layer's index."""
    scalars: dict[str, float] = {}
    for name, value in jax.device_get(dict(summaries)).items():
        array = np.asarray(value)
        if array.ndim == 0:
            scalars[name] = float(array)
        else:
            for index, item in np.ndenumerate(array):
                scalars[f"{name}[{','.join(map(str, index))}]"] = float(item)
    return scalars
