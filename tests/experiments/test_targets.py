"""Every experiment's step can be traced for every family: some kernel takes each of its calls."""

import jax
import pytest

from axcore.cli.experiment import load_experiment
from axcore.config import evolve
from axcore.data import ByteTokenizer, TextFiles
from axcore.ops import recording_choices
from axcore.plugins import Experiment, Hardware, plugin_host
from axcore.trainer import Trainer

TARGETS = {
    "tpu-v5p-16": ({"attention:tpu_flash_attention"},),
    "tpu-v6e-8": ({"attention:tpu_flash_attention"}, {"quantized_dot:int8"}),
    "gpu-a100-8": ({"attention:cudnn_attention"},),
    "gpu-h100-8": (
        {"attention:gpu_packed_flash_attention", "attention:cudnn_attention"},  # by the length
        {"quantized_dot:float8"},
    ),
    "trainium-trn2-2": ({"attention:portable"},),
}
"""Of eight devices each, with kernels that each must choose, one of every set."""

LARGE = sorted(
    record.name
    for record in plugin_host().records(Experiment)
    if record.plugin == "core" and record.name != "tiny"
)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", LARGE)
def test_a_step_is_served_by_kernels_of_the_target(name, target):
    hardware = Hardware.parse(target)
    cfg = load_experiment(name, hardware=hardware)
    read = {"source": TextFiles.Config(folder="."), "tokenizer": ByteTokenizer.Config()}
    cfg = evolve(cfg, data=evolve(cfg.data, **read))
    trainer = Trainer(cfg, devices=jax.devices()[:8], hardware=hardware)
    with jax.set_mesh(trainer.mesh), recording_choices() as choices:
        trainer.compiled_step().trace(trainer.abstract_state(), trainer.abstract_batch())
    chosen = {f"{choice.call.op}:{choice.kernel.name}" for choice in choices}
    assert all(chosen & kernels for kernels in TARGETS[target]), chosen
