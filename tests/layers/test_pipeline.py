"""`Pipeline` is `ScannedLayers` over microbatches, whatever the stages and rounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.config import REQUIRED, config, evolve, replace_config
from axcore.errors import ConfigError, ModuleError, ShardingError
from axcore.layers import Pipeline, ScannedLayers, TokenInfo
from axcore.learner import AdamW, Learner, WarmupCosine
from axcore.module import Module, Param, Remat, functional
from axcore.parallel import (
    PARAM_RULES,
    ActivationSharding,
    make_mesh,
    param_shardings,
    sharding_activations,
)
from axcore.trainer.step import TrainStep

ROWS, TIME, DIM, LAYERS = 8, 3, 4, 4


@jax.custom_vjp
def _measuring(x, largest):
    return x


_measuring.defvjp(
    lambda x, largest: (x, x), lambda x, gradient: (gradient, jnp.max(jnp.abs(x))[None])
)


class Everything(Module):
    """A layer that adds all that a layer may add."""

    @config
    class Config(Module.Config):
        dim: int = REQUIRED

    def setup(self, cfg):
        self.weight = Param((cfg.dim, cfg.dim), axes=("embed", None))
        self.mean = Param((cfg.dim,), axes=(None,), init=0.1, is_buffer=True)
        self.top = Param((1,), axes=(None,), init=0.0, is_buffer=True, merge="max")
        self.seen = Param(
            (1,),
            axes=(None,),
            init=0.0,
            is_buffer=True,
            merge="max",
            is_overwritten_by_gradient=True,
        )

    def forward(self, x, info):
        y = jnp.tanh(_measuring(x, self.seen) @ self.weight) + x
        y = y * (1 + 0.1 * info.positions[..., None].astype(y.dtype))
        if self.training:
            self.update("mean", 0.5 * self.mean + 0.5 * y.mean((0, 1)))
            self.update("top", jnp.max(y)[None])
        weight = (info.segment_ids > 0).sum().astype(jnp.float32)
        self.add_loss("size", (y**2).sum(), weight, scale=0.1)
        self.add_summary("norm", jnp.mean(jnp.abs(y)))
        return y + self.mean[None, None]


class Root(Module):
    """A stack whose output is to be like a target."""

    @config
    class Config(Module.Config):
        stack: Module.Config = REQUIRED

    def setup(self, cfg):
        self.stack = cfg.stack.build(dim=DIM)

    def forward(self, batch):
        info = TokenInfo(batch["positions"], batch["segment_ids"])
        y = self.stack(batch["x"], info)
        self.add_loss("error", ((y - batch["target"]) ** 2).sum(), batch["x"].shape[0])


@pytest.fixture(scope="module")
def batch():
    generator = np.random.default_rng(0)
    normal = lambda: generator.normal(size=(ROWS, TIME, DIM)).astype(np.float32)  # noqa: E731
    arrays = {
        "x": normal(),
        "target": normal(),
        "positions": generator.integers(0, 5, (ROWS, TIME)).astype(np.int32),
        "segment_ids": generator.integers(0, 2, (ROWS, TIME)).astype(np.int32),
    }
    return jax.tree.map(jnp.asarray, arrays)


def _root(layer=None, **pipeline):
    cfg = Root.Config(
        stack=ScannedLayers.Config(num_layers=LAYERS, layer=layer or Everything.Config())
    )
    return replace_config(cfg, ScannedLayers, Pipeline.Config(**pipeline)) if pipeline else cfg


def _train_step(cfg, num_micro_batches=1):
    learner = Learner.Config(
        optimizer=AdamW.Config(epsilon=1e-2), schedule=WarmupCosine.Config(warmup_steps=0)
    ).build(total_steps=10)
    return TrainStep(cfg.build(), learner, num_micro_batches=num_micro_batches)


@pytest.fixture(scope="module")
def accumulated(batch):
    """State and metrics after a step of a `ScannedLayers` in four micro-batches."""
    step = _train_step(_root(), num_micro_batches=4)
    return jax.jit(step)(step.init(), batch)


@pytest.mark.parametrize(
    ("num_stages", "num_rounds", "remat"),
    [(1, 1, None), (2, 1, None), (4, 1, Remat()), (2, 2, Remat()), (1, 4, None)],
)
@pytest.mark.quick_one_in(6)
def test_pipeline_is_an_accumulated_batch(batch, accumulated, num_stages, num_rounds, remat):
    """Parameters, buffers of all kinds, losses and summaries after a step are the same."""
    layer = Everything.Config(remat=remat)
    step = _train_step(_root(layer, num_micro_batches=4, num_rounds=num_rounds))
    mesh = make_mesh({"pipeline": num_stages}, jax.devices()[:num_stages])
    state = step.init()
    shardings = param_shardings(step.specs, PARAM_RULES, mesh)
    state = state._replace(model=jax.device_put(state.model, shardings))
    with jax.set_mesh(mesh), sharding_activations(ActivationSharding(mesh)):
        after, metrics = jax.jit(step)(state, batch)
    pairs = zip(
        jax.tree.leaves((after.model, metrics)),
        jax.tree.leaves((accumulated[0].model, accumulated[1])),
        strict=True,
    )
    for got, expected in pairs:
        np.testing.assert_allclose(np.reshape(got, expected.shape), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_rounds", [1, 2])
def test_state_is_that_of_a_repeat(num_rounds):
    ours = _root(num_micro_batches=2, num_rounds=num_rounds).build().init(3)
    theirs = _root().build().init(3)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if num_rounds == 1:
            assert mine.shape == other.shape
        np.testing.assert_array_equal(mine.reshape(other.shape), other)


def test_layers_lie_on_the_devices_of_their_stage():
    module = _root(num_micro_batches=4, num_rounds=2).build()
    mesh = make_mesh({"pipeline": 2}, jax.devices()[:2])
    shardings = param_shardings(module.param_specs(), PARAM_RULES, mesh)
    weight = jax.device_put(module.init(0), shardings)["stack"]["layer"]["weight"]
    held = [np.asarray(shard.data) for shard in weight.addressable_shards]
    whole = np.asarray(weight).reshape(LAYERS, DIM, DIM)
    np.testing.assert_array_equal(held[0][:, 0], whole[[0, 2]])
    np.testing.assert_array_equal(held[1][:, 0], whole[[1, 3]])


@pytest.mark.slow
def test_a_batch_that_does_not_divide_goes_through_whole_outside_of_training(batch):
    row = {name: array[:3] for name, array in batch.items()}
    state = _root().build().init(0)
    _, expected = functional(_root().build(), state, row)
    _, got = functional(_root(num_micro_batches=2).build(), state, row)
    for name, loss in expected.losses.items():
        np.testing.assert_allclose(got.losses[name].sum, loss.sum, rtol=1e-6)
    with pytest.raises(ShardingError, match="3 rows does not divide into 2 micro-batches"):
        functional(_root(num_micro_batches=2).build(), state, row, training=True)


class Sender(Module):
    """Adds a shared value, by row, and sends the double of it on."""

    @config
    class Config(Module.Config):
        dim: int = REQUIRED
        opens: bool = False

    def forward(self, x, info):
        held = self.get_shared("held")
        if self.config.opens:
            self.set_shared("opened", x)
        if held is None:
            return x
        self.set_shared("held", 2 * held)
        return x + held[:, None, :]


class Opener(Module):
    """A stack with something in a channel before it and after it."""

    @config
    class Config(Module.Config):
        stack: Module.Config = REQUIRED
        by_rows: bool = True

    def setup(self, cfg):
        self.stack = cfg.stack.build(dim=DIM)

    def forward(self, x, info):
        self.set_shared("held", x[:, 0] if self.config.by_rows else x[0, 0])
        return self.stack(x, info), self.get_shared("held")


def _run_opener(batch, pipeline, capture=(), **choices):
    by_rows = choices.pop("by_rows", True)
    stack = ScannedLayers.Config(num_layers=LAYERS, layer=Sender.Config(**choices))
    cfg = Opener.Config(stack=stack, by_rows=by_rows)
    if pipeline:
        cfg = replace_config(cfg, ScannedLayers, Pipeline.Config(num_micro_batches=2))
    info = TokenInfo(batch["positions"], batch["segment_ids"])
    return functional(cfg.build(), {}, batch["x"], info, capture=capture)[0]


def test_channels_pass_through_with_their_rows(batch):
    for got, expected in zip(_run_opener(batch, True), _run_opener(batch, False), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("choices", "text"),
    [
        (
            {"opens": True},
            "a channel was opened, or changed its shape, by layers that run on parts",
        ),
        (
            {"by_rows": False},
            r"channel 'held' has an array of shape \(4,\), which does not begin",
        ),
        (
            {"capture": ["stack.layer"]},
            "stack.layer cannot be captured in layers that run on parts",
        ),
    ],
)
def test_what_cannot_be_split_is_refused(batch, choices, text):
    with pytest.raises(ModuleError, match=text):
        _run_opener(batch, True, **choices)


@pytest.mark.parametrize(
    ("choices", "text"),
    [
        ({"num_micro_batches": 0}, "num_micro_batches is 0; expected 1 or more"),
        ({"num_micro_batches": 2, "num_rounds": 3}, "4 layers do not divide into 3 rounds"),
    ],
)
def test_numbers_that_make_no_pipeline_are_refused(choices, text):
    with pytest.raises(ConfigError, match=text):
        _root(**choices).build()


def test_layers_that_do_not_divide_into_stages_are_refused(batch):
    cfg = evolve(
        _root(num_micro_batches=2), stack=evolve(_root(num_micro_batches=2).stack, num_layers=6)
    )
    module = cfg.build()
    mesh = make_mesh({"pipeline": 4}, jax.devices()[:4])
    with (
        sharding_activations(ActivationSharding(mesh)),
        pytest.raises(ShardingError, match="6 layers do not divide into 4 stages"),
    ):
        functional(module, module.init(0), batch)
