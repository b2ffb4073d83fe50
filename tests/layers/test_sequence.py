"""`Sequence`: layers that take turns under a scan, and stacks one after the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.config import REQUIRED, config
from axcore.errors import ConfigError
from axcore.layers import Dropout, Linear, ScannedLayers, Sequence, Stack, TokenInfo, alternating
from axcore.layers.tokens import whole_rows
from axcore.module import Module, Remat, functional

DIM, TURNS = 4, 3


class Layer(Module):
    """`x + factor * dropout(tanh(linear(x)))`, which adds its size as a loss."""

    @config
    class Config(Module.Config):
        dim: int = REQUIRED
        factor: float = 1.0

    def setup(self, cfg):
        self.linear = Linear.Config(in_dim=cfg.dim, out_dim=cfg.dim, axes=("embed", "mlp")).build()
        self.dropout = Dropout.Config(rate=0.3).build()

    def forward(self, x, info: TokenInfo):
        y = self.dropout(jnp.tanh(self.linear(x)))
        self.add_loss("size", (y**2).sum(), y.size, scale=0.1)
        return x + self.config.factor * y


LOCAL, GLOBAL = Layer.Config(factor=0.5), Layer.Config(factor=-2.0)


@pytest.fixture
def inputs(random):
    x = jnp.asarray(random(2, 3, DIM))
    return x, whole_rows(jnp.zeros((2, 3), jnp.int32))


def run(module, state, inputs, **options):
    """Returns result, total loss and gradient."""

    def loss(state):
        y, outputs = functional(module, state, *inputs, training=True, **options)
        return (y**2).sum() + outputs.total_loss(), (y, outputs.total_loss())

    gradient, (y, total) = jax.jit(jax.grad(loss, has_aux=True))(state)
    return y, total, gradient


def turns(kind, **fields):
    stack = kind.Config(num_layers=2 * TURNS, layer=LOCAL)
    cfg = alternating(stack, *(type(layer)(factor=layer.factor, **fields) for layer in PAIR))
    return cfg.build(dim=DIM)


PAIR = (LOCAL, GLOBAL)


@pytest.mark.parametrize("remat", [None, Remat()])
@pytest.mark.slow
def test_turns_under_a_scan_equal_turns_unrolled(inputs, remat):
    """With dropout, losses from inside, and gradients."""
    stack, repeat = turns(Stack), turns(ScannedLayers, remat=remat)
    state = stack.init(0)
    stacked = {"layer": jax.tree.map(lambda *x: jnp.stack(x), *state["layer"].values())}
    jax.tree.map(np.testing.assert_array_equal, repeat.init(0), stacked)
    y, total, gradient = run(stack, state, inputs, rng=1)
    scanned_y, scanned_total, scanned_gradient = run(repeat, stacked, inputs, rng=1)
    np.testing.assert_allclose(scanned_y, y, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(scanned_total, total, rtol=1e-5)
    restacked = jax.tree.map(lambda *x: jnp.stack(x), *gradient["layer"].values())
    jax.tree.map(
        lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5),
        scanned_gradient["layer"],
        restacked,
    )


def test_stacks_run_in_order_and_every_loss_arrives(inputs):
    first = Stack.Config(num_layers=1, layer=GLOBAL)
    rest = ScannedLayers.Config(num_layers=2, layer=LOCAL)
    whole = Sequence.Config(dim=DIM, layers=(first, rest)).build()
    state = whole.init(0)
    y, outputs = functional(whole, state, *inputs)
    middle, _ = functional(first.build(dim=DIM), state["layer"]["0"], *inputs)
    expected, _ = functional(rest.build(dim=DIM), state["layer"]["1"], middle, inputs[1])
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    sizes = [np.size(loss.sum) for loss in outputs.losses.values()]
    assert sorted(sizes) == [1, 2], "one of the single layer, and one of each scanned"


def test_gemma_like_stack_has_its_layers(inputs):
    """34 layers, every sixth of them global: 5 full turns, and 4 left over."""
    five = ScannedLayers.Config(num_layers=5, layer=LOCAL)
    stack = Sequence.Config(
        dim=DIM,
        layers=(
            alternating(ScannedLayers.Config(num_layers=30, layer=LOCAL), five, GLOBAL),
            ScannedLayers.Config(num_layers=4, layer=LOCAL),
        ),
    ).build()
    weights = jax.tree.leaves(stack.param_specs(), is_leaf=lambda leaf: hasattr(leaf, "shape"))
    assert [spec.shape[:-2] for spec in weights] == [(5, 5), (5,), (4,)]


def test_a_pattern_that_does_not_divide_the_layers_is_refused():
    stack = ScannedLayers.Config(num_layers=34, layer=LOCAL)
    message = r"num_layers is 34, not a multiple of the 6 layers that alternate\n.*left over"
    with pytest.raises(ConfigError, match=message):
        alternating(stack, *(LOCAL,) * 5, GLOBAL)
    with pytest.raises(ConfigError, match="not a multiple of the 0 layers"):
        alternating(stack)


def test_an_empty_sequence_is_refused():
    with pytest.raises(ConfigError, match="layers is empty"):
        Sequence.Config(dim=DIM, layers=()).build()
