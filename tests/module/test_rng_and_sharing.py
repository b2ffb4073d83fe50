"""Randomness, initial values, sharing, channels, dtypes: siblings do not matter."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from module_examples import Layer, Linear, RunningMean, Scanned, Unrolled

from axcore.config import config, evolve, update_config
from axcore.errors import ModuleError
from axcore.module import (
    ConstantInit,
    DTypes,
    Module,
    Normal,
    Param,
    Remat,
    StackedModule,
    VarianceScaling,
    count_params,
    functional,
    summary_table,
)
from axcore.module.rng import fold_path, fold_paths

X = np.ones((2, 4), np.float32)
LINEAR = Linear.Config(in_dim=4, out_dim=4, init=Normal(std=0.3))


class Noise(Module):
    """Returns fresh noise of each of the named streams, in turn."""

    @config
    class Config(Module.Config):
        streams: tuple[str, ...] = ("noise",)

    def forward(self) -> Any:
        return [jax.random.key_data(self.rng(name)).tolist() for name in self.config.streams]


class House(Module):
    """Rooms by name, each called in turn; some hold parameters of the house's own."""

    @config
    class Config(Module.Config):
        rooms: tuple[str, ...] = ("a", "b")
        params: tuple[str, ...] = ("weight",)
        streams: tuple[str, ...] = ("noise",)
        calls: int = 1

    def setup(self, cfg: Config) -> None:
        for name in cfg.params:
            setattr(self, name, Param((2, 3), axes=(None, None), init=Normal()))
        self.room = {name: Noise.Config(streams=cfg.streams).build() for name in cfg.rooms}
        self.linear = {name: LINEAR.build() for name in cfg.rooms}

    def forward(self) -> Any:
        return {
            name: [room() for _ in range(self.config.calls)] for name, room in self.room.items()
        }


def draws(**changes: Any) -> Any:
    house = House.Config(**changes).build()
    return functional(house, house.init(0), rng=7)[0]


def initial(**changes: Any) -> Any:
    return House.Config(**changes).build().init(0)


def test_a_sibling_changes_nobody_elses_randomness_or_initial_values() -> None:
    few, many = draws(), draws(rooms=("0", "a", "aa", "b", "c"))
    assert few["a"] == many["a"]
    assert few["b"] == many["b"]
    params, more = initial(), initial(rooms=("0", "a", "aa", "b"), params=("bias", "weight"))
    np.testing.assert_array_equal(params["weight"], more["weight"])
    for room in ("a", "b"):
        np.testing.assert_array_equal(
            params["linear"][room]["weight"], more["linear"][room]["weight"]
        )
    assert not np.array_equal(more["bias"], more["weight"])
    assert not np.array_equal(more["linear"]["a"]["weight"], more["linear"]["b"]["weight"])


def test_another_stream_changes_nobody_elses_randomness() -> None:
    one, two = draws(streams=("noise",)), draws(streams=("mask", "noise", "mask"))
    assert one["a"][0][0] == two["a"][0][1]


def test_no_key_is_read_twice() -> None:
    """No two samples read the same key."""
    drawn = draws(streams=("noise", "noise", "mask"), calls=3, rooms=("a", "b", "noise"))
    keys = [tuple(key) for calls in drawn.values() for call in calls for key in call]
    assert len(set(keys)) == len(keys) == 27

    class Twin(Module):
        """Has a child and a stream of the same name."""

        def setup(self, cfg: Any) -> None:
            self.noise = (Noise.Config().build(),)

        def forward(self) -> Any:
            mine = jax.random.key_data(self.rng("noise")).tolist()
            return [mine, *self.noise[0]()]

    mine, theirs = functional(Twin.Config().build(), {}, rng=7)[0]
    assert mine != theirs


class Asks(Module):
    """Calls a module that is elsewhere in the tree."""

    def forward(self, module: Any) -> Any:
        return module()


class Draws(Module):
    """Returns one normal number."""

    def forward(self) -> Any:
        return jax.random.normal(self.rng("noise"))


class Elsewhere(Module):
    """Has one part call the other."""

    @config
    class Config(Module.Config):
        dim: int = 4

    def setup(self, cfg: Config) -> None:
        self.noise = Draws.Config().build()
        self.caller = Asks.Config().build()

    def forward(self, x: Any) -> Any:
        return x + self.caller(self.noise) + self.caller(self.noise)


