"""Running out of memory is explained: what did not fit, where, and what needs less."""

import shlex
import subprocess
import sys

import jax
import pytest

import axcore as ax
from axcore.aot import out_of_memory
from axcore.aot.out_of_memory import (
    check_host_holds_state,
    explained,
    explained_outside_training,
    is_out_of_memory,
    step_memory,
)
from axcore.errors import TrainingError
from axcore.testing import small_experiment, trainer_on

FULL = jax.errors.JaxRuntimeError(
    "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3.50GiB."
)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    cfg = ax.update_config(small_experiment(folder / "texts"), {"mesh": {"fsdp": 1}})
    return trainer_on(ax.update_config(cfg, {"num_micro_batches": 2}), 1)


def test_before_a_step_is_compiled_its_state_is_what_is_known(trainer):
    memory = step_memory(trainer)
    assert memory.peak_bytes == memory.parameters_bytes + memory.optimizer_bytes
    error = explained(FULL, trainer)
    assert error.what.startswith("a device's memory is full: 3.5 GiB at once. The step needs ")
    assert error.hint.splitlines()[0].endswith("of which each has half of what fsdp splits")
    assert error.where is None


def test_a_state_that_the_host_cannot_hold_is_refused_before_it_is_made(trainer, monkeypatch):
    check_host_holds_state(trainer)
    needed = step_memory(trainer).peak_bytes
    monkeypatch.setattr(out_of_memory, "host_bytes", lambda: needed - 1)
    with pytest.raises(
        TrainingError, match=r"the state alone needs .* of the host's memory"
    ) as error:
        check_host_holds_state(trainer)
    assert "optimizer state" in error.value.what
    assert "low_precision_optimizer" in error.value.hint


@pytest.mark.slow
def test_a_compiled_step_is_known_by_part_and_largest_arrays(trainer):
    compiled = trainer.compiler.compiled_step
    memory = step_memory(trainer)
    assert memory.temporaries_bytes == compiled.memory_analysis().temp_size_in_bytes
    error = explained(FULL, trainer)
    assert "kept for the backward pass" in error.what
    assert " of decoder." in error.where or " of head" in error.where
    hints = error.hint.splitlines()
    assert "remat(policy=full)" in hints[0]
    assert any("--set num_micro_batches=4" in line for line in hints)


def test_the_host_names_the_module_that_asked_for_too_much():
    error = MemoryError("Unable to allocate 284. GiB for an array with shape (2, 195313)")
    error.add_note("in module decoder.head (Head)")
    error.add_note("something else")
    found = explained(error)
    assert found.what.startswith("the host's memory is full: 284 GiB at once; it has ")
    assert found.where == "in module decoder.head (Head)"


def test_outside_of_training_the_size_the_module_and_what_needs_less_are_said():
    host = MemoryError("Unable to allocate 284. GiB for an array")
    host.add_note("in module decoder.head (Head)")
    found = explained_outside_training(host)
    assert found.what.startswith("the host's memory is full: 284 GiB at once; it has ")
    assert found.where == "in module decoder.head (Head)"
    device = explained_outside_training(FULL)
    assert device.what.startswith("a device's memory is full: 3.5 GiB at once; the host has ")
    assert device.what.endswith(str(FULL))
    assert device.hint.startswith("a smaller model, weights in fewer bits, ")


@pytest.mark.parametrize("error", [FULL, MemoryError()])
def test_errors_of_full_memory_are_known(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error", [jax.errors.JaxRuntimeError("INTERNAL: no"), ValueError("memory")]
)
def test_other_errors_are_left_alone(error):
    assert not is_out_of_memory(error)


@pytest.mark.slow
def test_training_what_does_not_fit_ends_with_the_explanation(tmp_path):
    words = [sys.executable, "-m", "axcore", "train", "tiny", "--dir", str(tmp_path / "run")]
    command = shlex.join([*words, "--target", "cpu-1", "--set", "model.dim=1000000"])
    limited = f"ulimit -v {200 << 20} && exec {command}"  # KiB; some machines promise any amount
    done = subprocess.run(["sh", "-c", limited], capture_output=True, text=True, check=False)
    assert done.returncode == 8, done.stderr
    assert "TrainingError: the state alone needs 131 TiB of the host's memory" in done.stderr
    assert "parameters                        43.7 TiB" in done.stderr
    assert "Traceback" not in done.stderr
