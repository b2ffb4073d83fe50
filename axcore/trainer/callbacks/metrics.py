"""Metrics of a run: averaged over steps, written as JSON lines; and memory in use."""

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np

from axcore.config.json_files import parse_json
from axcore.hardware.host_memory import peak_resident_bytes
from axcore.module import NATS_A_TOKEN, Loss, LossGroups
from axcore.whole_files import read_regular, write_whole

METRICS_NAME = "metrics.jsonl"


def json_lines(directory: str, step: int) -> "MetricsFile":
    """Return the file of a run's metrics, opened at a step: the writer `json_lines`."""
    return MetricsFile(Path(directory) / METRICS_NAME, step=step)


class MetricsFile:
    """`metrics.jsonl`: one JSON object a line, with `step`, `split` and the values.

    A value that is not finite is the text "nan", "inf" or "-inf", because JSON has no such numbers.
    Opening the file at a step drops the lines of later steps, and one cut short, which a killed run
    may have left: they will be written again.
    """

    def __init__(self, path: Path, *, step: int) -> None:
        self.path = path
        if path.exists():
            # Lines of steps that the run makes again would
            # otherwise be there twice, with other values.
            _keep_until(path, step)
        self._file = path.open("a", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Append one line and hand it to the operating system."""
        line = {"step": step, "split": split, **{k: _number(v) for k, v in metrics.items()}}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        # Flushed, so that who follows the file sees each line
        # whole; not synced, since a power cut may cost a line.
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _keep_until(path: Path, step: int) -> None:
    text = read_regular(path).decode("utf-8", "replace")
    _name_damage(path, text.splitlines(keepends=True))
    kept = "".join(f"{line}\n" for line in text.splitlines() if _step_of(line) <= step)
    if kept != text:
        write_whole(path, kept.encode())


def _name_damage(path: Path, lines: list[str]) -> None:
    """Warn of damaged lines; a last one without its end is what a killed process leaves."""
    # A last line without an end is normal after a kill; any other is damage.
    whole = lines if not lines or lines[-1].endswith("\n") else lines[:-1]
    damaged = [str(number) for number, line in enumerate(whole, 1) if np.isinf(_step_of(line))]
    if damaged:
        warnings.warn(
            f"{path} is damaged at line {', '.join(damaged[:8])}"
            f"{', ...' if len(damaged) > 8 else ''}: no metrics; these lines are dropped",
            stacklevel=2,
        )


def _step_of(line: str) -> float:
    try:
        return float(parse_json(line)["step"])
    except (ValueError, KeyError, TypeError):
        # Damaged lines count as later than all, so that they are dropped.
        return float("inf")


def _number(value: float) -> float | str:
    return value if np.isfinite(value) else repr(float(value))


class LossMeter:
    """Adds up losses as sums and weights, so that batches of unequal weight average rightly."""

    def __init__(self) -> None:
        self._losses: dict[str, Any] = {}

    def add(self, losses: Mapping[str, Loss]) -> None:
        """Add the losses of one batch, fetched from the device."""
        for name, loss in losses.items():
            before = self._losses.get(name)
            # float64 on the host: sums over hundreds of batches in
            # float32 lose the digits that runs are compared by.
            wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), loss)
            self._losses[name] = wide if before is None else jax.tree.map(np.add, before, wide)

    def as_json(self) -> dict[str, Any]:
        """Return the sums as plain data, from which `from_json` makes the same meter."""
        return {
            name: {
                "sum": _array_as_json(loss.sum),
                "weight": _array_as_json(loss.weight),
                "scale": float(loss.scale),
                "is_regularizer": bool(loss.is_regularizer),
            }
            for name, loss in self._losses.items()
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Mapping[str, Any]]) -> Self:
        """Return the meter that `as_json` described."""
        meter = cls()
        for name, fields in data.items():
            sums = {key: _array_from_json(fields[key]) for key in ("sum", "weight")}
            meter._losses[name] = Loss(**{**fields, **sums})
        return meter

    def sums(self) -> list[Loss]:
        """Return what was added up, a loss for each name."""
        return list(self._losses.values())

    def metrics(self) -> dict[str, float]:
        """Return the sum of losses without regularizers as `loss`, and with them as `total_loss`.

        Each loss and regularizer has its own name where there are several, and so have measures.
        """
        found = self._losses.items()
        parts = {name: loss.scale * _mean(loss) for name, loss in found if loss.scale}
        named = {f"loss/{name}": part for name, part in parts.items()} if len(parts) > 1 else {}
        measures = {name: _mean(loss) for name, loss in found if not loss.scale}
        regularizers = {name for name, loss in found if loss.is_regularizer}
        total = {"total_loss": sum(parts.values())} if regularizers & parts.keys() else {}
        loss = sum(part for name, part in parts.items() if name not in regularizers)
        return {"loss": loss, **total, **named, **measures}


def _array_as_json(array: Any) -> dict[str, Any]:
    """Return an array as plain data that gives the same bits; JSON has no nan and no infinity."""
    wide = np.asarray(array, np.float64)
    # `repr` gives the same float back, and has words for nan and infinity.
    return {"shape": list(wide.shape), "values": [repr(one) for one in wide.ravel().tolist()]}


def _array_from_json(data: Mapping[str, Any]) -> Any:
    return np.array([float(one) for one in data["values"]], np.float64).reshape(data["shape"])


class LossWindow:
    """The losses of the steps since a line of metrics was due, for the next line.

    A checkpoint between two lines keeps it: the line after a resume has the steps before, too.
    """

    def __init__(self) -> None:
        self._losses, self._groups = LossMeter(), LossMeter()

    def add(self, losses: Mapping[str, Loss], group_losses: Loss | None) -> None:
        """Add those of one step, fetched from the device."""
        self._losses.add(losses)
        if group_losses is not None:
            self._groups.add({"groups": group_losses})

    def metrics(self, groups: LossGroups | None) -> dict[str, float]:
        """Return the loss and its parts, and that of each group of rows."""
        return {**self._losses.metrics(), **group_metrics(groups, self._groups.sums())}

    def as_json(self) -> dict[str, Any]:
        """Return the sums as plain data, from which `from_json` makes the same window."""
        return {"losses": self._losses.as_json(), "groups": self._groups.as_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the window that `as_json` described."""
        window = cls()
        window._losses = LossMeter.from_json(data["losses"])
        window._groups = LossMeter.from_json(data["groups"])
        return window


def described(metrics: Mapping[str, float], units: Mapping[str, str]) -> list[str]:
    """Return each metric of an evaluation as people read it, the loss first.

    Args:
        metrics: By name.
        units: What the task says about them, `Module.metric_units`. Of a cross-entropy in nats a
            token its perplexity is shown too; of a total that it is a part of, none.
    """
    parts = [name for name in metrics if units.get(name) == NATS_A_TOKEN]
    shown = []
    for name in sorted(metrics, key=lambda name: not name.startswith("loss")):
        text = f"{name} {metrics[name]:.4f} {units.get(name, '')}".rstrip()
        if name in parts and (name != "loss" or parts == ["loss"]):
            # exp(710) overflows a float64.
            text += f", perplexity {math.exp(min(metrics[name], 700.0)):.3f}"
        shown.append(text)
    return shown


def validation_line(metrics: Mapping[str, float], units: Mapping[str, str]) -> str:
    """Return an evaluation in one line: its loss and its measures, without parts of the loss."""
    shown = [one for one in described(metrics, units) if not one.startswith("loss/")]
    return "validation " + "  ".join(shown)


def _mean(loss: Loss) -> float:
    # As in `Loss.contribution`: 0 / 0 gives no warning.
    weight = np.asarray(loss.weight)
    mean = np.where(weight != 0, loss.sum / np.where(weight != 0, weight, 1), 0)
    return float(np.sum(mean))


def group_metrics(groups: LossGroups | None, losses: Sequence[Loss | None]) -> dict[str, float]:
    """Return the loss of each group of rows over several steps; a group without tokens has none.

    Args:
        groups: Which groups there are, if any.
        losses: Of each step, fetched from the device, with sums and weights `[groups]`.
    """
    if groups is None:
        return {}
    found = [loss for loss in losses if loss is not None]
    sums = np.sum([np.asarray(loss.sum, np.float64) for loss in found], axis=0)
    weights = np.sum([np.asarray(loss.weight, np.float64) for loss in found], axis=0)
    return {
        f"loss_by_source/{name}": float(total / weight)
        for name, total, weight in zip(groups.names, sums, weights, strict=True)
        if weight
    }


def summary_metrics(summaries: Mapping[str, Any]) -> dict[str, float]:
    """Return summaries as scalars; those of scanned layers get the layer's index."""
    scalars: dict[str, float] = {}
    for name, value in jax.device_get(dict(summaries)).items():
        array = np.asarray(value)
        if array.ndim == 0:
            scalars[name] = float(array)
        else:
            for index, item in np.ndenumerate(array):
                scalars[f"{name}[{','.join(map(str, index))}]"] = float(item)
    return scalars


GIB = 2**30
_NAMES = {"device_memory_gib": "bytes_in_use", "device_memory_peak_gib": "peak_bytes_in_use"}


def memory_metrics(devices: Iterable[Any]) -> dict[str, float]:
    """Return GiB that are and were in use: of the fullest device, and of this process.

    Args:
        devices: Those of this process; of devices that report nothing, such as host processors,
            there is no figure.
    """
    stats = [device.memory_stats() or {} for device in devices]
    found = {name: _most(stats, key) for name, key in _NAMES.items()}
    measured = {name: nbytes / GIB for name, nbytes in found.items() if nbytes is not None}
    return {**measured, "host_memory_peak_gib": peak_resident_bytes() / GIB}


def _most(stats: Iterable[Mapping[str, int]], key: str) -> int | None:
    """Return the largest value; -1 is how a device says that it has none."""
    return max((one[key] for one in stats if one.get(key, -1) >= 0), default=None)
