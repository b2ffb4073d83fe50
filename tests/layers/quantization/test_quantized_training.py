"""Linear layers in int8 and float8: how they learn, what they remember, what modifiers switch."""

import functools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rounding import assert_same_to_rounding

from axcore._jax_compat import inner_jaxprs
from axcore.checkpoint import Checkpointer
from axcore.config import (
    Configurable,
    config,
    diff_config,
    evolve,
    find_config,
    replace_config,
    update_config,
)
from axcore.errors import ConfigError, KernelError
from axcore.layers import (
    Dot,
    Fp8Current,
    Fp8Delayed,
    Int8Dynamic,
    Linear,
    PlainDot,
    ScannedLayers,
    Stack,
)
from axcore.learner import AdamW, Learner, WarmupCosine
from axcore.models import transformer
from axcore.modifiers import Fp8Training, Int8Training, apply_modifier, with_changes, with_dot
from axcore.module import DTypes, Module, Remat, StackedModule, apply_updates, functional
from axcore.ops import KernelPolicy, use_policy
from axcore.parallel import (
    ActivationSharding,
    make_mesh,
    param_shardings,
    sharding_activations,
)
from axcore.parallel.rules import PARAM_RULES
from axcore.plugins import Hardware, Modifier, plugin_host
from axcore.trainer.step import TrainStep

CPU = Hardware.parse("cpu-8")
EMULATED = KernelPolicy(hardware=CPU, pins={"quantized_dot": "emulated"})
DOTS = {
    "int8": Int8Dynamic.Config(),
    "int8_stochastic": Int8Dynamic.Config(stochastic_rounding=True),
    "int8_wide_weight_gradient": Int8Dynamic.Config(weight_gradient=False),
    "fp8_current": Fp8Current.Config(),
    "fp8_delayed": Fp8Delayed.Config(history=4),
}
VOCAB, BATCH, TIME, STEPS = 32, 8, 32, 120


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def small_model():
    cfg = transformer(vocab_size=VOCAB, dim=32, num_layers=2, num_heads=2, hidden_dim=64)
    return evolve(cfg, dtypes=DTypes(compute="bfloat16"))


def text_batch(step):
    """Rows in which each token is followed by one of four, some of them more often than others."""
    followers = np.random.default_rng(0).integers(0, VOCAB, (VOCAB, 4))
    numbers = np.random.default_rng(step + 1)
    columns = [numbers.integers(0, VOCAB, BATCH)]
    for _ in range(TIME):
        which = numbers.choice(4, BATCH, p=(0.55, 0.25, 0.15, 0.05))
        columns.append(followers[columns[-1], which])
    row = np.stack(columns, axis=1).astype(np.int32)
    positions = np.broadcast_to(np.arange(TIME, dtype=np.int32), (BATCH, TIME))
    batch = {
        "tokens": row[:, :-1],
        "targets": row[:, 1:],
        "positions": positions,
        "segment_ids": np.ones((BATCH, TIME), np.int32),
        "loss_weights": np.ones((BATCH, TIME), np.float32),
    }
    return jax.tree.map(jnp.asarray, batch)


def learner():
    return Learner.Config(
        optimizer=AdamW.Config(epsilon=1e-6),
        schedule=WarmupCosine.Config(peak=1e-2, warmup_steps=5),
        total_steps=STEPS,
    ).build()


def train_step(cfg, **options):
    return TrainStep(cfg.build(), learner(), **options)


def jitted(step):
    def in_policy(state, batch):
        with use_policy(EMULATED):
            return step(state, batch)

    return jax.jit(in_policy)


def trained(cfg):
    """Returns the mean loss of the last steps of a short training."""
    step = train_step(cfg)
    state, run = step.init(), jitted(step)
    losses = []
    for number in range(STEPS):
        state, metrics = run(state, text_batch(number))
        losses.append(metrics.losses["cross_entropy"])
    last = jax.device_get(losses[-24:])
    assert int(state.skipped) == 0
    return float(np.mean([loss.sum / loss.weight for loss in last]))


