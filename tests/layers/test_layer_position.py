"""A layer knows its number, and the same one however its stack runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.config import REQUIRED, config
from axcore.errors import ModuleError
from axcore.layers import (
    MoE,
    Pipeline,
    ScannedLayers,
    Sequence,
    Stack,
    alternating,
    whole_rows,
)
from axcore.module import Module, Remat, StackedModule, functional
from axcore.parallel import ActivationSharding, sharding_activations

LAYERS, DIM = 4, 8


class Inner(Module):
    """Multiplies by the number of the layer it is in, and that by how many there are."""

    @config
    class Config(Module.Config):
        dim: int = REQUIRED

    def forward(self, x):
        position = self.layer_position()
        return x * (1 + position.index).astype(x.dtype) + position.count


class Numbered(Module):
    """A layer whose number is read by a module below it."""

    @config
    class Config(Module.Config):
        dim: int = REQUIRED
        inner: Module.Config = Inner.Config()

    def setup(self, cfg):
        self.inner = cfg.inner.build(dim=cfg.dim)

    def forward(self, x, info):
        return self.inner(x)


LAYER = Numbered.Config()
X = jnp.ones((2, 3, DIM))


def run(cfg):
    module = cfg.build(dim=DIM)
    info = whole_rows(jnp.zeros((2, 3), jnp.int32))
    return jax.jit(lambda x: functional(module, module.init(0), x, info)[0])(X)


def expected(num_layers=LAYERS):
    y = np.ones(X.shape)
    for index in range(num_layers):
        y = y * (1 + index) + num_layers
    return y


def with_remat(cfg):
    return type(cfg)(inner=Inner.Config(remat=Remat()), remat=Remat())


STACKS = {
    "unrolled": Stack.Config(num_layers=LAYERS, layer=LAYER),
    "scanned": ScannedLayers.Config(num_layers=LAYERS, layer=LAYER),
    "two a step": ScannedLayers.Config(num_layers=LAYERS, layer=LAYER, unroll=2),
    "rematerialised": ScannedLayers.Config(num_layers=LAYERS, layer=with_remat(LAYER)),
    "pipeline": Pipeline.Config(num_layers=LAYERS, layer=LAYER, num_micro_batches=2),
    "two rounds": Pipeline.Config(
        num_layers=LAYERS, layer=with_remat(LAYER), num_micro_batches=1, num_rounds=2
    ),
    "one of each": Sequence.Config(layers=(LAYER,) * LAYERS),
    "in turns": alternating(ScannedLayers.Config(num_layers=LAYERS), LAYER, LAYER),
    "turns of stacks": alternating(
        ScannedLayers.Config(num_layers=LAYERS), Stack.Config(num_layers=1, layer=LAYER), LAYER
    ),
    "stacks in a row": Sequence.Config(
        layers=(LAYER, ScannedLayers.Config(num_layers=LAYERS - 1, layer=LAYER))
    ),
    "a pipeline of turns": Pipeline.Config(
        num_layers=2, layer=Sequence.Config(layers=(LAYER, LAYER)), num_micro_batches=2
    ),
}


@pytest.mark.parametrize("name", STACKS)
def test_a_layer_has_its_number_in_every_stack(name):
    np.testing.assert_array_equal(run(STACKS[name]), expected())


def test_stages_on_devices_of_their_own_count_as_one_stack(cpu_mesh):
    mesh = cpu_mesh(pipeline=2)
    with jax.set_mesh(mesh), sharding_activations(ActivationSharding(mesh)):
        np.testing.assert_array_equal(run(STACKS["pipeline"]), expected())


class Expert(Inner):
    """An expert that returns the number of its layer."""

    def forward(self, x):
        return jnp.zeros_like(x) + self.layer_position().index.astype(x.dtype)


def test_experts_are_in_the_layer_that_holds_them():
    moe = MoE.Config(expert=Expert.Config(), num_experts=2, top_k=1)
    cfg = ScannedLayers.Config(num_layers=LAYERS, layer=Numbered.Config(inner=moe))
    np.testing.assert_allclose(run(cfg), np.full(X.shape, LAYERS - 1), rtol=1e-6)


def test_outside_of_a_stack_there_is_no_number():
    with pytest.raises(ModuleError, match="outside of layers") as caught:
        run(LAYER)
    assert "layers_in" in str(caught.value)


class AtOnce(Module):
    """Layers that run in parallel."""

    layers_in = "layer"

    @config
    class Config(Module.Config):
        dim: int = REQUIRED

    def setup(self, cfg):
        self.layer = StackedModule(LAYER.build(dim=cfg.dim), LAYERS)

    def forward(self, x, info):
        xs = jnp.broadcast_to(x, (LAYERS, *x.shape))
        return self.layer.vmap(xs, jax.tree.map(lambda leaf: jnp.stack([leaf] * LAYERS), info))


class Shared(Module):
    """One layer, twice."""

    layers_in = "layer"

    @config
    class Config(Module.Config):
        dim: int = REQUIRED

    def setup(self, cfg):
        layer = LAYER.build(dim=cfg.dim)
        self.layer = (layer, layer)

    def forward(self, x, info):
        return self.layer[1](self.layer[0](x, info), info)


@pytest.mark.parametrize("stack", [AtOnce, Shared])
def test_a_number_that_cannot_be_told_is_refused(stack):
    with pytest.raises(ModuleError, match="layers that run at once, or in one that is several"):
        run(stack.Config())
