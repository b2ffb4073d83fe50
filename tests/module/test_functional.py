"""`functional` is pure: equal under every transformation, and its outputs lose nothing."""

import sys
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from module_examples import Layer, Linear, Parallel, RunningMean, Scanned, Unrolled, stacked

from axcore.config import REQUIRED, config, replace_config, update_config
from axcore.errors import ModuleError
from axcore.module import (
    Module,
    Normal,
    Outputs,
    Remat,
    StackedModule,
    apply_updates,
    entry,
    functional,
)

DIM = 4
STACKS = {"scanned": Scanned, "unrolled": Unrolled, "parallel": Parallel}
RANDOM = {"**.init": Normal(std=0.3), "layer.noise": 0.1}
X = np.linspace(-1, 1, 2 * DIM, dtype=np.float32).reshape(2, DIM)


def close(one: Any, two: Any, rtol: float = 2e-5) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(two)
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    for a, b in leaves:
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6)


def made(cls: Any = Scanned, **changes: Any) -> tuple[Module, Any]:
    cfg = update_config(cls.Config(dim=DIM), changes)
    module = cfg.build()
    return module, module.init(0)


def call(module: Any, state: Any, *args: Any, **options: Any) -> Any:
    """Returns what `functional` returns, compiled as a whole."""
    return jax.jit(lambda state, args: functional(module, state, *args, **options))(state, args)


@pytest.mark.parametrize("cls", STACKS.values(), ids=STACKS)
@pytest.mark.quick_one_in(6)
def test_functional_equals_itself_under_every_transformation(cls: Any) -> None:
    module, state = made(cls)

    def run(state: Any, x: Any) -> Any:
        return functional(module, state, x, rng=1, training=True)

    def loss(state: Any, x: Any) -> Any:
        y, outputs = run(state, x)
        return jnp.sum(y**2) + outputs.total_loss()

    expected = run(state, X)
    close(jax.jit(run)(state, X), expected)
    gradient = jax.jit(jax.grad(loss))(state, X)
    close(jax.jit(jax.grad(jax.checkpoint(loss)))(state, X), gradient, rtol=1e-4)
    batch = np.stack([X, -X])
    mapped = jax.jit(jax.vmap(run, in_axes=(None, 0)))(state, batch)
    close(jax.tree.map(lambda leaf: leaf[0], mapped), expected)
    _, scanned = jax.lax.scan(lambda carry, x: (carry, run(state, x)), 0, batch)
    close(scanned, mapped)
    along = lambda step: loss(jax.tree.map(lambda leaf: leaf + step, state), X)  # noqa: E731
    slope = jax.jit(jax.jacfwd(along))(0.0)
    total = sum(np.sum(leaf) for leaf in jax.tree.leaves(gradient))
    np.testing.assert_allclose(slope, total, rtol=1e-4)


def test_functional_under_shard_map_equals_the_plain_call() -> None:
    module, state = made(Scanned)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))
    run = lambda state, x: functional(module, state, x, rng=1)[0]  # noqa: E731
    split = jax.shard_map(
        lambda state, x: run(state, x[0])[None],
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec("data")),
        out_specs=PartitionSpec("data"),
    )
    batch = np.stack([X, -X])
    plain = jax.jit(jax.vmap(run, in_axes=(None, 0)))
    close(jax.jit(split)(state, batch), plain(state, batch))


def test_equal_configs_build_modules_with_equal_results() -> None:
    one, state = made(**RANDOM)
    two, again = made(**RANDOM)
    assert one is not two
    close(state, again, rtol=0)
    close(call(one, state, X, rng=3), call(two, again, X, rng=3), rtol=0)


