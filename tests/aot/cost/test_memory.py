"""Memory where a compiler refuses a program, and what a device has of it."""

import pytest

from axcore.aot.cost.memory import capacity_bytes, memory_from_oom_error
from axcore.plugins import Hardware
from axcore.testing import small_experiment

GIB = 2**30


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    return small_experiment(tmp_path_factory.mktemp("text")).build()


@pytest.mark.parametrize(
    ("refusal", "needed"),
    [
        ("Ran out of memory on HBM, temporaries (160.00G) exceeds available (15.75G).", 160 * GIB),
        ("Ran out of memory. Used 29.5G of 15.75G hbm.", int(29.5 * GIB)),
        ("Out of memory while trying to allocate 512.5MiB.", int(512.5 * 2**20)),
    ],
)
def test_the_first_size_that_a_refusal_names_is_what_was_needed(trainer, refusal, needed):
    memory = memory_from_oom_error(refusal, trainer)
    assert memory.temporaries_bytes == needed
    assert memory.peak_bytes == needed + memory.parameters_bytes + memory.optimizer_bytes
    assert memory.parameters_bytes > 0


def test_a_refusal_without_a_size_tells_no_memory(trainer):
    assert memory_from_oom_error("RESOURCE_EXHAUSTED: not today", trainer) is None


def test_drivers_keep_a_little_and_devices_share_a_chip():
    assert capacity_bytes(Hardware.parse("cpu-8")) is None
    chip = Hardware(family="acme", memory_bytes=100 * GIB, devices_per_chip=2)
    assert capacity_bytes(chip) == 49 * GIB