@pytest.mark.slow
def test_stacking_layers_changes_no_randomness_of_modules_called_from_elsewhere() -> None:
    scanned = Scanned.Config(dim=4, layer=Elsewhere.Config()).build()
    unrolled = Unrolled.Config(dim=4, layer=Elsewhere.Config()).build()
    one, _ = functional(scanned, {}, X, rng=1)
    two, _ = functional(unrolled, {}, X, rng=1)
    np.testing.assert_allclose(one, two, rtol=1e-6)


class Tied(Module):
    """Uses one linear layer in two places: it hands it to the second."""

    @config
    class Config(Module.Config):
        user_remat: Remat | None = None

    def setup(self, cfg: Config) -> None:
        self.first = LINEAR.build()
        self.second = User.Config(remat=cfg.user_remat).build()

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x), self.first)


class User(Module):
    def setup(self, cfg: Any) -> None:
        self.own = LINEAR.build()

    def forward(self, x: Any, shared: Any) -> Any:
        return shared.transposed(x) + self.own(x) + jnp.sum(shared.weight)


class Sharing(Module):
    """Declares the same module under two names, and in a tuple."""

    @config
    class Config(Module.Config):
        inner: Module.Config = LINEAR

    def setup(self, cfg: Config) -> None:
        self.first = cfg.inner.build()
        self.second = self.first
        self.many = (self.first, cfg.inner.build())

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x)) + self.many[0](x) + self.many[1](x)


def test_a_module_in_two_places_shares_its_parameters() -> None:
    module = Sharing.Config().build()
    state = module.init(0)
    assert {name: set(part) for name, part in state.items()} == {"first": {"weight"}, "many": {"1"}}
    assert count_params(module.param_specs()) == 32
    weight, other = state["first"]["weight"], state["many"]["1"]["weight"]
    y, _ = functional(module, state, X)
    np.testing.assert_allclose(y, X @ weight @ weight + X @ weight + X @ other, rtol=1e-5)
    doubled = {**state, "first": {"weight": 2 * weight}}
    y, _ = functional(module, doubled, X)
    expected = 4 * X @ weight @ weight + 2 * X @ weight + X @ other
    np.testing.assert_allclose(y, expected, rtol=1e-5)


@pytest.mark.parametrize("remat", [None, Remat()])
def test_another_modules_parameters_are_read_wherever_it_stands(remat: Any) -> None:
    module = Tied.Config(user_remat=remat).build()
    state = module.init(0)
    shared, own = state["first"]["weight"], state["second"]["own"]["weight"]
    y, _ = functional(module, state, X)
    expected = X @ shared @ shared.T + X @ shared @ own + jnp.sum(shared)
    np.testing.assert_allclose(y, expected, rtol=1e-5)
    gradient = jax.grad(lambda state: jnp.sum(functional(module, state, X)[0]))(state)
    assert np.all(np.isfinite(gradient["first"]["weight"]))
    assert np.any(gradient["first"]["weight"] != 0)


class SharedInScan(Module):
    """Layers of their own that all use one more, which is not stacked."""

    def setup(self, cfg: Any) -> None:
        self.common = LINEAR.build()
        self.layer = StackedModule(Uses.Config().build(), 3)

    def forward(self, x: Any) -> Any:
        return self.layer.scan(self.common(x), self.common)


class Uses(Module):
    def setup(self, cfg: Any) -> None:
        self.own = LINEAR.build()

    def forward(self, x: Any, common: Any) -> Any:
        return common(self.own(x))


def test_every_copy_of_a_repeated_module_may_use_one_that_stands_outside() -> None:
    module = SharedInScan.Config().build()
    state = module.init(0)
    assert state["layer"]["own"]["weight"].shape == (3, 4, 4)
    expected = X @ state["common"]["weight"]
    for weight in state["layer"]["own"]["weight"]:
        expected = expected @ weight @ state["common"]["weight"]
    np.testing.assert_allclose(functional(module, state, X)[0], expected, rtol=1e-5)