@pytest.mark.slow
def test_scan_equals_unrolled_layers_in_results_losses_and_randomness() -> None:
    scanned, state = made(Scanned, **RANDOM)
    unrolled, items = made(Unrolled, **RANDOM)
    close(stacked(items, 3), state, rtol=0)
    y, outputs = call(scanned, state, X, rng=1, training=True)
    expected, others = call(unrolled, items, X, rng=1, training=True)
    close(y, expected)
    np.testing.assert_allclose(outputs.total_loss(), others.total_loss(), rtol=1e-5)
    assert list(outputs.losses) == ["layer.size"]
    assert list(others.losses) == [f"layer[{i}].size" for i in range(3)]
    sums = [loss.sum for loss in others.losses.values()]
    np.testing.assert_allclose(outputs.losses["layer.size"].sum, np.stack(sums), rtol=1e-5)


REMATS = {"none": None, "all": Remat(), "some": Remat(save=("x",)), "dots": Remat(save_dots=True)}


class Deep(Module):
    """A scan of scans, each under remat, around a vmap."""

    @config
    class Config(Module.Config):
        dim: int = REQUIRED
        num_layers: int = 2
        layer: Module.Config = Scanned.Config(
            num_layers=2, layer=Parallel.Config(num_layers=2, layer=Layer.Config())
        )

    def setup(self, cfg: Config) -> None:
        self.layer = StackedModule(cfg.layer.build(dim=cfg.dim), cfg.num_layers)

    def forward(self, x: Any) -> Any:
        return self.layer.scan(x)


@pytest.mark.parametrize("remat", REMATS.values(), ids=REMATS)
@pytest.mark.quick_one_in(8)
def test_a_loss_added_at_any_depth_reaches_the_caller_with_its_weight(remat: Any) -> None:
    """No transformation, scan among them, drops a loss."""
    cfg = update_config(Deep.Config(dim=DIM), {"**.remat": remat})
    module = cfg.build()
    state = module.init(0)

    def run(state: Any) -> Any:
        return functional(module, state, X, training=True)

    _, outputs = jax.jit(run)(state)
    (name,) = outputs.losses
    loss = outputs.losses[name]
    assert name == "layer.layer.layer.size"
    assert loss.sum.shape == loss.weight.shape == (2, 2, 2)
    assert np.all(loss.weight == 2 * X.size)
    assert loss.scale == 0.5
    expected = 0.5 * np.sum(loss.sum / loss.weight)
    np.testing.assert_allclose(outputs.total_loss(), expected, rtol=1e-6)
    gradient = jax.jit(jax.grad(lambda state: run(state)[1].total_loss()))(state)
    for leaf in jax.tree.leaves(gradient["layer"]["layer"]["layer"]["up"]):
        assert np.all(np.any(leaf != 0, axis=(-1, -2)))
    assert outputs.summaries["layer.layer.layer.largest"].shape == (2, 2, 2)
    updated = apply_updates(state, outputs.updates)
    mean = updated["layer"]["layer"]["layer"]["norm"]["mean"]
    assert mean.shape == (2, 2, 2, DIM)
    assert np.all(np.any(np.asarray(mean) != 0, axis=-1))


@pytest.mark.parametrize("cls", [Scanned, Unrolled, Parallel])
@pytest.mark.parametrize("at", ["layer.remat", "remat", "**.remat"])
@pytest.mark.quick_one_in(6)
def test_remat_changes_no_number(cls: Any, at: str) -> None:
    noise = {"layer.noise": 0.1 if (cls, at) == (Scanned, "layer.remat") else 0.0}
    plain, state = made(cls, **noise)
    kept, _ = made(cls, **noise, **{at: Remat()})

    def loss(module: Module, state: Any) -> Any:
        y, outputs = functional(module, state, X, rng=1, training=True)
        return jnp.sum(y**2) + outputs.total_loss(), outputs

    gradient = jax.jit(jax.grad(loss, argnums=1, has_aux=True), static_argnums=0)
    close(gradient(kept, state), gradient(plain, state), rtol=1e-4)


def test_the_root_is_recomputed_too_when_its_config_says_so() -> None:
    module, state = made(Scanned, remat=Remat())
    text = str(jax.make_jaxpr(lambda state: functional(module, state, X, rng=1)[0])(state))
    assert "remat" in text or "checkpoint" in text


