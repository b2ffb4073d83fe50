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
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (17.58G) exceeds available HBM (15.75G).",
            17.58 * GIB,
        ),
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory "
            "space hbm. Used 63.80G of 30.75G hbm. Exceeded hbm capacity by 33.05G.",
            63.80 * GIB,
        ),
    ],
)
def test_the_total_that_a_refusal_names_holds_state_and_batch(trainer, refusal, needed):
    memory = memory_from_oom_error(refusal, trainer)
    assert memory.peak_bytes == int(needed)
    assert memory.parameters_bytes > 0
    assert memory.optimizer_bytes == pytest.approx(2 * memory.parameters_bytes, rel=0.01)
    assert memory.batch_bytes > 0
    parts = memory.parameters_bytes + memory.optimizer_bytes + memory.batch_bytes
    assert memory.temporaries_bytes == memory.peak_bytes - parts


@pytest.mark.parametrize(
    "refusal",
    [
        "RESOURCE_EXHAUSTED: not today",
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 512.5MiB.",
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 17.2M of 16.0M vmem.",
    ],
)
def test_a_refusal_without_a_total_of_the_device_tells_no_memory(trainer, refusal):
    assert memory_from_oom_error(refusal, trainer) is None


def test_drivers_keep_a_little_and_devices_share_a_chip():
    assert capacity_bytes(Hardware.parse("cpu-8")) is None
    chip = Hardware(family="acme", memory_bytes=100 * GIB, devices_per_chip=2)
    assert capacity_bytes(chip) == 49 * GIB
