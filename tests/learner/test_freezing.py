"""What no glob of `trained` matches is frozen."""

import jax
import pytest

from axcore.errors import ConfigError
from axcore.layers import FeedForward
from axcore.learner import Learner
from axcore.module import ParamSpec


def frozen(trained):
    specs = FeedForward.Config(dim=4, hidden_dim=8).build().param_specs()
    learner = Learner.Config(total_steps=200, trainable=trained).build()
    leaves = jax.tree.leaves(
        learner.with_frozen(specs), is_leaf=lambda leaf: isinstance(leaf, ParamSpec)
    )
    return {spec.name for spec in leaves if spec.is_frozen}


def test_all_parameters_are_trained_by_default():
    assert frozen(Learner.Config().trainable) == set()


def test_what_no_glob_matches_is_frozen():
    assert frozen(("up.*", "**.down.weight")) == {"gate.weight"}


def test_a_glob_that_matches_nothing_is_an_error():
    with pytest.raises(ConfigError, match=r"'donw.\*' matches no parameter of the model") as error:
        frozen(("donw.*",))
    assert error.value.where == "learner.trainable"