class Wrapper(Module):
    """Calls the function that it is given, as residual connections do."""

    def forward(self, x: Any, branch: Any) -> Any:
        self.add_summary("seen", jnp.sum(x))
        return x + branch(x)


class Branching(Module):
    @config
    class Config(Module.Config):
        wrapper: Module.Config = Wrapper.Config()
        layer: Module.Config = Layer.Config(dim=DIM, noise=0.1)

    def setup(self, cfg: Config) -> None:
        self.wrapper = cfg.wrapper.build()
        self.layer = cfg.layer.build()

    def forward(self, x: Any) -> Any:
        return self.wrapper(self.wrapper(x, self.layer), lambda x: 2.0 * self.layer(x))


@pytest.mark.slow
def test_remat_of_a_module_that_is_given_functions_changes_no_number() -> None:
    plain = Branching.Config().build()
    kept = update_config(Branching.Config(), {"wrapper.remat": Remat()}).build()
    state = plain.init(0)

    def loss(module: Module, state: Any) -> Any:
        y, outputs = functional(module, state, X, rng=1, training=True)
        return jnp.sum(y**2) + outputs.total_loss(), outputs

    gradient = jax.jit(jax.grad(loss, argnums=1, has_aux=True), static_argnums=0)
    expected = gradient(plain, state)
    close(gradient(kept, state), expected, rtol=1e-4)
    assert set(expected[1].losses) == {"layer.size", "layer.size#2"}


def test_statistics_follow_what_is_seen_in_training_and_nowhere_else() -> None:
    module = RunningMean.Config(dim=DIM, momentum=0.5).build()
    state = module.init(0)
    assert functional(module, state, X)[1].updates == {}
    mean = np.zeros(DIM, np.float32)
    for scale in (1, 2, 3):
        y, outputs = functional(module, state, scale * X, training=True)
        np.testing.assert_allclose(y, scale * X - mean, rtol=1e-6)
        before = state
        state = apply_updates(state, outputs.updates)
        assert before["mean"] is not state["mean"]
        mean = 0.5 * mean + 0.5 * (scale * X).mean(0)
        np.testing.assert_allclose(state["mean"], mean, rtol=1e-6)
    assert module.param_specs()["mean"].is_trainable is False


def test_an_update_of_another_shape_or_dtype_is_refused() -> None:
    class Wrong(RunningMean):
        def forward(self, x: Any) -> Any:
            self.update("mean", x)

    with pytest.raises(ModuleError, match=r"update has shape \(2, 4\) and dtype float32.*\(4,\)"):
        functional(Wrong.Config(dim=DIM).build(), {"mean": jnp.zeros(DIM)}, X)

    class Unknown(RunningMean):
        def forward(self, x: Any) -> Any:
            self.update("men", x)

    with pytest.raises(ModuleError, match=r"has no buffer 'men'; it has \['mean'\]"):
        functional(Unknown.Config(dim=DIM).build(), {"mean": jnp.zeros(DIM)}, X)


def test_captures_are_chosen_by_pattern() -> None:
    module, state = made(Unrolled)
    capture = lambda *patterns: call(module, state, X, rng=1, capture=patterns)[1].captures  # noqa: E731
    assert capture() == {}
    assert set(capture("layer[*].up")) == {f"layer[{i}].up" for i in range(3)}
    assert set(capture("**.hidden")) == {f"layer[{i}].hidden" for i in range(3)}
    assert set(capture("layer[1].**")) >= {"layer[1]", "layer[1].hidden", "layer[1].norm"}
    both = capture("layer[0].up", "layer[0].hidden")
    assert both["layer[0].up"].shape == both["layer[0].hidden"].shape
    scanned, stack = made(Scanned)
    kept = call(scanned, stack, X, rng=1, capture=["**.hidden"])[1].captures
    expected = np.stack([capture("**.hidden")[f"layer[{i}].hidden"] for i in range(3)])
    close(kept["layer.hidden"], expected)