@pytest.fixture(scope="module")
def plain_loss():
    return trained(small_model())


@pytest.mark.parametrize("name", [slow("int8"), slow("fp8_current"), slow("fp8_delayed")])
def test_training_comes_within_two_percent_of_bfloat16(name, plain_loss):
    loss = trained(with_dot(small_model(), DOTS[name]))
    assert plain_loss < 0.5 * np.log(VOCAB)
    assert loss == pytest.approx(plain_loss, rel=0.02)
    assert loss != plain_loss


@pytest.fixture
def random():
    """Returns `random(*shape)`, normal float32 samples, the same in every run."""
    numbers = np.random.default_rng(0)
    return lambda *shape: jnp.asarray(numbers.normal(size=shape), jnp.float32)


# -- The layer -----------------------------------------------------------------------------------

LINEAR = Linear.Config(in_dim=16, out_dim=8, axes=("embed", "mlp"), has_bias=True)


def linear(dot):
    return evolve(LINEAR, dot=dot).build()


def run(module, state, *args, **options):
    with use_policy(EMULATED):
        return functional(module, state, *args, **options)


@pytest.mark.parametrize("name", DOTS)
def test_linear_is_close_to_a_plain_one(name, random):
    module, plain = linear(DOTS[name]), LINEAR.build()
    state, x = module.init(0), random(2, 3, 16)
    y, expected = run(module, state, x)[0], functional(plain, plain.init(0), x)[0]
    assert 0 < float(jnp.linalg.norm(y - expected) / jnp.linalg.norm(expected)) < 0.06


def test_float8_does_not_run_unasked_where_it_is_not_known(random):
    module = linear(Fp8Current.Config())
    with pytest.raises(KernelError, match="wants float8, which cpu-16 does not have"):
        functional(module, module.init(0), random(2, 16))


@pytest.mark.slow
def test_stochastic_rounding_needs_a_key_in_training_only(random):
    module = linear(DOTS["int8_stochastic"])
    state, x = module.init(0), random(4, 16)

    def gradient(seed):
        loss = lambda x: jnp.sum(run(module, state, x, rng=seed, training=True)[0] ** 2)  # noqa: E731
        return jax.grad(loss)(x)

    assert (gradient(0) != gradient(1)).any()
    np.testing.assert_array_equal(gradient(0), gradient(0))
    run(module, state, x)


# -- What float8 remembers -----------------------------------------------------------------------


def test_history_holds_the_largest_magnitudes_of_the_last_steps(random):
    module = linear(Fp8Delayed.Config(history=3))
    state = module.init(0)
    assert {name: leaf.shape for name, leaf in state["dot"].items()} == {
        "input_history": (3,),
        "weight_history": (3,),
        "gradient_history": (3,),
        "gradient_amax": (),
    }
    inputs = [random(5, 16) * scale for scale in (1.0, 8.0, 2.0, 4.0)]
    for x in inputs:
        state = apply_updates(state, run(module, state, x, training=True)[1].updates)
    expected = [np.abs(x).max() for x in inputs[:0:-1]]
    np.testing.assert_array_equal(state["dot"]["input_history"], expected)
    largest = float(jnp.abs(state["weight"]).max())
    np.testing.assert_array_equal(state["dot"]["weight_history"], [largest] * 3)


def test_evaluation_changes_no_history(random):
    module = linear(Fp8Delayed.Config())
    assert run(module, module.init(0), random(5, 16))[1].updates == {}


def test_scale_is_that_of_earlier_steps(random):
    """What a step brings is clipped to what was seen before, and fits from the next step on."""
    module = linear(Fp8Delayed.Config(history=2))
    state, small = module.init(0), random(5, 16)
    plain = lambda x: x @ state["weight"]  # noqa: E731
    for _ in range(2):
        state = apply_updates(state, run(module, state, small, training=True)[1].updates)
    y, outputs = run(module, state, 64 * small, training=True)
    assert float(jnp.abs(y).max()) < 0.2 * float(jnp.abs(plain(64 * small)).max())
    y, _ = run(module, apply_updates(state, outputs.updates), 64 * small, training=True)
    np.testing.assert_allclose(y, plain(64 * small), atol=0.1 * np.abs(plain(64 * small)).max())


