"""Each optimizer is optax's own: equal updates on the same gradients, over several steps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from axcore.errors import ConfigError
from axcore.learner import (
    ADOPT,
    EMA,
    LAMB,
    SGD,
    SOAP,
    Adafactor,
    AdamW,
    AdEMAMix,
    ConstantSchedule,
    DiLoCo,
    Learner,
    Lion,
    Muon,
    ParamGroup,
    ScheduleFreeAdamW,
    SpikeGuard,
    WarmupLinear,
)
from axcore.module import Module, Param, StackedModule

SCHEDULE = WarmupLinear.Config(peak=0.1, warmup_steps=2)
DECAYS = {"matrix": True, "vector": False, "kept": False}


class Shapes(Module):
    """A matrix that decays, one that does not, and a vector."""

    def setup(self, cfg):
        self.matrix = Param((4, 8), axes=(None, None))
        self.kept = Param((8, 4), axes=(None, None), decay=False)
        self.vector = Param((8,), axes=(None,), init=0.5)


class Matrices(Module):
    """Matrices only."""

    def setup(self, cfg):
        self.tall = Param((8, 4), axes=(None, None))
        self.wide = Param((4, 8), axes=(None, None))


def gradients_at(step, params):
    """Returns gradients that look random, and are the same each time."""
    return jax.tree.map(
        lambda p: jnp.cos(jnp.arange(p.size, dtype=p.dtype) * (step + 1.7)).reshape(p.shape), params
    )


def trained(cfg, model, num_steps=5):
    """Returns the parameters after some updates by a learner, without clipping."""
    learner = cfg.build(total_steps=10)
    transformation = learner.transformation(learner.with_frozen(model.param_specs()))
    params = model.init(0)
    state = learner.init(transformation, params)
    for step in range(num_steps):
        gradients = gradients_at(step, params)
        done = learner.update(transformation, gradients, state, params, loss=jnp.float32(1))
        params, state = done.params, done.opt_state
    return params


def trained_by_optax(transformation, model, num_steps=5):
    params = model.init(0)
    state = transformation.init(params)
    with jax.numpy_dtype_promotion("standard"):
        for step in range(num_steps):
            updates, state = transformation.update(gradients_at(step, params), state, params)
            params = optax.apply_updates(params, updates)
    return params


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def learner_of(optimizer, **fields):
    return Learner.Config(optimizer=optimizer, schedule=SCHEDULE, clip_norm=None, **fields)


RATE = SCHEDULE.build(total_steps=10)

SAME = {
    "adamw": (
        AdamW.Config(b1=0.8, b2=0.9, epsilon=1e-6, weight_decay=0.3),
        optax.adamw(RATE, b1=0.8, b2=0.9, eps=1e-6, weight_decay=0.3, mask=DECAYS),
    ),
    "adafactor": (
        Adafactor.Config(min_dim_to_factor=4, decay_rate=0.7, momentum=0.5, weight_decay=0.01),
        optax.adafactor(
            RATE,
            min_dim_size_to_factor=4,
            decay_rate=0.7,
            momentum=0.5,
            weight_decay_rate=0.01,
            weight_decay_mask=DECAYS,
        ),
    ),
    "adafactor, plain": (
        Adafactor.Config(scales_by_parameter=False, clipping_threshold=None, epsilon=1e-20),
        optax.adafactor(
            RATE, multiply_by_parameter_scale=False, clipping_threshold=None, eps=1e-20
        ),
    ),
    "lion": (
        Lion.Config(b1=0.8, b2=0.9, weight_decay=0.3),
        optax.lion(RATE, b1=0.8, b2=0.9, weight_decay=0.3, mask=DECAYS),
    ),
    "lamb": (
        LAMB.Config(b1=0.8, b2=0.9, epsilon=1e-5, weight_decay=0.3),
        optax.lamb(RATE, b1=0.8, b2=0.9, eps=1e-5, weight_decay=0.3, mask=DECAYS),
    ),
    "ademamix": (
        AdEMAMix.Config(b1=0.8, b2=0.9, b3=0.99, alpha=3.0, epsilon=1e-6, weight_decay=0.3),
        contrib.ademamix(
            RATE, b1=0.8, b2=0.9, b3=0.99, alpha=3.0, eps=1e-6, weight_decay=0.3, mask=DECAYS
        ),
    ),
    "adopt": (
        ADOPT.Config(b1=0.8, b2=0.9, epsilon=1e-5, weight_decay=0.0),
        contrib.adopt(RATE, b1=0.8, b2=0.9, eps=1e-5),
    ),
    "schedule-free adamw": (
        ScheduleFreeAdamW.Config(b1=0.8, b2=0.9, epsilon=1e-6, weight_decay=0.0, rate_power=1.0),
        contrib.schedule_free_adamw(RATE, b1=0.8, b2=0.9, eps=1e-6, weight_lr_power=1.0),
    ),
    "sgd": (SGD.Config(), optax.sgd(RATE)),
    "sgd, nesterov": (
        SGD.Config(momentum=0.9, is_nesterov=True),
        optax.sgd(RATE, momentum=0.9, nesterov=True),
    ),
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.quick_one_in(4)
def test_an_optimizer_is_that_of_optax(name):
    ours, theirs = SAME[name]
    model = Shapes.Config().build()
    assert_same(trained(learner_of(ours), model), trained_by_optax(theirs, model))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            Muon.Config(beta=0.9, num_iterations=3, weight_decay=0.3),
            contrib.muon(RATE, beta=0.9, ns_steps=3, weight_decay=0.3, consistent_rms=0.2),
        ),
        (
            Muon.Config(match_rms=None, is_nesterov=False, preconditioning="aol"),
            contrib.muon(RATE, nesterov=False, weight_decay=0.1, preconditioning="aol"),
        ),
    ],
    ids=["rms", "width"],
)
@pytest.mark.quick_one_in(4)
def test_muon_is_that_of_optax(ours, theirs):
    model = Matrices.Config().build()
    assert_same(trained(learner_of(ours), model), trained_by_optax(theirs, model))


def test_ademamix_mixes_the_slow_mean_in_over_its_warmup():
    def b3(step):  # eq. of the paper, whose steps are from 1
        t, first, last = min((step + 1) / 4, 1), np.log(0.8), np.log(0.99)
        return np.exp(first * last / ((1 - t) * last + t * first))

    values = [
        AdEMAMix.Config(b1=0.8, b3=0.99, warmup_steps=4).build()._slow_decay(s) for s in range(6)
    ]
    np.testing.assert_allclose(values, [b3(step) for step in range(6)], rtol=1e-6)
    model = Shapes.Config().build()
    ours = AdEMAMix.Config(b1=0.8, b3=0.8, alpha=3.0, warmup_steps=4, weight_decay=0.3)
    theirs = contrib.ademamix(
        RATE,
        b1=0.8,
        b3=0.8,
        alpha=lambda step: 3.0 * jnp.minimum((step + 1) / 4, 1),
        weight_decay=0.3,
        mask=DECAYS,
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        trained(learner_of(ours), model),
        trained_by_optax(theirs, model),
    )


@pytest.mark.parametrize(
    "optimizer", [ADOPT.Config(weight_decay=0.3), SOAP.Config(weight_decay=0.3)]
)
def test_a_first_update_that_only_measures_still_decays(optimizer):
    model = Shapes.Config().build()
    first, params = model.init(0), trained(learner_of(optimizer), model, num_steps=1)
    np.testing.assert_allclose(
        params["matrix"], first["matrix"] * (1 - 0.3 * float(RATE(0))), rtol=1e-6
    )
    np.testing.assert_array_equal(params["kept"], first["kept"])
    np.testing.assert_array_equal(params["vector"], first["vector"])


@pytest.mark.parametrize("optimizer", [LAMB.Config(), SOAP.Config(frequency=2)])
@pytest.mark.slow
def test_each_stacked_copy_is_trained_as_a_layer_of_its_own(optimizer):
    class Layers(Module):
        def setup(self, cfg):
            self.layers = StackedModule(Shapes.Config().build(), 3)

    # Random ones, since bases of a space of equal eigenvalues may differ.
    def steps(model, params, copy=None):
        learner = learner_of(optimizer).build(total_steps=10)
        transformation = learner.transformation(model.param_specs())
        state = learner.init(transformation, params)
        for gradients in drawn:
            own = gradients if copy is None else of_copy(gradients, copy)
            done = learner.update(transformation, own, state, params, loss=jnp.float32(1))
            params, state = done.params, done.opt_state
        return params

    of_copy = lambda tree, copy: jax.tree.map(lambda leaf: leaf[copy], tree["layers"])  # noqa: E731
    stacked, one = Layers.Config().build(), Shapes.Config().build()
    first = stacked.init(0)
    drawn = [random_like(first, seed) for seed in range(6)]
    done = steps(stacked, first)
    for copy in range(3):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
            of_copy(done, copy),
            steps(one, of_copy(first, copy), copy),
        )


def test_schedule_free_decays_what_adamw_would():
    steps = optax.adamw(RATE, b1=0.0, b2=0.9, weight_decay=0.3, mask=DECAYS)
    theirs = contrib.schedule_free(steps, RATE, b1=0.8)
    ours, model = (
        ScheduleFreeAdamW.Config(b1=0.8, b2=0.9, weight_decay=0.3),
        Shapes.Config().build(),
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        trained(learner_of(ours), model),
        trained_by_optax(theirs, model),
    )


@pytest.mark.parametrize("guard", [SpikeGuard.Config(), SpikeGuard.Config(sigmas=9.0)])
def test_schedule_free_evaluates_the_weighted_mean_of_its_steps(guard):
    cfg = learner_of(ScheduleFreeAdamW.Config(b1=0.8), skip_spikes=guard)
    learner, model = cfg.build(total_steps=10), Shapes.Config().build()
    transformation = learner.transformation(learner.with_frozen(model.param_specs()))
    params = mean = model.init(0)
    state, total = learner.init(transformation, params), 0.0
    assert_same(learner.evaluated_params(state, params), params)
    for step in range(5):
        gradients = gradients_at(step, params)
        done = learner.update(transformation, gradients, state, params, loss=jnp.float32(1))
        params, state = done.params, done.opt_state
        # z of y = b1 x + (1 - b1) z, with optax's weight: its steps are from 1.
        weight = max(float(RATE(s)) for s in range(1, step + 2)) ** 2
        total += weight
        z = (state.optimizer if guard.sigmas else state).inner.z
        mean = jax.tree.map(lambda x, z: x + weight / total * (z - x), mean, z)  # noqa: B023
    part = learner.evaluated_part(state)
    assert len(jax.tree.leaves(part)) == len(jax.tree.leaves(params))
    for held in (state, part):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
            learner.evaluated_params(held, params),
            mean,
        )


def test_schedule_free_refuses_what_its_average_would_not_fit():
    free, group = ScheduleFreeAdamW.Config(), ParamGroup(name="all", params=("**",))
    inside = ParamGroup(name="all", params=("**",), optimizer=free)
    for cfg, where in (
        (learner_of(free, groups=(group,)), "learner.groups"),
        (learner_of(AdamW.Config(), groups=(inside,)), "learner.groups"),
        (learner_of(free, ema=EMA.Config(decay=0.9)), "learner.ema.decay"),
        (DiLoCo.Config(optimizer=free, num_groups=2, schedule=SCHEDULE), "learner.optimizer"),
    ):
        with pytest.raises(ConfigError, match="ScheduleFreeAdamW keeps") as error:
            cfg.build(total_steps=10)
        assert error.value.where == where
    with pytest.raises(ConfigError, match="more than 0"):
        ScheduleFreeAdamW.Config(b1=0.0)


def random_like(tree, seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), p.dtype), tree)


@pytest.mark.slow
def test_muon_treats_each_stacked_copy_as_a_matrix_of_its_own():
    class Layers(Module):
        def setup(self, cfg):
            self.layers = StackedModule(Matrices.Config().build(), 3)

    muon, one = learner_of(Muon.Config()), Matrices.Config().build()
    stacked = Layers.Config().build()
    learner = muon.build(total_steps=10)
    specs = stacked.param_specs()
    assert all(spec.is_matrix for spec in jax.tree.leaves(specs))
    transformation = learner.transformation(specs)
    params = stacked.init(0)
    gradients = gradients_at(0, params)
    done = learner.update(
        transformation, gradients, learner.init(transformation, params), params, loss=jnp.float32(1)
    )
    for copy in range(3):
        of_copy = lambda tree: jax.tree.map(lambda leaf: leaf[copy], tree["layers"])  # noqa: B023, E731
        alone = learner.transformation(one.param_specs())
        mine = of_copy(params)
        expected = learner.update(
            alone, of_copy(gradients), learner.init(alone, mine), mine, loss=jnp.float32(1)
        )
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6),
            of_copy(done.params),
            expected.params,
        )


def test_muon_refuses_what_is_no_matrix():
    with pytest.raises(
        ConfigError, match=r"Muon trains matrices; vector has shape \(8,\)"
    ) as error:
        trained(learner_of(Muon.Config()), Shapes.Config().build())
    assert "matrices_only=True" in error.value.hint


@pytest.mark.slow
def test_matrices_by_muon_and_the_rest_by_adamw():
    group = ParamGroup(
        name="hidden", params=("**",), matrices_only=True, optimizer=Muon.Config(weight_decay=0.3)
    )
    model = Shapes.Config().build()
    theirs = optax.partition(
        {
            "muon": contrib.muon(
                RATE,
                weight_decay=0.3,
                weight_decay_mask={**DECAYS, "vector": optax.MaskedNode()},
                consistent_rms=0.2,
            ),
            "adamw": optax.adamw(RATE, b2=0.9, weight_decay=0.0),
        },
        {"matrix": "muon", "kept": "muon", "vector": "adamw"},
    )
    ours = learner_of(AdamW.Config(b2=0.9, weight_decay=1e-4), groups=(group,))
    assert_same(trained(ours, model), trained_by_optax(theirs, model))


def test_a_constant_rate_of_nothing_changes_nothing():
    cfg = Learner.Config(schedule=ConstantSchedule.Config(peak=0.0))
    model = Shapes.Config().build()
    assert_same(trained(cfg, model), model.init(0))