def test_a_capture_that_matches_nothing_is_an_error() -> None:
    module, state = made(Scanned)
    with pytest.raises(ModuleError, match=r"capture='layer\[0\].up' matches no.*\n.*'layer.up'"):
        functional(module, state, X, rng=1, capture=["layer[0].up"])


class Holds(Module):
    def forward(self, x: Any) -> Any:
        self.capture("text", "some text")
        return x


def test_only_arrays_and_numbers_are_captured_or_sent() -> None:
    module = Holds.Config().build()
    with pytest.raises(ModuleError, match="what is captured of text contains a str"):
        functional(module, {}, X, capture=["text"])

    class Sends(Module):
        def forward(self, x: Any) -> Any:
            self.set_shared("name", "some text")

    with pytest.raises(ModuleError, match="channel 'name' contains a str"):
        functional(Sends.Config().build(), {}, X)


class Tens(Module):
    """Ten modules, one inside of the other; the innermost fails."""

    @config
    class Config(Module.Config):
        depth: int = 10
        remat_at: int = -1

    def setup(self, cfg: Config) -> None:
        if cfg.depth > 1:
            remat = Remat() if cfg.remat_at == cfg.depth else None
            self.inner = Tens.Config(
                depth=cfg.depth - 1, remat_at=cfg.remat_at, remat=remat
            ).build()

    def forward(self, x: Any) -> Any:
        if self.config.depth > 1:
            return self.inner(x)
        raise KeyError("deep inside")


@pytest.mark.parametrize("remat_at", [-1, 5])
def test_an_exception_in_the_tenth_module_keeps_its_type_and_gains_the_path(remat_at: int) -> None:
    module = Tens.Config(remat_at=remat_at).build()
    with pytest.raises(KeyError, match="deep inside") as caught:
        jax.jit(lambda x: functional(module, {}, x)[0])(X)
    path = ".".join(["inner"] * 9)
    notes = [note for note in caught.value.__notes__ if "module" in note]
    assert notes == [f"in module {path} (Tens)"]


class Counts(Module):
    """Notes how deep the Python stack is, and calls on."""

    @config
    class Config(Module.Config):
        depth: int = 8
        is_entry: bool = False

    def setup(self, cfg: Config) -> None:
        if cfg.depth > 1:
            self.inner = Counts.Config(depth=cfg.depth - 1, is_entry=cfg.is_entry).build()

    def forward(self, depths: list[int]) -> None:
        frame, depth = sys._getframe(), 0
        while frame is not None:
            frame, depth = frame.f_back, depth + 1  # type: ignore[assignment]
        depths.append(depth)
        if self.config.depth > 1:
            (self.inner.other if self.config.is_entry else self.inner)(depths)

    @entry
    def other(self, depths: list[int]) -> None:
        Counts.forward(self, depths)


@pytest.mark.parametrize(("is_entry", "most"), [(False, 3), (True, 4)])
def test_a_nested_call_adds_at_most_three_python_frames(is_entry: bool, most: int) -> None:
    depths: list[int] = []
    functional(Counts.Config(is_entry=is_entry).build(), {}, depths)
    assert len(depths) == 8
    assert max(np.diff(depths)) <= most, "the fourth of an entry here is this test's own"


@pytest.mark.slow
def test_threads_do_not_see_each_other() -> None:
    results: dict[int, Any] = {}
    barrier = threading.Barrier(4)

    def work(seed: int) -> None:
        barrier.wait()
        for _ in range(5):
            dtype = "bfloat16" if seed % 2 else "float32"
            module, state = made(Unrolled, **{"dtypes.param": dtype})
            y, outputs = functional(module, state, X, rng=seed, training=bool(seed % 2))
            results[seed] = (np.asarray(y), len(outputs.updates), state["layer"]["0"])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):
        dtype = "bfloat16" if seed % 2 else "float32"
        module, state = made(Unrolled, **{"dtypes.param": dtype})
        y, outputs = functional(module, state, X, rng=seed, training=bool(seed % 2))
        np.testing.assert_array_equal(results[seed][0], y)
        assert results[seed][1] == len(outputs.updates) == 3 * (seed % 2)
        assert {str(leaf.dtype) for leaf in jax.tree.leaves(results[seed][2]["up"])} == {dtype}