@pytest.mark.parametrize("is_repeated_first", [True, False])
def test_a_module_is_not_shared_with_what_stacks_it(is_repeated_first: bool) -> None:
    class Odd(Module):
        def setup(self, cfg: Any) -> None:
            linear = LINEAR.build()
            for name, is_repeated in (("a", is_repeated_first), ("b", not is_repeated_first)):
                setattr(self, name, StackedModule(linear, 3) if is_repeated else linear)

    with pytest.raises(ModuleError, match=r"a Linear is shared between a and b, but one of them"):
        Odd.Config().build().param_specs()


def test_a_second_call_gets_other_keys_and_suffixed_outputs() -> None:
    class Twice(Module):
        @config
        class Config(Module.Config):
            layer: Module.Config = Layer.Config(dim=4, noise=1.0)

        def setup(self, cfg: Any) -> None:
            self.layer = cfg.layer.build()

        def forward(self, x: Any) -> Any:
            return self.layer(x), self.layer(x)

    module = Twice.Config().build()
    (one, two), outputs = functional(
        module, module.init(0), X, rng=0, training=True, capture=["layer"]
    )
    assert not np.allclose(one, two)
    assert list(outputs.losses) == ["layer.size", "layer.size#2"]
    assert list(outputs.summaries) == ["layer.largest", "layer.largest#2"]
    assert list(outputs.captures) == ["layer", "layer#2"]
    np.testing.assert_array_equal(outputs.captures["layer#2"], two)
    total = sum(0.5 * loss.sum / loss.weight for loss in outputs.losses.values())
    np.testing.assert_allclose(outputs.total_loss(), total, rtol=1e-6)


class Remembers(Module):
    """Adds what the first layer sent; later layers add to it."""

    @config
    class Config(Module.Config):
        dim: int = 4

    def setup(self, cfg: Config) -> None:
        self.linear = evolve(LINEAR).build()

    def forward(self, x: Any) -> Any:
        first = self.get_shared("first")
        if first is None:
            self.set_shared("first", x)
            first = x
        count = self.get_shared("count", 0)
        self.set_shared("count", count + 1)
        self.add_summary("seen", jnp.float32(count))
        return self.linear(x) + first


class Reads(Module):
    """A stack of layers that talk by channels, and a reader after it."""

    @config
    class Config(Module.Config):
        stack: Module.Config = Unrolled.Config(dim=4, layer=Remembers.Config())

    def setup(self, cfg: Config) -> None:
        self.stack = cfg.stack.build()

    def forward(self, x: Any) -> Any:
        y = self.stack(x)
        return y, self.get_shared("first"), self.get_shared("count"), self.get_shared("nothing", -1)


@pytest.mark.parametrize("at", ["none", "stack.remat", "stack.layer.remat", "remat"])
@pytest.mark.parametrize("stack", [Unrolled, Scanned])
@pytest.mark.quick_one_in(6)
def test_channels_carry_values_across_layers_however_they_are_run(stack: Any, at: str) -> None:
    plain = Reads.Config()
    cfg = evolve(plain, stack=stack.Config(dim=4, layer=Remembers.Config()))
    if at != "none":
        cfg = update_config(cfg, {at: Remat()})
    module, reference = cfg.build(), plain.build()
    items = reference.init(0)
    state = items
    if stack is Scanned:
        layers = items["stack"]["layer"].values()
        state = {"stack": {"layer": jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)}}
    (y, first, count, nothing), outputs = functional(module, state, X)
    expected, _ = functional(reference, items, X)
    np.testing.assert_allclose(y, expected[0], rtol=1e-5)
    np.testing.assert_array_equal(first, X)
    assert (int(count), nothing) == (3, -1)
    seen = np.concatenate([np.ravel(leaf) for leaf in outputs.summaries.values()])
    np.testing.assert_array_equal(seen, [0, 1, 2])
    gradient = jax.grad(lambda state: jnp.sum(functional(module, state, X)[0][0]))(state)
    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(gradient))


def test_a_channel_opened_where_copies_run_at_once_is_refused() -> None:
    class AtOnce(Scanned):
        def forward(self, x: Any) -> Any:
            return self.layer.vmap(jnp.stack([x, x, x]))

    module = AtOnce.Config(dim=4, layer=Remembers.Config()).build()
    with pytest.raises(ModuleError, match="a channel was opened under vmap, where copies run at"):
        functional(module, module.init(0), X)


