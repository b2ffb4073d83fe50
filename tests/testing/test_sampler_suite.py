"""The suite of samplers finds one that samples by other weights."""

import jax
import pytest

from axcore.rollouts.sampler import PolicySampler
from axcore.testing import SamplerSuite


class CoreSampler(SamplerSuite):
    plugin = "core"


@pytest.mark.slow
def test_a_sampler_whose_weights_are_off_by_a_thousandth_is_found(monkeypatch):
    begin = PolicySampler.begin

    def off(self, module, state, *args, **values):
        return begin(self, module, jax.tree.map(lambda leaf: leaf * 1.001, state), *args, **values)

    monkeypatch.setattr(PolicySampler, "begin", off)
    with pytest.raises(AssertionError, match="nats in float32"):
        CoreSampler().test_log_probabilities_of_sampler_and_trainer_are_within_bounds("float32")