class Careless(Module):
    """Applies jax transformations by itself, around what cannot leave them."""

    @config
    class Config(Module.Config):
        do: str = "loss"

    def forward(self, x: Any) -> Any:
        do = {
            "loss": lambda: self.add_loss("l", 1.0),
            "summary": lambda: self.add_summary("s", 1.0),
            "send": lambda: self.set_shared("c", x),
            "key": lambda: self.rng("noise"),
        }[self.config.do]
        y = jax.jit(lambda x: (do(), x)[1])(x)
        return y + jax.random.normal(self.rng("noise"), y.shape)


@pytest.mark.parametrize("do", ["loss", "summary", "send"])
def test_what_cannot_leave_a_transformation_is_refused_instead_of_dropped(do: str) -> None:
    with pytest.raises(
        ModuleError, match="cannot leave a jax transformation that a module applies"
    ):
        functional(Careless.Config(do=do).build(), {}, X, rng=0)


def test_a_key_drawn_inside_of_a_transformation_does_not_leak() -> None:
    y, _ = functional(Careless.Config(do="key").build(), {}, X, rng=0)
    assert y.shape == X.shape
    assert np.all(y != X)


def test_calls_that_cannot_work_say_why() -> None:
    module, state = made(Unrolled)
    with pytest.raises(ModuleError, match="a Unrolled was called outside of a call"):
        module(X)
    with pytest.raises(ModuleError, match="the state lacks 'layer"):
        functional(module, {}, X, rng=0)
    bad = {"layer": {"0": {**state["layer"]["0"], "norm": {}}}}
    with pytest.raises(ModuleError, match=r"the state lacks 'layer\[0\].norm.mean'"):
        functional(module, bad, X, rng=0)
    noisy, _ = made(Unrolled, **{"layer.noise": 0.1})
    with pytest.raises(ModuleError, match=r"a random key is needed.*\n  where:  layer\[0\]"):
        functional(noisy, state, X)
    with pytest.raises(ModuleError, match="has no entry method 'down'; it has forward"):
        functional(module, state, X, method="down")
    linear = Linear.Config(in_dim=DIM, out_dim=3).build()
    y, _ = functional(linear, linear.init(0), X @ linear.init(0)["weight"], method="transposed")
    assert y.shape == X.shape

    class Wide(Module):
        def forward(self, x: Any) -> Any:
            self.add_loss("l", x)

    with pytest.raises(ModuleError, match=r"loss 'l' has shape \(2, 4\)"):
        functional(Wide.Config().build(), {}, X)


def test_replacing_a_layer_changes_nothing_beside_it() -> None:
    class Doubling(Linear):
        def forward(self, x: Any) -> Any:
            return 2.0 * super().forward(x)

    cfg = Unrolled.Config(dim=DIM)
    swapped = replace_config(cfg, Linear, Doubling.Config())
    module = swapped.build()
    close(module.init(0), cfg.build().init(0), rtol=0)
    y, _ = functional(module, module.init(0), X)
    assert not np.allclose(y, functional(cfg.build(), cfg.build().init(0), X)[0])


def test_outputs_are_an_empty_pytree_when_nothing_was_added() -> None:
    linear = Linear.Config(in_dim=DIM, out_dim=3).build()
    _, outputs = functional(linear, linear.init(0), X)
    assert outputs == Outputs()
    assert float(outputs.total_loss()) == 0.0


def test_keys_that_the_module_lacks_are_refused_by_name() -> None:
    module, state = made(Scanned)
    strange = {**state, "layer": {**state["layer"], "nrom": {"mean": X}}, "zeros": X}
    with pytest.raises(ModuleError, match=r"2 keys .* have: layer\.nrom, zeros\n") as caught:
        call(module, strange, X)
    assert "did you mean 'layer.norm'" in str(caught.value)
