"""Memory in the metrics is what devices and the operating system report."""

import subprocess
import sys

import attrs
import jax
import pytest

from axcore.hardware.process_memory import peak_resident_bytes
from axcore.trainer.callbacks.memory_metrics import memory_metrics


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
from axcore.hardware.process_memory import peak_resident_bytes
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
