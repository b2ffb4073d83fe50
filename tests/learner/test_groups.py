"""A group's settings reach its parameters and no other; the first group that matches wins."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.config import evolve
from axcore.errors import ConfigError
from axcore.learner import SGD, ConstantSchedule, Learner, ParamGroup, WarmupLinear
from axcore.module import Module, Param


class Block(Module):
    def setup(self, cfg):
        self.weight = Param((2, 2), axes=(None, None), init=1.0)
        self.bias = Param((2,), axes=(None,), init=1.0)
        self.mean = Param((2,), axes=(None,), init=1.0, is_buffer=True)


class Two(Module):
    def setup(self, cfg):
        self.first = Block.Config().build()
        self.second = Block.Config().build()


PLAIN = Learner.Config(
    optimizer=SGD.Config(), schedule=ConstantSchedule.Config(peak=1.0), clip_norm=None
)


def changes(*groups, num_steps=1, **fields):
    """Returns how far each parameter has moved under gradients of one, and the optimizer state."""
    learner = evolve(PLAIN, groups=groups, **fields).build(total_steps=10)
    model = Two.Config().build()
    specs = learner.with_frozen(model.param_specs())
    trained = jax.tree.map(lambda spec: spec if spec.is_trainable else None, specs)
    params = jax.tree.map(
        lambda spec, leaf: leaf if spec.is_trainable else None, specs, model.init(0)
    )
    transformation = learner.transformation(trained)
    state = learner.init(transformation, params)
    gradients = jax.tree.map(jnp.ones_like, params)
    for _ in range(num_steps):
        done = learner.update(transformation, gradients, state, params, loss=jnp.float32(1))
        params, state = done.params, done.opt_state
    moved = {
        jax.tree_util.keystr(path, simple=True, separator="."): float(1 - leaf.ravel()[0])
        for path, leaf in jax.tree.leaves_with_path(params)
    }
    return moved, state


def group(*params, **fields):
    return ParamGroup(name=fields.pop("name", "some"), params=params, **fields)


EVERYWHERE = dict.fromkeys(("first.bias", "first.weight", "second.bias", "second.weight"), 1.0)


def test_without_groups_all_parameters_train_alike():
    assert changes()[0] == EVERYWHERE


@pytest.mark.parametrize(
    ("settings", "moved"),
    [
        ({"rate_scale": 0.25}, 0.25),
        ({"schedule": ConstantSchedule.Config(peak=0.5)}, 0.5),
        ({"schedule": WarmupLinear.Config(peak=1.0, warmup_steps=2), "rate_scale": 0.5}, 0.25),
    ],
)
def test_settings_reach_the_parameters_of_the_group_and_no_other(settings, moved):
    found, _ = changes(group("first.**", **settings))
    assert found == {**EVERYWHERE, "first.bias": moved, "first.weight": moved}


def test_an_optimizer_of_a_group_is_for_its_parameters_only():
    """Under gradients of one, momentum 0.5 makes the second step half as long again."""
    found, _ = changes(group("**.bias", optimizer=SGD.Config(momentum=0.5)), num_steps=2)
    assert found == {
        "first.bias": 2.5,
        "second.bias": 2.5,
        "first.weight": 2.0,
        "second.weight": 2.0,
    }


def test_the_first_group_that_matches_wins():
    groups = (
        group("first.bias", name="a", rate_scale=0.5),
        group("first.**", "second.bias", name="b", rate_scale=0.25),
    )
    assert changes(*groups)[0] == {
        "first.bias": 0.5,
        "first.weight": 0.25,
        "second.bias": 0.25,
        "second.weight": 1.0,
    }


def test_matrices_only_leaves_vectors_to_others():
    found, _ = changes(group("**", matrices_only=True, rate_scale=0.5))
    assert found == {**EVERYWHERE, "first.weight": 0.5, "second.weight": 0.5}


def test_a_frozen_group_has_no_gradient_and_no_state():
    momentum = SGD.Config(momentum=0.5)
    found, state = changes(group("first.**", is_frozen=True), optimizer=momentum)
    assert found == {"second.bias": 1.0, "second.weight": 1.0}
    held = {jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(state)}
    assert any("second" in path for path in held)
    assert not any("first" in path for path in held)


def test_an_earlier_group_keeps_its_parameters_from_a_frozen_one():
    found, _ = changes(group("**.bias", name="biases"), group("first.**", is_frozen=True))
    assert set(found) == {"first.bias", "second.bias", "second.weight"}


def test_parameters_that_are_not_trainable_stay_so_in_a_group():
    found, _ = changes(group("**.bias", rate_scale=0.5), trainable=("first.**",))
    assert found == {"first.bias": 0.5, "first.weight": 1.0}


def test_a_glob_that_matches_nothing_lists_what_is_there():
    with pytest.raises(ConfigError, match=r"'third\.\*\*' matches no parameter") as error:
        changes(group("first.**", "third.**"))
    assert error.value.where == "learner.groups[0].params"
    assert "first.weight" in error.value.hint


def test_buffers_are_no_parameters():
    with pytest.raises(ConfigError, match=r"'\*\*\.mean' matches no parameter"):
        changes(group("**.mean"))


def test_a_group_that_is_left_empty_is_an_error():
    groups = (group("first.**", name="a"), group("first.bias", name="b"))
    with pytest.raises(ConfigError, match="group 'b' is empty: groups before it take all") as error:
        changes(*groups)
    assert error.value.where == "learner.groups[1]"
    with pytest.raises(ConfigError, match=r"group 'some' is empty: nothing .* is a matrix"):
        changes(group("**.bias", matrices_only=True))


@pytest.mark.parametrize("names", [("a", "a"), ("rest", "b")])
def test_two_groups_of_one_name_are_an_error(names):
    groups = [
        group(f"{block}.**", name=name)
        for block, name in zip(("first", "second"), names, strict=True)
    ]
    with pytest.raises(ConfigError, match=f"two groups are called '{names[0]}'"):
        changes(*groups)


def test_learning_rates_are_reported_by_group():
    cfg = evolve(
        PLAIN, groups=(group("**.bias", rate_scale=0.5), group("x", name="f", is_frozen=True))
    )
    rates = cfg.build(total_steps=10).rates(3)
    assert rates == {"learning_rate": 1.0, "learning_rate/some": np.float32(0.5)}