class Typed(Module):
    @config
    class Config(Module.Config):
        first: Module.Config = LINEAR
        second: Module.Config = LINEAR
        norm: Module.Config = RunningMean.Config(dim=4)

    def setup(self, cfg: Config) -> None:
        self.first = cfg.first.build()
        self.second = cfg.second.build()
        self.norm = cfg.norm.build()

    def forward(self, x: Any) -> Any:
        return x.astype(self.dtypes.compute) @ self.first.weight, self.second.weight


def test_dtypes_are_inherited_unless_they_are_set() -> None:
    policy = DTypes(param="float32", compute="bfloat16", output="float32")
    cfg = update_config(Typed.Config(), {"dtypes": policy, "second.dtypes.compute": "float32"})
    cfg = update_config(cfg, {"first.dtypes.param": "bfloat16"})
    module = cfg.build()
    state = module.init(0)
    assert state["first"]["weight"].dtype == jnp.bfloat16
    assert state["second"]["weight"].dtype == jnp.float32
    assert state["norm"]["mean"].dtype == jnp.float32
    assert module.first.dtypes == evolve(policy, param="bfloat16")
    assert module.second.dtypes == evolve(policy, compute="float32")
    y, _ = functional(module, state, X)
    assert [leaf.dtype for leaf in y] == [jnp.float32, jnp.float32], "the output dtype"
    text = str(jax.make_jaxpr(lambda state: functional(module, state, X)[0])(state))
    assert "bf16[2,4] = dot_general" in text
    narrow = update_config(Typed.Config(), {"dtypes.param": "bfloat16"}).build().init(0)
    assert narrow["first"]["weight"].dtype == jnp.bfloat16
    assert narrow["norm"]["mean"].dtype == jnp.float32, "a buffer is never in low precision"
    default = Typed.Config().build().init(0)
    assert {leaf.dtype for leaf in jax.tree.leaves(default)} == {np.dtype("float32")}


class Wide(Module):
    """Parameters of all kinds."""

    def setup(self, cfg: Any) -> None:
        self.qkv = Param((64, 3, 32), axes=("embed", None, "heads"), inputs=("embed",))
        self.scale = Param((64,), axes=("norm",), init=1.0)
        self.table = Param((64, 8), axes=("vocab", "embed"), init=Normal(std=2.0), decay=False)


@pytest.mark.slow
def test_initial_values_follow_the_fans_of_the_logical_axes() -> None:
    specs = Wide.Config().build().param_specs()
    assert specs["qkv"].fans == (64, 96)
    assert specs["table"].fans == (64, 8)
    assert [specs[name].decay for name in ("qkv", "scale", "table")] == [True, False, False]
    state = Wide.Config().build().init(0)
    np.testing.assert_allclose(np.std(state["qkv"]), 64**-0.5, rtol=0.05)
    np.testing.assert_allclose(np.std(state["table"]), 2.0, rtol=0.1)
    np.testing.assert_array_equal(state["scale"], np.ones(64))


@pytest.mark.parametrize("fan", ["fan_in", "fan_out", "fan_avg"])
@pytest.mark.parametrize("distribution", ["normal", "truncated_normal", "uniform"])
def test_variance_scaling_has_the_variance_it_says(fan: Any, distribution: Any) -> None:
    init = VarianceScaling(scale=2.0, fan=fan, distribution=distribution)
    sample = init.sample(jax.random.key(0), (200, 200), (50, 200))
    divisor = {"fan_in": 50, "fan_out": 200, "fan_avg": 125}[fan]
    np.testing.assert_allclose(np.var(sample), 2.0 / divisor, rtol=0.03)
    assert abs(np.mean(sample)) < 0.005


def test_specs_describe_the_state_without_making_it() -> None:
    module = Scanned.Config(dim=4, num_layers=3).build()
    specs, state = module.param_specs(), module.init(0)
    described = jax.tree.map(
        lambda spec: spec.abstract, specs, is_leaf=lambda s: hasattr(s, "fans")
    )
    abstract = jax.eval_shape(module.init, 0)
    assert jax.tree.structure(described) == jax.tree.structure(state)
    same = jax.tree.map(lambda a, b, c: a.shape == b.shape == c.shape, described, abstract, state)
    assert all(jax.tree.leaves(same))
    spec = specs["layer"]["up"]["weight"]
    assert (spec.name, spec.axes) == ("layer.up.weight", ("layers", "embed", "mlp"))
    big = Linear.Config(in_dim=2**20, out_dim=2**20).build()
    assert count_params(big.param_specs()) == 2**40