class Line(Module):
    """A linear layer whose loss has a gradient of known size: slope over the number of rows."""

    @config
    class Config(Module.Config):
        linear: Module.Config = LINEAR

    def setup(self, cfg):
        self.linear = cfg.linear.build()

    def forward(self, batch):
        y = self.linear(batch["x"])
        self.add_loss("line", jnp.sum(y * batch["slope"]), len(y))


def line_step(history=3, **options):
    dot = Fp8Delayed.Config(history=history)
    return train_step(Line.Config(linear=evolve(LINEAR, dot=dot)), **options)


def line_batch(random, *slopes):
    slope = np.ones((len(slopes), 8), np.float32) * np.array(slopes, np.float32)[:, None]
    return {"x": random(len(slopes), 16), "slope": jnp.asarray(slope)}


def test_backward_pass_tells_the_gradients_magnitude(random):
    """The step after the one that saw it has it in the history."""
    step = line_step()
    state, run = step.init(), jitted(step)
    for slope in (2.0, 3.0, 5.0, 1.0):
        state, _ = run(state, line_batch(random, slope, slope / 2))
    dot = state.model["linear"]["dot"]
    np.testing.assert_array_equal(dot["gradient_amax"], 0.5)
    np.testing.assert_array_equal(dot["gradient_history"], [2.5, 1.5, 1.0])


def test_optimizer_does_not_know_the_statistics(random):
    step = line_step()
    state = step.init()
    names = {jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(state.opt_state)}
    assert not [name for name in names if "history" in name or "amax" in name]
    batch = line_batch(random, 2.0**-5, 2.0**-6)
    _, metrics = jitted(step)(state, batch)
    plain = train_step(Line.Config())
    _, expected = jitted(plain)(plain.init(), batch)
    assert float(metrics.gradient_norm) == pytest.approx(float(expected.gradient_norm), rel=0.05)


def test_micro_batches_remember_the_largest_of_all(random):
    batch = line_batch(random, 1.0, 4.0, 2.0, 3.0)
    states = []
    for count in (1, 4):
        step = line_step(num_micro_batches=count)
        states.append(jitted(step)(step.init(), batch)[0].model["linear"]["dot"])
    for name in ("input_history", "weight_history", "gradient_history", "gradient_amax"):
        np.testing.assert_array_equal(states[0][name], states[1][name], err_msg=name)
    np.testing.assert_array_equal(states[0]["gradient_amax"], 1.0)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_step_that_is_not_finite_leaves_the_histories(random, bad):
    step = line_step()
    state, run = step.init(), jitted(step)
    for slope in (2.0, 3.0):
        state, _ = run(state, line_batch(random, slope))
    after, metrics = run(state, line_batch(random, bad))
    assert not metrics.is_finite
    assert int(after.skipped) == 1
    for one, other in zip(jax.tree.leaves(after.model), jax.tree.leaves(state.model), strict=True):
        np.testing.assert_array_equal(one, other)


def test_history_of_nothing_is_named():
    with pytest.raises(ConfigError, match="history is 0; expected 1 or more"):
        linear(Fp8Delayed.Config(history=0))


# -- One input of several products ----------------------------------------------------------------

INPUTS, WEIGHTS = 4, 7
"""Of a layer: query, key and value read one input, gate and up another."""


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in inner_jaxprs(equation.params):
            yield from equations(inner)


def traced(name):
    step = train_step(with_dot(small_model(), DOTS[name]))
    with use_policy(EMULATED):
        jaxpr = jax.make_jaxpr(step)(step.abstract_state(), text_batch(0)).jaxpr
    return list(equations(jaxpr))


