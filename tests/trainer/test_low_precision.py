"""A run with the optimizer's state in fewer bits is saved and resumed as it is, bit by bit."""

import jax
import jax.numpy as jnp
import pytest

from axcore.config import update_config
from axcore.modifiers import LowPrecisionOptimizer, apply_modifier
from axcore.plugins import Hardware


@pytest.mark.slow
def test_a_run_resumed_with_stored_state_is_the_run_that_was_never_stopped(
    toy_config, one_device, same_bits, tmp_path
):
    hardware = Hardware.parse("cpu-1")
    cfg = apply_modifier(toy_config, LowPrecisionOptimizer(), hardware, where="here")
    cfg = update_config(
        cfg,
        {
            "model.dim": 16,
            "learner.optimizer.min_size": 1,
            "model.dtypes.param": "bfloat16",
        },
    )
    trainer = one_device(cfg)
    whole = trainer.run(tmp_path)
    resumed = trainer.run(tmp_path, from_step=4)
    assert same_bits(resumed.state, whole.state)
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(resumed.state.opt_state.values)}
    assert jnp.dtype(jnp.uint8) in dtypes
    assert resumed.state.model["table"].dtype == jnp.bfloat16