def test_the_summary_table_lists_every_parameter_and_the_exact_total() -> None:
    table = summary_table(Scanned.Config(dim=4, num_layers=3).build())
    assert table == (
        "path                      shape  dtype    axes                count\n"
        "layer.up.weight           3x4x8  float32  layers, embed, mlp     96\n"
        "layer.down.weight         3x8x4  float32  layers, embed, mlp     96\n"
        "layer.norm.mean (buffer)  3x4    float32  layers, embed          12\n"
        "total: 192 parameters, 816 bytes\n"
        "       12 elements of buffers, not trained\n"
    )
    assert "total: 1,099,511,627,776 parameters" in summary_table(
        Linear.Config(in_dim=2**20, out_dim=2**20).build()
    )


def test_declarations_that_cannot_work_are_refused() -> None:
    def declare(fn: Any) -> None:
        class Odd(Module):
            def setup(self, cfg: Any) -> None:
                fn(self)

        Odd.Config().build()

    def after(module: Any) -> None:
        module.__dict__["_is_set_up"] = True
        module.weight = 3

    def twice(module: Any) -> None:
        module.weight = Param((2,), axes=(None,))
        module.weight = Param((3,), axes=(None,))

    def named_forward(module: Any) -> None:
        module.forward = LINEAR.build()

    def mixed(module: Any) -> None:
        module.parts = (LINEAR.build(), 3)

    claims = [
        (after, r"Odd.weight is set after setup; modules contain no state"),
        (twice, r"Odd.weight is declared twice"),
        (named_forward, r"cannot name a parameter or child 'forward'"),
        (mixed, r"parts mixes modules with other values"),
        (lambda m: Param((2,), axes=()), r"shape \(2,\) has 1 dimensions, but axes \(\)"),
        (lambda m: Param((2,), axes=("a",), inputs=("b",)), r"inputs names 'b', which is not"),
        (lambda m: StackedModule(LINEAR.build(), 0), r"cannot be repeated 0 times"),
        (lambda m: StackedModule(3, 1), r"a module is repeated, not a int"),  # type: ignore[arg-type]
    ]
    for fn, message in claims:
        with pytest.raises(ModuleError, match=message):
            declare(fn)


def test_children_may_stand_in_nested_tuples_and_mappings() -> None:
    class Grid(Module):
        def setup(self, cfg: Any) -> None:
            self.rows = [[LINEAR.build(), LINEAR.build()], {"x": LINEAR.build()}]

        def forward(self, x: Any) -> Any:
            return self.rows[1]["x"](self.rows[0][1](x))

    module = Grid.Config().build()
    state = module.init(0)
    assert set(state["rows"]) == {"0", "1"}
    assert isinstance(module.rows, tuple)
    _, outputs = functional(module, state, X, capture=["rows[0][1]"])
    assert list(outputs.captures) == ["rows[0][1]"]


def test_constants_are_what_they_say() -> None:
    np.testing.assert_array_equal(
        ConstantInit(value=2.5).sample(jax.random.key(0), (2,), (1, 1)), [2.5, 2.5]
    )


def test_keys_folded_together_equal_those_folded_one_by_one() -> None:
    key = jax.random.key(7)
    paths: list[tuple[str | int, ...]] = [("decoder", "layer", 3, "weight"), ("norm",), (), (1, 0)]
    together = jax.random.key_data(fold_paths(key, paths))
    one_by_one = [jax.random.key_data(fold_path(key, path)) for path in paths]
    np.testing.assert_array_equal(together, one_by_one)


@pytest.mark.parametrize("kind", [Scanned, Unrolled])
def test_more_layers_draw_no_more_often(kind: type[Scanned]) -> None:
    """Sampling is most of what compiles of a first state, which so stays cheaper than a step."""

    def draws(num_layers: int) -> int:
        cfg = kind.Config(dim=4, num_layers=num_layers)
        module = update_config(cfg, {"**.init": VarianceScaling()}).build()
        return str(jax.make_jaxpr(module.init)(0)).count("name=_truncated_normal")

    assert draws(2) == draws(7) > 0
