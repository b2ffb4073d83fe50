"""Every experiment's step can be traced for every family: some kernel takes each of its calls."""

import jax
import pytest

from axcore.config import evolve, update_config
from axcore.experiments.named import load_experiment
from axcore.ops import recording_choices
from axcore.plugins import Experiment, Hardware, plugin_host
from axcore.trainer import Trainer, resolve

PORTABLE = {"cross_entropy:portable", "rms_norm:portable"}
TARGETS = {
    "tpu-v5p-16": {"attention:splash_attention"},
    "tpu-v5p-16 fastest": {
        "attention:tpu_flash_attention",
        "attention_backward:tpu_flash_attention",
    },
    "tpu-v5e-8": {"attention:splash_attention", "quantized_dot:int8"},
    "gpu-a100-8": {"attention:cudnn_attention"},
    "gpu-h100-8": {
        "attention:gpu_packed_flash_attention",
        "attention_backward:gpu_flash_attention",
        "quantized_dot:float8",
    },
    "trainium-trn2-2": {"attention:portable"},
}
"""Of eight devices each, some with a `kernels.choice`, and kernels that each step takes there."""

OTHERS = {("llama2-70b", "gpu-h100-8"): {"attention:cudnn_attention", "quantized_dot:float8"}}
"""Whose rows are short, compared with their queries, so that a document bias is small."""

LARGE = sorted(
    record.name
    for record in plugin_host().records(Experiment)
    if record.plugin == "core"
    and record.name
    not in (
        "tiny",
        "tiny-bert",
        "sft",
        "multimodal-sft",
        "dpo",
        "kto",
        "reward-model",
        "grpo-reverse",
    )  # of its size
)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", LARGE)
def test_a_step_is_served_by_kernels_of_the_target(name, target):
    machine, _, kernel_choice = target.partition(" ")
    hardware = Hardware.parse(machine)
    cfg = update_config(load_experiment(name), {"kernels.choice": kernel_choice or "validated"})
    resolved = resolve(evolve(cfg, data=cfg.data.for_shapes()), hardware)
    trainer = Trainer(resolved, devices=jax.devices()[:8])
    with jax.set_mesh(trainer.mesh), recording_choices() as choices:
        compiler = trainer.compiler
        compiler.jitted_step.trace(compiler.abstract_state(), trainer.batch_sharding.abstract())
    chosen = {f"{choice.call.op}:{choice.kernel.name}" for choice in choices}
    assert chosen >= OTHERS.get((name, target), TARGETS[target]) | PORTABLE
