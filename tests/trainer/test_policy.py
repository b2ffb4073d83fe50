"""Batches that are sampled from the model see its present weights, restored ones too."""

import jax
import numpy as np
import pytest

from axcore.config import config, evolve
from axcore.data import Data, TrainBatches
from axcore.trainer import Guard, RollbackRequest

pytestmark = pytest.mark.slow


class Drawn(TrainBatches):
    """Rows of text whose tokens are chosen by the weights."""

    follows_policy = True

    def __init__(self, inner, seen):
        self._inner, self._seen, self._policy = inner, seen, None

    @property
    def identity(self):
        return self._inner.identity

    def get_state(self):
        return self._inner.get_state()

    def set_state(self, state):
        self._inner.set_state(state)

    def on_policy(self, policy):
        assert self._policy in (None, policy)
        self._policy = policy

    def __next__(self):
        batch, state = next(self._inner), jax.device_get(self._policy.state)
        self._seen.append(self._policy.step)
        likely = np.asarray(state["table"]).sum(axis=1) + state["bias"]
        return {**batch, "tokens": np.argsort(likely)[batch["tokens"]].astype(np.int32)}


class DrawnData(Data):
    """Text of which the model chooses the tokens."""

    @config
    class Config(Data.Config):
        """Describes it."""

    seen: list

    def train(self, **process):
        self.seen = []
        return Drawn(super().train(**process), self.seen)


class BackOnce(Guard):
    """Goes back once, at the sixth step."""

    @config
    class Config(Guard.Config):
        """Describes it."""

    has_gone_back = False

    def on_metrics(self, step, metrics):
        if step == 6 and not BackOnce.has_gone_back:
            BackOnce.has_gone_back = True
            raise RollbackRequest("once", steps=1, skips_data=False)


def drawn_config(toy_config, **changes):
    data = {name: getattr(toy_config.data, name) for name in ("source", "seq_len", "batch_size")}
    drawn = DrawnData.Config(**data, validation_fraction=0.1, validation_batches=2)
    return evolve(toy_config, data=drawn, prefetch_batches=2, **changes)


@pytest.fixture(scope="module")
def trainer(toy_config, one_device):
    return one_device(drawn_config(toy_config))


@pytest.fixture(scope="module")
def whole(trainer, tmp_path_factory):
    """A run that nothing stopped, and its directory."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    return trainer.run(directory, quiet=True), directory, trainer.data.seen


def test_a_batch_is_drawn_from_the_weights_that_its_step_begins_with(whole):
    assert whole[2] == list(range(12))


def test_the_first_batch_after_a_resume_sees_the_restored_weights(whole, trainer, same_bits):
    state, directory, _ = whole
    resumed = trainer.run(directory, quiet=True, from_step=4)
    assert trainer.data.seen == list(range(4, 12))
    assert same_bits(resumed.state, state.state)


def test_the_first_batch_after_a_rollback_sees_the_restored_weights(
    whole, toy_config, one_device, same_bits, tmp_path
):
    BackOnce.has_gone_back = False
    trainer = one_device(drawn_config(toy_config, guards=(BackOnce.Config(),)))
    ended = trainer.run(tmp_path / "run", quiet=True)
    assert trainer.data.seen == [*range(6), *range(4, 12)]
    assert same_bits(ended.state, whole[0].state)
