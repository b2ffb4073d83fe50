"""No update is lost in a low-precision parameter: it rounds stochastically, or is float32."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.config import evolve, update_config
from axcore.errors import ConfigError
from axcore.learner import (
    EMA,
    SGD,
    AdamW,
    ConstantSchedule,
    Learner,
    LowPrecisionState,
    ParamGroup,
)
from axcore.models import llama2
from axcore.modifiers import LoRA, QuantizedBase
from axcore.plugins import Hardware
from axcore.tasks import DPO
from axcore.trainer.step import TrainStep

CPU = Hardware.parse("cpu-1")
PAGE = Path(__file__).parents[2] / "docs" / "optimizers.md"
RATE, STEPS = 3e-5, 20
BFLOAT16 = LowPrecisionState.Config(format="bfloat16")


def experiment(param, *changes, optimizer=AdamW.Config()):  # noqa: B008 - frozen
    """Returns a training config whose model stores parameters so, after some modifiers."""
    import axcore as ax

    learner = Learner.Config(optimizer=optimizer, schedule=ConstantSchedule.Config(peak=RATE))
    model = update_config(llama2("toy"), {"**.num_layers": 1, "dtypes.param": param})
    cfg = evolve(ax.experiment("tiny"), model=model, learner=learner)
    for change in changes:
        cfg = change.apply(cfg, CPU)
    return cfg


def step_of(cfg, task=None):
    model = cfg.model.build() if task is None else task.build(model=cfg.model)
    return TrainStep(model, cfg.learner.build(total_steps=STEPS))


def batch():
    tokens = np.random.default_rng(0).integers(0, 256, (4, 17)).astype(np.int32)
    places = np.broadcast_to(np.arange(16, dtype=np.int32), (4, 16))
    arrays = (tokens[:, :-1], tokens[:, 1:], places, np.ones((4, 16), np.float32))
    names = ("tokens", "targets", "positions", "loss_weights")
    return dict(zip(names, map(jnp.asarray, arrays), strict=True))


def trained(cfg):
    """Returns the parameters before and after some steps, by path, and the last loss."""
    step, given = step_of(cfg), batch()
    first = state = jax.jit(step.init)()
    run = jax.jit(step)
    for _ in range(STEPS):
        state, metrics = run(state, given)
    return by_path(first.model), by_path(state.model), float(metrics.losses["cross_entropy"].sum)


def by_path(tree):
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf)
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def share_moved(first, last, name=""):
    moved = [first[path] != last[path] for path in first if name in path]
    return sum(one.sum() for one in moved) / sum(one.size for one in moved)


@pytest.mark.quick_one_in(2)
@pytest.mark.parametrize("param", ["bfloat16", "float16"])
def test_an_optimizer_that_would_lose_updates_refuses_narrow_parameters(param):
    with pytest.raises(ConfigError, match=f"embedding.weight is trained in {param}") as caught:
        trained(experiment(param))
    assert "low_precision_optimizer(format=bfloat16)" in caught.value.hint
    assert caught.value.where == "model.dtypes.param"


def test_narrow_parameters_are_built_and_loaded_with_any_optimizer():
    state = step_of(experiment("bfloat16")).init()
    assert {leaf.dtype.name for leaf in jax.tree.leaves(state.model)} == {"bfloat16"}


@pytest.mark.slow
def test_no_optimizer_rounds_float16():
    with pytest.raises(ConfigError, match="is trained in float16"):
        trained(experiment("float16", optimizer=BFLOAT16))


@pytest.mark.slow
def test_each_group_is_asked_for_its_own_optimizer():
    cfg = experiment("bfloat16", optimizer=BFLOAT16)
    group = ParamGroup(name="norms", params=("**.norm.**",), optimizer=AdamW.Config())
    with pytest.raises(ConfigError, match=r"norm\S* is trained in bfloat16"):
        trained(update_config(cfg, {"learner.groups": (group,)}))


@pytest.mark.slow
def test_bfloat16_parameters_learn_as_float32_ones_do():
    _, _, wanted = trained(experiment("float32"))
    first, last, found = trained(experiment("bfloat16", optimizer=BFLOAT16))
    assert found == pytest.approx(wanted, rel=2e-3)
    difference = lambda path: last[path].astype(np.float32) - first[path].astype(np.float32)  # noqa: E731
    moved = np.mean([np.abs(difference(path)).mean() for path in first])
    assert moved == pytest.approx(RATE * STEPS, rel=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [(LoRA(),), (LoRA(use_dora=True),), (LoRA(), QuantizedBase())])
def test_adapters_of_a_bfloat16_base_all_move(changes):
    _, _, wanted = trained(experiment("float32", *changes))
    first, last, found = trained(experiment("bfloat16", *changes))
    assert share_moved(first, last, "lora_") > 0.99
    assert first["decoder.embedding.weight"].dtype == jnp.bfloat16
    assert found == pytest.approx(wanted, rel=2e-3)


@pytest.mark.slow
def test_weight_decay_alone_moves_bfloat16_in_the_mean():
    optimizer = LowPrecisionState.Config(optimizer=AdamW.Config(weight_decay=0.1)).build()
    specs = step_of(experiment("float32")).specs
    w = jnp.full((256, 256), 0.02, jnp.bfloat16)
    change = optimizer.transformation(lambda step: 1e-3, specs["head"]["weight"])
    with jax.numpy_dtype_promotion("standard"):  # as a learner calls it
        updates, _ = jax.jit(change.update)(jnp.zeros_like(w), change.init(w), w)
    assert float(updates.astype(jnp.float32).mean()) == pytest.approx(-1e-4 * 0.02, rel=0.2)


def test_the_norm_of_bfloat16_gradients_is_no_bfloat16():
    learner = experiment("float32").learner.build(total_steps=STEPS)
    gradients = {"w": jnp.full((1000,), 1.0, jnp.bfloat16)}
    change = SGD.Config().build().transformation(lambda step: RATE, gradients)
    update = learner.update(change, gradients, change.init(gradients), gradients, loss=0.0)
    assert float(update.gradient_norm) == pytest.approx(1000**0.5, rel=1e-6)


def dtypes_of(tree, name=""):
    found = {str(x.dtype) for path, x in by_path_of_shapes(tree) if name in path and x.ndim}
    return ", ".join(sorted(found))


def by_path_of_shapes(tree):
    return [
        (jax.tree_util.keystr(path, simple=True, separator="."), leaf)
        for path, leaf in jax.tree.leaves_with_path(tree)
    ]


def test_the_table_of_dtypes_is_what_a_state_holds():
    ema = {"learner.ema": EMA.Config(decay=0.9)}
    wide, rounded, lora = (
        step_of(update_config(cfg, ema), DPO.Config()).abstract_state()
        for cfg in (
            experiment("float32"),
            experiment("bfloat16", optimizer=BFLOAT16),
            experiment("bfloat16", LoRA()),
        )
    )
    is_adapter = lambda path: "lora_" in path  # noqa: E731
    shapes = by_path_of_shapes(lora.model)
    adapters = ", ".join({str(x.dtype) for path, x in shapes if is_adapter(path)})
    frozen = ", ".join({str(x.dtype) for path, x in shapes if not is_adapter(path)})
    rows = {
        "trained parameters": [dtypes_of(one.model, "head") for one in (wide, rounded)] + ["none"],
        "frozen parameters": ["none", "none", frozen],
        "adapters": ["none", "none", adapters],
        "a task's frozen copy of what is trained": [
            dtypes_of(one.model["reference"]) for one in (wide, rounded, lora)
        ],
        "moments": [dtypes_of(one.opt_state.optimizer) for one in (wide, rounded, lora)],
        "averages": [dtypes_of(one.opt_state.average) for one in (wide, rounded, lora)],
    }
    page = PAGE.read_text(encoding="utf-8")
    for name, cells in rows.items():
        assert f"| {name} | {' | '.join(cells)} |\n" in page