def kept_for_backward(traced_step):
    """Returns how many arrays of each kind layers keep: what the first scan stacks."""
    scan = next(equation for equation in traced_step if equation.primitive.name == "scan")
    (body,) = inner_jaxprs(scan.params)
    pairs = zip(scan.outvars, body.outvars, strict=True)
    stacked = [whole.aval for whole, one in pairs if whole.aval.shape != one.aval.shape]
    return Counter(str(aval) for aval in stacked if aval.size > 2 * 4)


@pytest.mark.quick_one_in(2)
@pytest.mark.parametrize("name", ["fp8_current", "fp8_delayed"])
def test_products_of_one_input_make_it_narrow_once_and_keep_it_once(name):
    found = traced(name)
    narrow = [
        equation
        for equation in found
        if equation.primitive.name == "convert_element_type"
        and equation.params["new_dtype"] == jnp.float8_e4m3fn
    ]
    assert len(narrow) == INPUTS + WEIGHTS
    kept = kept_for_backward(found)
    assert sum(kept[kind] for kind in kept if "float8" in kind) == INPUTS + WEIGHTS


@pytest.mark.slow
def test_delayed_scaling_keeps_no_more_for_backward_than_current_scaling():
    """How the next histories are made is not differentiated: no magnitudes are kept for it."""
    assert kept_for_backward(traced("fp8_delayed")) == kept_for_backward(traced("fp8_current"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fp8_current", "fp8_delayed"])
def test_making_an_input_narrow_once_changes_nothing(name, monkeypatch):
    """Histories of one input are equal, so that it does not matter whose is used.

    Padding is set to zero once in both: else gradients are summed in another order, and what is
    rounded to eight bits then differs by more than rounding.
    """
    once = Module.made_once

    def narrow_each_time(self, name, array, make):
        return once(self, name, array, make) if name == "zeros for padding" else make()

    cfg = with_dot(small_model(), DOTS[name])
    shared = model_gradients.__wrapped__(cfg)
    monkeypatch.setattr(Module, "made_once", narrow_each_time)
    assert_same_to_rounding(shared, model_gradients.__wrapped__(cfg), through="bfloat16")


@pytest.mark.slow
def test_histories_of_projections_stay_where_they_were(random):
    """Each keeps its own, as in checkpoints of versions in which each used its own."""
    state = with_dot(small_model(), DOTS["fp8_delayed"]).build().init(0)
    layer = state["decoder"]["stack"]["layer"]
    for part, names in {"attention": "qkv", "feed_forward": ("gate", "up")}.items():
        for name in names:
            assert "input_history" in layer[part][name]["dot"]


# -- Transformations -------------------------------------------------------------------------------


@functools.cache
def model_gradients(cfg):
    """Returns the gradients of all floats of the first state, and the state's updates."""
    model = cfg.build()
    state = model.init(0)

    def loss(state):
        _, outputs = run(model, state, text_batch(0), training=True, rng=0)
        return outputs.total_loss(), outputs.updates

    return jax.jit(jax.grad(loss, has_aux=True))(state)


def float32_model(dot):
    return with_dot(evolve(small_model(), dtypes=DTypes()), dot)


@pytest.mark.parametrize("name", [slow("int8"), slow("fp8_delayed")])
def test_scanned_layers_equal_unrolled_ones(name):
    """Statistics too, those that come from the backward pass among them."""
    cfg = float32_model(DOTS[name])
    scanned, updates = model_gradients(cfg)
    as_stack = lambda old: Stack.Config(num_layers=old.num_layers, layer=old.layer)  # noqa: E731
    unrolled, _ = model_gradients(replace_config(cfg, ScannedLayers, as_stack))
    layers = unrolled["decoder"]["stack"]["layer"]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers.values())
    pairs = jax.tree.map(
        lambda one, other: float(jnp.linalg.norm(one - other) / (jnp.linalg.norm(other) + 1e-6)),
        scanned["decoder"]["stack"]["layer"],
        stacked,
    )
    assert max(jax.tree.leaves(pairs)) < 0.02
    assert bool(updates) == (name == "fp8_delayed")


@pytest.mark.parametrize("name", ["int8", slow("fp8_delayed")])
@pytest.mark.parametrize("save", [slow(()), ("quantized_input", "quantized_weight")])
@pytest.mark.slow
def test_remat_changes_no_gradient_but_by_a_flip_of_int8_rounding(name, save):
    """What is computed again may differ in its last bit, and then rounds to another int8."""
    cfg = float32_model(DOTS[name])
    kept = model_gradients(cfg)
    remat = Remat(save=save)
    again = model_gradients(update_config(cfg, {"decoder.stack.layer.remat": remat}))
    for one, other in zip(jax.tree.leaves(kept), jax.tree.leaves(again), strict=True):
        if name == "int8":
            assert jnp.linalg.norm(one - other) <= 5e-4 * jnp.linalg.norm(one)
        else:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


class Experts(Module):
    """Copies of a linear layer, each with an input of its own."""

    @config
    class Config(Module.Config):
        linear: Module.Config = LINEAR
        count: int = 3

    def setup(self, cfg):
        self.expert = StackedModule(cfg.linear.build(), cfg.count)

    def forward(self, x):
        return self.expert.vmap(x)


@pytest.mark.parametrize("name", ["int8", "fp8_current", "fp8_delayed"])
@pytest.mark.slow
def test_copies_under_vmap_have_scales_of_their_own(name, random):
    experts = Experts.Config(linear=evolve(LINEAR, dot=DOTS[name])).build()
    state = experts.init(0)
    x = random(3, 5, 16) * jnp.array([1.0, 0.01, 4.0])[:, None, None]
    y, outputs = run(experts, state, x, training=True)
    for i in range(3):
        one = jax.tree.map(lambda leaf: leaf[i], state["expert"])  # noqa: B023
        expected, _ = run(linear(DOTS[name]), one, x[i], training=True)
        np.testing.assert_allclose(y[i], expected, rtol=1e-5, atol=1e-6)
    if name == "fp8_delayed":
        seen = outputs.updates[("expert", "dot", "input_history")][:, 0]
        np.testing.assert_array_equal(seen, np.abs(x).max((1, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["int8", "fp8_current", "fp8_delayed"])
def test_a_mesh_of_eight_trains_as_one_device(name):
    """Scales are those of the full array, wherever its parts are."""
    step = train_step(float32_model(DOTS[name]))
    state, batch = step.init(), text_batch(0)
    alone, metrics = jitted(step)(state, batch)
    mesh = make_mesh({"fsdp": 4, "model": 2}, jax.devices()[:8])
    model = jax.device_put(state.model, param_shardings(step.specs, PARAM_RULES, mesh))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("fsdp"))
    with jax.set_mesh(mesh), sharding_activations(ActivationSharding(mesh)):
        spread, split_metrics = jitted(step)(
            state._replace(model=model), jax.device_put(batch, split)
        )
    assert float(split_metrics.gradient_norm) == pytest.approx(
        float(metrics.gradient_norm), rel=0.02
    )
    if name == "fp8_delayed":
        for one, other in zip(_histories(spread), _histories(alone), strict=True):
            np.testing.assert_allclose(one, other, rtol=0.02, atol=1e-6)


def _histories(state):
    leaves = jax.tree.leaves_with_path(state.model)
    return [leaf for path, leaf in leaves if "dot" in jax.tree_util.keystr(path)]


# -- Modifiers -------------------------------------------------------------------------------------

LINEARS = [
    f"decoder.stack.layer.{part}.dot"
    for part in ("attention.linear", "attention.out_linear", "feed_forward.linear")
]


@pytest.mark.parametrize(
    ("modifier", "dot"), [(Int8Training(), Int8Dynamic), (Fp8Training(), Fp8Current)]
)
def test_modifier_switches_exactly_the_linears(modifier, dot):
    cfg = small_model()
    changed = modifier.apply(cfg, CPU)
    assert sorted(change.path for change in diff_config(cfg, changed)) == LINEARS
    assert [found.path for found in find_config(changed, dot)] == LINEARS
    assert not find_config(changed, PlainDot)


class Routed(Configurable):
    """Parts that a modifier leaves alone by default, next to one that it switches."""

    @config
    class Config(Configurable.Config):
        router: Module.Config = LINEAR
        head: Module.Config = LINEAR
        embedding: Module.Config = LINEAR
        expert: Module.Config = LINEAR


def test_embedding_head_and_router_stay_wide():
    cfg = Routed.Config()
    changed = Int8Training().apply(cfg, CPU)
    assert [change.path for change in diff_config(cfg, changed)] == ["expert.dot"]
    everything = Int8Training(exclude=()).apply(cfg, CPU)
    assert len(diff_config(cfg, everything)) == 4


def test_layers_can_be_excluded_by_path():
    changed = Fp8Training(exclude=("**.attention.**",)).apply(small_model(), CPU)
    assert [found.path for found in find_config(changed, Fp8Current)] == LINEARS[2:]


def test_delayed_scaling_is_asked_for_by_its_config():
    changed = Fp8Training(dot=Fp8Delayed.Config(history=8)).apply(small_model(), CPU)
    assert len(find_config(changed, Fp8Delayed)) == 3


@pytest.mark.parametrize("modifier", [Int8Training(), Fp8Training()])
def test_modifier_that_would_change_nothing_fails(modifier):
    once = modifier.apply(small_model(), CPU)
    with pytest.raises(ConfigError, match="takes the place of nothing: of 3 products, 3 are not"):
        modifier.apply(once, CPU)
    with pytest.raises(ConfigError, match="takes the place of nothing: of 0 products"):
        modifier.apply(small_model().head, CPU)
    with pytest.raises(ConfigError, match="0 are not plain and 3 are excluded"):
        evolve(modifier, exclude=("**",)).apply(small_model(), CPU)
    with pytest.raises(ConfigError, match=r"PlainDot\.Config takes the place of nothing"):
        evolve(modifier, dot=PlainDot.Config()).apply(small_model(), CPU)


def test_exclusion_that_matches_nothing_fails():
    with pytest.raises(ConfigError, match=r"exclude names '\*\*.atention.\*\*', which matches no"):
        Int8Training(exclude=("**.atention.**",)).apply(small_model(), CPU)


@pytest.mark.parametrize(
    ("name", "dot"), [("int8_training", Int8Dynamic), ("fp8_training", Fp8Current)]
)
def test_modifier_works_by_its_name(name, dot):
    assert name in {record.name for record in plugin_host().records(Modifier)}
    changed = with_changes(small_model(), [name], CPU)
    assert [found.path for found in find_config(changed, dot)] == LINEARS


def test_modifier_runs_in_a_mesh_rule():
    changed = apply_modifier(small_model(), Int8Training(), CPU, where="a rule")
    assert len(find_config(changed, Int8Dynamic)) == 3


def test_dot_of_a_linear_is_what_its_config_says():
    cfg = evolve(LINEAR, dot=Int8Dynamic.Config(weight_gradient=False))
    assert isinstance(cfg.build().dot, Int8Dynamic)
    with pytest.raises(NotImplementedError, match="Dot multiplies nothing"):
        run(evolve(LINEAR, dot=Dot.Config()).build(), LINEAR.build().init(0), jnp.ones((2, 16)))


def test_histories_are_saved_and_restored(random, tmp_path):
    """A step after a checkpoint is the step that would have come without it, in every bit."""
    step = line_step()
    state, run = step.init(), jitted(step)
    for slope in (0.5, 0.25):
        state, _ = run(state, line_batch(random, slope))
    with Checkpointer.Config(every_steps=1).build(directory=str(tmp_path)) as checkpointer:
        checkpointer.save(2, state)
        checkpointer.wait()
        template = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), step.init())
        restored = checkpointer.restore(template).state
    dot = restored.model["linear"]["dot"]
    np.testing.assert_array_equal(dot["gradient_history"], [0.5, 0.0, 0.0])
    batch = line_batch(random, 1.0)
    for one, other in zip(
        *(jax.tree.leaves(run(s, batch)) for s in (restored, state)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
