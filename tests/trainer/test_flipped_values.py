"""A parameter or a moment that a flipped bit makes huge is never saved; the run goes back."""

import copy
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from guarded_run import guarded_trainer

from axcore.checkpoint import MemorySnapshots
from axcore.config import evolve
from axcore.errors import TrainingError
from axcore.module import Module, Param
from axcore.resilience.faults import FaultPlan, FlipBit
from axcore.trainer import RollbackRequest, RolledBack
from axcore.trainer.flipped_values import FlippedValues
from axcore.trainer.step import TrainState

HIGHEST = 30
"""The highest bit of a float32's exponent."""


class Model(Module):
    """A parameter, and a buffer that follows a rule of its own, as a scale of float8 does."""

    def setup(self, cfg):
        self.weight = Param((4,), axes=(None,))
        self.scale = Param((), axes=(), is_buffer=True)

    def forward(self):
        raise NotImplementedError


def state(weight=0.02, moment=1e-8, buffer=1.0, dtype="float32"):
    model = {"scale": jnp.float32(buffer), "weight": jnp.full(4, 0.02, dtype).at[2].set(weight)}
    moments = {"mu": {"weight": jnp.full(4, moment, dtype)}, "losses": jnp.full(3, buffer)}
    return TrainState(jnp.int32(0), model, moments, jnp.int32(0))


def judge(before, *then):
    """Takes a state for whole, and checks those that follow."""
    values = FlippedValues(Model.Config().build().param_specs())
    values.take(0, before)
    for step, one in enumerate(then, start=1):
        values.check(step, one)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("value", [2.0**122, -(2.0**122), np.inf, np.nan])
def test_a_parameter_that_becomes_huge_is_named_with_its_value(value, dtype):
    said = re.escape(f"model.weight contains {value:.3g} at step 2, nothing above 1.8e19 at step 1")
    with pytest.raises(RollbackRequest, match=said):
        judge(*[state(dtype=dtype)] * 2, state(weight=value, dtype=dtype))


def test_a_moment_that_becomes_huge_is_named():
    with pytest.raises(RollbackRequest, match=r"opt_state\.mu\.weight contains 3e\+30"):
        judge(state(), state(moment=3e30))


HONEST = {
    "parameters that begin at zero": [{"weight": 0}, {"weight": 3.0}],
    "moments that begin at zero": [{"moment": 0}, {"moment": 1e25}],
    "a spike of the gradients": [{}, {"moment": 1e15}],
    "a parameter that diverges": [{}, {"weight": 1e18}],
    "a mask that was there from the start": [{"weight": -1e30}, {"weight": -1e30}],
    "a scale of float8": [{}, {"buffer": 1e30}],
    "a low-precision parameter": [{"dtype": "float16"}, {"weight": 6e4, "dtype": "float16"}],
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_states_pass(name):
    states = [state(**values) for values in HONEST[name]]
    judge(*states, states[-1])


def test_every_flip_that_makes_a_weight_large_is_found():
    """Of a weight below 2 in size no other bit takes it to 2 or above."""
    weights = np.abs(np.random.default_rng(0).normal(0, 0.02, 500)).astype(np.float32)
    for bit in range(32):
        flipped = np.abs((weights.view(np.uint32) ^ np.uint32(1 << bit)).view(np.float32))
        assert ((flipped > 1.8e19) if bit == HIGHEST else (flipped < 2)).all(), bit


def flips(at_step, times=1):
    where = {"parameter": "head.weight", "element": 2, "bit": HIGHEST}
    return FaultPlan.Config(faults=(FlipBit(at_step=at_step, times=times, **where),))


def steps_in(run):
    return sorted(path.name for path in (run / "checkpoints").glob("step*"))


@pytest.mark.slow
def test_a_run_saves_no_flipped_bit_and_ends_as_one_without(tmp_path):
    honest = guarded_trainer(tmp_path / "text")
    struck, events = copy.copy(honest), []
    struck.config = evolve(honest.config, guards=(flips(8),))
    results = [
        one.run(tmp_path / name, [events.append], quiet=True)
        for one, name in ((honest, "honest"), (struck, "struck"))
    ]
    (back,) = [event for event in events if isinstance(event, RolledBack)]
    assert (back.from_step, back.step, back.skips_data) == (8, 4, False)
    assert "model.head.weight contains" in back.reason
    jax.tree.map(np.testing.assert_array_equal, *[result.state.model for result in results])
    assert steps_in(tmp_path / "struck") == ["step_00000004", "step_00000008"]


@pytest.mark.slow
def test_bits_that_flip_again_and_again_end_the_run_with_good_checkpoints(tmp_path):
    trainer = guarded_trainer(tmp_path / "text", flips(8, times=9), **{"rollback.max_rollbacks": 1})
    with pytest.raises(TrainingError, match=r"model\.head\.weight contains") as error:
        trainer.run(tmp_path / "run", quiet=True)
    assert "axcore train --from-step 4" in error.value.hint
    assert steps_in(tmp_path / "run") == ["step_00000004"]


@pytest.mark.slow
def test_no_flipped_bit_is_kept_in_host_memory(tmp_path):
    snapshots = MemorySnapshots.Config(every_steps=2, directory=str(tmp_path / "memory"))
    trainer = guarded_trainer(tmp_path / "text", flips(6), snapshots=snapshots)
    events = []
    trainer.run(tmp_path / "run", [events.append], quiet=True)
    (back,) = [event for event in events if isinstance(event, RolledBack)]
    assert (back.from_step, back.step) == (6, 4)
