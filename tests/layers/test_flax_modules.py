"""Modules of flax replace axcore's, and compute what flax computes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

from axcore.config import (
    config,
    config_for,
    evolve,
    replace_config,
)
from axcore.errors import ConfigError
from axcore.layers import FeedForward
from axcore.layers.flax_modules import LinenModule, NNXModule
from axcore.module import Module, StackedModule, apply_updates, functional, summary_table

DIM = 4
X = np.linspace(-1, 1, 2 * 3 * DIM, dtype=np.float32).reshape(2, 3, DIM)


class LinenMLP(nn.Module):
    features: int
    rate: float = 0.0

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        kernel = nn.with_partitioning(nn.initializers.lecun_normal(), ("embed", "mlp"))
        h = nn.BatchNorm(use_running_average=not train)(x)
        h = jax.nn.relu(nn.Dense(2 * self.features, kernel_init=kernel)(h))
        h = nn.Dropout(self.rate, deterministic=not train)(h)
        return x + nn.Dense(self.features)(h)


class NNXMLP(nnx.Module):
    def __init__(self, dim: int, *, rate: float = 0.0, rngs: nnx.Rngs) -> None:
        self.norm = nnx.BatchNorm(dim, rngs=rngs)
        self.up = nnx.Linear(dim, 2 * dim, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.down = nnx.Linear(2 * dim, dim, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return x + self.down(self.dropout(jax.nn.relu(self.up(self.norm(x)))))


LINEN = LinenModule.Config(
    module=config_for(LinenMLP),
    dim_arguments=("features",),
    training_flag="train",
    flag_in_training=True,
)
NNX = NNXModule.Config(module=config_for(NNXMLP), dim_arguments=("dim",))


class Stack(Module):
    """Two scanned layers in the slot protocol: the parent fills `dim`."""

    @config
    class Config(Module.Config):
        dim: int = DIM
        layer: Module.Config = FeedForward.Config(hidden_dim=3)

    def setup(self, cfg: Config) -> None:
        self.layer = StackedModule(cfg.layer.build(dim=cfg.dim), 2)

    def forward(self, x: Any) -> Any:
        return self.layer.scan(x)


def linen_variables(state: dict[str, Any]) -> dict[str, Any]:
    stats = {name: leaf for name, leaf in state.items() if name.startswith("batch_stats/")}
    tree: dict[str, Any] = {"params": {}, "batch_stats": {}}
    for name, leaf in state.items():
        collection, path = ("batch_stats", name[12:]) if name in stats else ("params", name)
        layer, array = path.split("/")
        tree[collection].setdefault(layer, {})[array] = leaf
    return tree


@pytest.mark.slow
def test_a_linen_module_computes_what_it_computes_in_flax() -> None:
    module = LINEN.build(dim=DIM)
    state = module.init(0)
    flax = LinenMLP(features=DIM)
    np.testing.assert_allclose(
        functional(module, state, X)[0], flax.apply(linen_variables(state), X, False), rtol=1e-6
    )
    y, outputs = functional(module, state, X, training=True)
    expected, new = flax.apply(linen_variables(state), X, True, mutable=["batch_stats"])
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    updated = linen_variables(apply_updates(state, outputs.updates))
    for name in ("mean", "var"):
        np.testing.assert_allclose(
            updated["batch_stats"]["BatchNorm_0"][name], new["batch_stats"]["BatchNorm_0"][name]
        )


@pytest.mark.slow
def test_an_nnx_module_computes_what_it_computes_in_flax() -> None:
    module = NNX.build(dim=DIM)
    state = module.init(0)
    flax = NNXMLP(DIM, rngs=nnx.Rngs(0))
    for name, leaf in state.items():
        part, array = name.split("/")
        getattr(getattr(flax, part), array).set_value(leaf)
    flax.eval()
    np.testing.assert_allclose(functional(module, state, X)[0], flax(X), rtol=1e-6)
    flax.train()
    y, outputs = functional(module, state, X, training=True)
    np.testing.assert_allclose(y, flax(X), rtol=1e-6)
    updated = apply_updates(state, outputs.updates)
    np.testing.assert_allclose(updated["norm/mean"], flax.norm.mean.get_value(), rtol=1e-6)
    np.testing.assert_allclose(updated["norm/var"], flax.norm.var.get_value(), rtol=1e-6)


@pytest.mark.parametrize("new", [LINEN, NNX], ids=["linen", "nnx"])
@pytest.mark.quick_one_in(4)
def test_a_flax_module_replaces_a_layer_and_trains_under_scan(new: Any) -> None:
    cfg = replace_config(Stack.Config(), FeedForward, new)
    module = cfg.build()
    state = module.init(0)

    def loss(state: Any) -> Any:
        y, outputs = functional(module, state, X, training=True, rng=0)
        return jnp.sum(y**2), outputs

    gradient, outputs = jax.jit(jax.grad(loss, has_aux=True))(state)
    specs = module.param_specs()["layer"]
    for name, spec in specs.items():
        assert spec.shape[0] == 2
        assert bool(np.any(gradient["layer"][name] != 0)) == spec.is_trainable, name
    assert {path[-1] for path in outputs.updates} == {n for n, s in specs.items() if s.is_buffer}
    kernels = [name for name in specs if name.endswith("kernel")]
    for name in kernels:
        first, second = state["layer"][name]
        assert not np.allclose(first, second), "each copy has a key of its own"


@pytest.mark.parametrize("cls", ["linen", "nnx"])
def test_dropout_of_a_flax_module_draws_from_the_calls_key(cls: str) -> None:
    call = config_for(LinenMLP, rate=0.5) if cls == "linen" else config_for(NNXMLP, rate=0.5)

    module = evolve(LINEN if cls == "linen" else NNX, module=call).build(dim=DIM)
    state = module.init(0)
    run = lambda rng, training=True: functional(module, state, X, rng=rng, training=training)[0]  # noqa: E731
    np.testing.assert_array_equal(run(1), run(1))
    assert not np.allclose(run(1), run(2))
    np.testing.assert_array_equal(run(1, training=False), run(2, training=False))


def test_axes_that_flax_knows_are_kept() -> None:
    specs = LINEN.build(dim=DIM).param_specs()
    assert specs["Dense_0/kernel"].axes == ("embed", "mlp")
    assert specs["Dense_1/kernel"].axes == (None, None)
    assert specs["batch_stats/BatchNorm_0/mean"].is_buffer
    assert "Dense_0/kernel" in summary_table(LINEN.build(dim=DIM))


def test_the_seed_decides_the_initial_values() -> None:
    module = NNX.build(dim=DIM)
    assert not np.allclose(module.init(0)["up/kernel"], module.init(1)["up/kernel"])
    again = NNX.build(dim=DIM).init(0)
    np.testing.assert_array_equal(module.init(0)["up/kernel"], again["up/kernel"])


def test_a_module_that_is_no_call_is_refused() -> None:
    with pytest.raises(ConfigError, match="module is 3; expected a config of a call"):
        LinenModule.Config(module=3).build(dim=2)
