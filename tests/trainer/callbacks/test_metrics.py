"""`metrics.jsonl` is valid JSON lines whatever happens, and averages are those of all tokens."""

import json
import math
import subprocess
import sys

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.hardware.host_memory import peak_resident_bytes
from axcore.module import Loss
from axcore.trainer.callbacks.metrics import LossMeter, MetricsFile, memory_metrics, summary_metrics


def refuse(constant):
    raise AssertionError(f"{constant} is not valid JSON")


def read(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def write(path, *steps, start=0):
    with MetricsFile(path, step=start) as metrics:
        for step in steps:
            metrics.write(step, "train", {"loss": step / 2})


def test_values_that_are_not_finite_are_written_as_text(tmp_path):
    with MetricsFile(tmp_path / "m.jsonl", step=0) as metrics:
        values = {"a": math.nan, "b": -math.inf, "c": np.float32("inf"), "d": 1.5, "e": 3}
        metrics.write(7, "validation", values)
    expected = {"a": "nan", "b": "-inf", "c": "inf", "d": 1.5, "e": 3}
    assert read(tmp_path / "m.jsonl") == [{"step": 7, "split": "validation", **expected}]


def test_a_line_is_there_for_others_to_read_at_once(tmp_path):
    with MetricsFile(tmp_path / "m.jsonl", step=0) as metrics:
        metrics.write(1, "train", {"loss": 2.0})
        assert read(tmp_path / "m.jsonl") == [{"step": 1, "split": "train", "loss": 2.0}]


def test_opening_at_a_step_keeps_it_and_drops_what_comes_after(tmp_path):
    path = tmp_path / "m.jsonl"
    write(path, 1, 2, 3, 4)
    write(path, 3, 4, 5, start=2)
    assert [line["step"] for line in read(path)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("num_cut", [1, 2, 9, 30])
def test_a_last_line_cut_short_is_repaired(tmp_path, num_cut):
    path = tmp_path / "m.jsonl"
    write(path, 1, 2, 3)
    path.write_bytes(path.read_bytes()[:-num_cut])
    write(path, 4, start=3)
    assert [line["step"] for line in read(path)][-1] == 4
    assert [line["step"] for line in read(path)][:2] == [1, 2]


def test_bytes_that_are_no_text_are_dropped_with_their_line(tmp_path):
    path = tmp_path / "m.jsonl"
    write(path, 1)
    path.write_bytes(path.read_bytes() + b'\xff\xfe{"step": 1\n\n[]\n')
    with pytest.warns(UserWarning, match="damaged at line 2, 3, 4: no metrics"):
        write(path, 2, start=1)
    assert [line["step"] for line in read(path)] == [1, 2]


def test_the_average_is_over_all_items_and_not_over_batches():
    meter = LossMeter()
    for total, weight in ((10.0, 1.0), (30.0, 9.0), (0.0, 0.0)):
        meter.add({"nll": Loss(jnp.float32(total), jnp.float32(weight))})
    assert meter.metrics() == {"loss": 4.0}


def test_several_losses_are_told_apart_and_scaled():
    meter = LossMeter()
    layers = Loss(jnp.asarray([2.0, 6.0]), jnp.asarray([1.0, 2.0]), 0.5)
    meter.add({"nll": Loss(jnp.float32(3), jnp.float32(1)), "stack.balance": layers})
    assert meter.metrics() == {"loss": 5.5, "loss/nll": 3.0, "loss/stack.balance": 2.5}


def test_summaries_of_scanned_layers_get_the_layer():
    summaries = {"a": jnp.float32(1), "b": jnp.asarray([[2.0], [3.0]])}
    assert summary_metrics(summaries) == {"a": 1.0, "b[0,0]": 2.0, "b[1,0]": 3.0}


@pytest.mark.slow
def test_a_run_writes_the_lines_that_are_documented(whole_run):
    lines = read(whole_run[0] / "metrics.jsonl")
    steps = [(line.pop("step"), line.pop("split")) for line in lines]
    train = [(step, "train") for step in range(1, 13)]
    validation = [(step, "validation") for step in (4, 8, 12)]
    assert steps == sorted(train + validation, key=lambda item: (item[0], item[1] != "train"))
    losses = {"loss", "loss/cross_entropy", "loss/size"}
    timings = {
        "tokens_per_s",
        "wall_clock_tokens_per_s",
        "step_time_s",
        "data_wait_s",
        "gradient_norm",
        "learning_rate",
        "skipped_steps",
        "host_memory_peak_gib",
    }
    for (_, split), line in zip(steps, lines, strict=True):
        assert set(line) == (losses | timings | {"bias_norm"} if split == "train" else losses)
    assert lines[-1]["loss"] < lines[4]["loss"] < math.log(264)


@attrs.frozen
class Chip:
    """A device of JAX, as far as its memory goes."""

    stats: dict[str, int] | None

    def memory_stats(self) -> dict[str, int] | None:
        return self.stats


def test_the_fullest_device_counts_for_each_figure():
    stats = [
        {"bytes_in_use": 2 << 30, "peak_bytes_in_use": 3 << 30},
        {"bytes_in_use": 1 << 30, "peak_bytes_in_use": 5 << 30},
    ]
    found = memory_metrics(map(Chip, stats))
    assert (found["device_memory_gib"], found["device_memory_peak_gib"]) == (2.0, 5.0)


def test_a_figure_that_no_device_has_is_left_out():
    found = memory_metrics([Chip(None), Chip({"bytes_in_use": 1 << 29, "peak_bytes_in_use": -1})])
    assert found.keys() == {"device_memory_gib", "host_memory_peak_gib"}
    assert found["device_memory_gib"] == 0.5


def test_host_processors_report_none_and_the_process_does():
    found = memory_metrics(jax.local_devices())
    assert found.keys() == {"host_memory_peak_gib"}
    assert found["host_memory_peak_gib"] * 2**30 == pytest.approx(peak_resident_bytes(), rel=0.01)


HOLD_AND_FREE = """
from axcore.hardware.host_memory import peak_resident_bytes
held = bytearray(peak_resident_bytes() + (64 << 20))
num_bytes = len(held)
del held
print(num_bytes, peak_resident_bytes())
"""


def test_the_peak_counts_what_was_held_and_freed():
    command = [sys.executable, "-c", HOLD_AND_FREE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    held, peak = map(int, done.stdout.split())
    assert held <= peak < 4 * held
