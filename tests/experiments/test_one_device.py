"""Recipes for one device: what a large model's state takes there."""

import jax
import pytest

from axcore.cli.experiment import load_resolved
from axcore.config import evolve
from axcore.module import count_params
from axcore.plugins import Hardware
from axcore.trainer import Trainer


def nbytes(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.mark.slow
def test_llama3_8b_on_one_gpu_has_four_bytes_a_parameter_and_two_of_optimizer_state():
    resolved = load_resolved("llama3-8b", hardware=Hardware.parse("gpu-h200-1"))
    cfg = evolve(resolved.config, data=resolved.config.data.for_shapes())
    trainer = Trainer(evolve(resolved, config=cfg), devices=jax.devices()[:1])
    state = trainer.compiler.abstract_state()
    num_params = count_params(trainer.model.param_specs())
    assert num_params == 8_030_261_248
    assert nbytes(state.model) == 4 * num_params
    assert nbytes(state.opt_state) == pytest.approx(2 * num_params, rel=0.005)
