"""Metric writers for boards: read back by the boards' own readers."""

import math
import sys

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import axcore as ax
from axcore.errors import TrainingError
from axcore.plugins import MetricWriter, plugin_host
from axcore.testing import WriterSuite, small_experiment, trainer_on


class TestTensorBoard(WriterSuite):
    plugin = "core"
    keys = ("tensorboard",)

    def read(self, record, folder):
        found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
        lines = {}
        for tag in found.Reload().Tags()["scalars"]:
            split, _, name = tag.partition("/")
            for event in found.Scalars(tag):
                lines.setdefault((event.step, split), {})[name] = event.value
        return [(*key, metrics) for key, metrics in sorted(lines.items())]


def opened(name, folder, step=0):
    (record,) = (one for one in plugin_host().records(MetricWriter) if one.name == name)
    return record.fn.resolve()(str(folder), step)


@pytest.mark.slow
def test_tensorboard_reads_all_points_of_a_run(tmp_path):
    cfg = ax.update_config(
        small_experiment(tmp_path / "texts"),
        {"mesh": {"fsdp": 1}, "logging.writers": ("tensorboard",)},
    )
    trainer_on(cfg, 1).run(tmp_path / "run", quiet=True)
    found = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    for split, metrics in ax.load_run(tmp_path / "run").metrics.items():
        for name in metrics.keys() - {"step"}:
            points = found.Scalars(f"{split}/{name}")
            np.testing.assert_array_equal([point.step for point in points], metrics["step"])
            np.testing.assert_allclose([point.value for point in points], metrics[name], rtol=1e-6)


def test_prometheus_finds_the_newest_values(tmp_path):
    folder = tmp_path / 'a "run"'
    folder.mkdir()
    writer = opened("prometheus", folder)
    writer.write(1, "train", {"loss": 2.5, "loss/cross_entropy": math.nan})
    writer.write(2, "train", {"loss": 1.5})
    writer.write(2, "validation", {"loss": -math.inf})
    writer.close()
    lines = (folder / "metrics.prom").read_text().splitlines()
    assert lines[::2] == [f"# TYPE {line.partition('{')[0]} gauge" for line in lines[1::2]]
    assert lines[1::2] == [
        'axcore_train_loss{run="a \\"run\\""} 1.5',
        'axcore_train_loss_cross_entropy{run="a \\"run\\""} NaN',
        'axcore_train_step{run="a \\"run\\""} 2.0',
        'axcore_validation_loss{run="a \\"run\\""} -Inf',
        'axcore_validation_step{run="a \\"run\\""} 2.0',
    ]


def test_a_library_that_is_missing_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(TrainingError, match=r"needs tensorboardX") as found:
        opened("tensorboard", tmp_path)
    assert "axcore[tensorboard]" in found.value.hint
