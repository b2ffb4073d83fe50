"""Experts on a mesh: whichever way tokens and experts are split, the numbers stay the same."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.config import REQUIRED, config, evolve
from axcore.errors import ModuleError, ShardingError
from axcore.layers import CapacityLimited, Dropless, FeedForward, MoE, Router
from axcore.module import DTypes, Module, functional
from axcore.parallel import (
    PARAM_RULES,
    ActivationSharding,
    make_mesh,
    param_shardings,
    sharding_activations,
)

BATCH, TIME, DIM, EXPERTS = 8, 6, 8, 4
INNER = ["experts.expert.inner"]
KINDS = {
    "dropless": Dropless.Config(),
    "dropless_with_room": Dropless.Config(exchange_room=4.0),
    "capacity": CapacityLimited.Config(factor=1.0),
}
MESHES = (
    {"expert": 4},
    {"data": 2, "expert": 2, "model": 2},
    {"fsdp": 2, "expert": 2, "seq": 2},
    {"data": 2, "fsdp": 2, "model": 2},
)


def _name(shape):
    return " x ".join(f"{name} {size}" for name, size in shape.items())


class Telling(Module):
    """A feed-forward that adds a loss and a summary."""

    @config
    class Config(Module.Config):
        dim: int = REQUIRED
        inner: Module.Config = FeedForward.Config(hidden_dim=12)

    def setup(self, cfg):
        self.inner = cfg.inner.build(dim=cfg.dim)

    def forward(self, x):
        y = self.inner(x)
        num_rows = (x != 0).any(axis=-1).sum()  # others are room that no token needed
        self.add_loss("size", (y**2).sum(), num_rows, scale=0.1)
        self.add_summary("largest_width", y.shape[-1])
        return y


def layer(dispatch, num_experts=EXPERTS):
    return MoE.Config(
        dim=DIM,
        expert=Telling.Config(),
        num_experts=num_experts,
        top_k=2,
        dispatch=dispatch,
        router=Router.Config(z_loss=0.1, bias_rate=0.1),
    ).build()


@pytest.fixture(scope="module")
def x():
    samples = np.random.default_rng(0).normal(size=(BATCH, TIME, DIM))
    return jnp.asarray(samples, jnp.float32)


def _run(module):
    def loss(state, x):
        y, outputs = functional(module, state, x, training=True)
        return (y**2).sum() + outputs.total_loss(), (y, outputs.summaries, outputs.updates)

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True, allow_int=True))


@pytest.fixture(scope="module", params=KINDS)
def case(request, x):
    module = layer(KINDS[request.param])
    state = jax.tree.map(np.asarray, jax.jit(module.init)(jax.random.key(0)))
    return module, state, jax.device_get(_run(module)(state, x))


@pytest.mark.parametrize("shape", MESHES, ids=_name)
@pytest.mark.quick_one_in(12)
def test_mesh_changes_no_number(case, x, shape):
    module, state, expected = case
    devices = jax.devices()[: int(np.prod(list(shape.values())))]
    mesh = make_mesh(shape, devices)
    placed = jax.device_put(state, param_shardings(module.param_specs(), PARAM_RULES, mesh))
    with jax.set_mesh(mesh), sharding_activations(ActivationSharding(mesh)):
        got = jax.device_get(_run(module)(placed, x))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, expected)


@pytest.mark.parametrize("dispatch", KINDS.values(), ids=KINDS)
def test_tokens_travel_and_weights_of_experts_stay(dispatch, x):
    """No device ever holds another's experts: what moves between them is tokens."""
    module = layer(dispatch)
    mesh = make_mesh({"expert": 4}, jax.devices()[:4])
    state = jax.eval_shape(module.init, jax.random.key(0))
    shardings = param_shardings(module.param_specs(), PARAM_RULES, mesh)
    placed = jax.tree.map(
        lambda leaf, to: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=to), state, shardings
    )
    with jax.set_mesh(mesh), sharding_activations(ActivationSharding(mesh)):
        program = jax.jit(lambda state, x: functional(module, state, x)[0]).lower(placed, x)
        text = program.compile().as_text()
    assert "all-to-all" in text
    assert "f32[1,8,12]" in text  # one expert's gate
    assert "f32[4,8,12]" not in text


def test_weights_of_experts_travel_in_the_dtype_that_they_are_read_in(x):
    """Gathered in bfloat16, and their gradients added up so, not in the float32 of storage."""
    module = evolve(layer(Dropless.Config()).config, dtypes=DTypes(compute="bfloat16")).build()
    state = jax.eval_shape(module.init, jax.random.key(0))

    def loss(state, x):
        return jnp.sum(functional(module, state, x)[0].astype(jnp.float32))

    mesh = make_mesh({"fsdp": 4}, jax.devices()[:4])
    with jax.set_mesh(mesh), sharding_activations(ActivationSharding(mesh)):
        text = str(jax.jit(jax.grad(loss)).trace(state, x.astype(jnp.bfloat16)).jaxpr)
    whole, part = r" \w+:(\w+)\[4,(?:8,12|12,8)\]", r" \w+:(\w+)\[4,(?:2,12|12,2)\]"
    assert re.findall(rf"{whole} = all_gather", text) == ["bf16"] * 3
    assert re.findall(rf"{part} = reduce_scatter", text) == ["bf16"] * 3
    assert not re.findall(rf"{whole} = psum", text), "each device needs its part of the sum only"


def test_experts_that_do_not_divide_over_the_axis_are_an_error():
    module = layer(Dropless.Config(), num_experts=6)
    mesh = make_mesh({"expert": 4}, jax.devices()[:4])
    with pytest.raises(ShardingError, match=r"expert is 6, expert is 4") as error:
        param_shardings(module.param_specs(), PARAM_RULES, mesh)
    assert error.value.hint == "change the dimension, the mesh's sizes, or the rule of that axis"
    state = jax.eval_shape(module.init, jax.random.key(0))
    with (
        jax.set_mesh(mesh),
        sharding_activations(ActivationSharding(mesh)),
        pytest.raises(ShardingError, match="6 experts do not divide over mesh axis expert of size"),
    ):
        jax.eval_shape(_run(module), state, np.zeros((4, 2, DIM), np.float32))


@pytest.mark.slow
def test_rows_that_do_not_divide_are_computed_everywhere(x):
    module = layer(Dropless.Config())
    state = jax.jit(module.init)(jax.random.key(0))
    mesh = make_mesh({"data": 2, "expert": 2}, jax.devices()[:4])
    run = jax.jit(lambda state, x: functional(module, state, x)[0])
    expected = run(state, x[:3])
    with (
        jax.set_mesh(mesh),
        sharding_activations(ActivationSharding(mesh)),
        pytest.warns(UserWarning, match="3 of 'batch' do not divide over 4 devices"),
    ):
        got = run(state, x[:3])
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_what_experts_capture_is_refused_on_a_mesh(x):
    module = layer(Dropless.Config())
    state = jax.eval_shape(module.init, jax.random.key(0))
    mesh = make_mesh({"data": 2}, jax.devices()[:2])
    with (
        jax.set_mesh(mesh),
        sharding_activations(ActivationSharding(mesh)),
        pytest.raises(ModuleError, match=r"experts.expert.inner cannot be captured on a mesh"),
    ):
        jax.eval_shape(lambda state: functional(module, state, x, capture=INNER), state)
