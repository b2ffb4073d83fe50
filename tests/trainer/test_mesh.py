"""One device and a mesh of eight give the same training, whichever saved the checkpoint."""

import json
import signal

import jax
import numpy as np
import optax
import pytest

from axcore.config import evolve, replace_config, update_config
from axcore.errors import CheckpointError, ConfigError, ShardingError
from axcore.hardware import MeshRule
from axcore.layers import Pipeline, ScannedLayers
from axcore.modifiers import Accumulate, Int8Training, RematModifier, Zero2
from axcore.plugins import Hardware
from axcore.testing import trainer_on
from axcore.trainer import StepsDone


@pytest.fixture(scope="module")
def eight(small_config):
    cfg = evolve(small_config, mesh={"fsdp": 4, "model": 2}, num_micro_batches=2)
    return trainer_on(cfg, 8)


@pytest.fixture(scope="module")
def whole(small_trainer, tmp_path_factory):
    return small_trainer.run(tmp_path_factory.mktemp("one") / "run")


def assert_close(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=2e-4, atol=2e-5)


def stop_at(step):
    def observer(event):
        if isinstance(event, StepsDone) and event.step == step:
            signal.raise_signal(signal.SIGINT)

    return observer


@pytest.mark.slow
def test_eight_devices_and_two_micro_batches_train_as_one_device(eight, whole, tmp_path):
    result = eight.run(tmp_path)
    assert_close(whole.state, result.state)
    assert result.validation["loss"] == pytest.approx(whole.validation["loss"], rel=1e-5)


@pytest.fixture(scope="module")
def zero2(small_config):
    cfg = evolve(small_config, mesh={"fsdp": 4, "model": 2}, num_micro_batches=2)
    return trainer_on(Zero2().apply(cfg, Hardware.parse("cpu-8")), 8)


@pytest.mark.slow
def test_whole_parameters_with_a_split_optimizer_train_as_one_device(zero2, whole, tmp_path):
    result = zero2.run(tmp_path)
    assert_close(whole.state, result.state)
    assert result.validation["loss"] == pytest.approx(whole.validation["loss"], rel=1e-5)


def test_zero2_splits_the_optimizer_as_fsdp_does_and_parameters_by_the_rest(zero2, eight):
    state, fully = zero2.compiler.abstract_state(), eight.compiler.abstract_state()
    shardings = lambda tree: jax.tree.map(lambda leaf: leaf.sharding.spec, tree)  # noqa: E731
    assert shardings(state.opt_state) == shardings(fully.opt_state)
    assert "fsdp" not in str(shardings(state.model))
    assert "model" in str(shardings(state.model))


@pytest.mark.slow
def test_zero2_gathers_parameters_once_a_step_and_not_in_every_layer(zero2, eight):
    gathers = [
        trainer.compiler.compiled_step.as_text().count(" all-gather(") for trainer in (zero2, eight)
    ]
    assert 0 < gathers[0] < gathers[1]


def test_zero2_is_refused_where_nothing_is_split_over_its_axis(zero2, small_config):
    with pytest.raises(ConfigError, match="no rule splits parameters over 'fsdp'"):
        Zero2().apply(zero2.config, Hardware.parse("cpu-8"))
    wrong = update_config(small_config, {"sharding.optimizer_rules": {"embed": ("fdsp",)}})
    with pytest.raises(ShardingError, match="names the mesh axis 'fdsp'") as error:
        trainer_on(wrong, 1)
    assert error.value.where == "sharding.optimizer_rules"


@pytest.mark.slow
def test_a_pipeline_with_time_split_trains_as_one_device(small_config, whole, tmp_path):
    stack = Pipeline.Config(num_micro_batches=4)
    cfg = evolve(replace_config(small_config, ScannedLayers, stack), mesh={"pipeline": 2, "seq": 2})
    result = trainer_on(cfg, 4).run(tmp_path)
    assert_close(whole.state, result.state)
    assert result.validation["loss"] == pytest.approx(whole.validation["loss"], rel=1e-5)


@pytest.mark.slow
def test_the_optimizer_is_sharded_as_the_parameters_are(eight):
    state = eight.compiler.jitted_init()
    adam = optax.tree.get_all_with_path(state.opt_state, "mu")[0][1]
    specs = jax.tree.map(lambda leaf: leaf.sharding.spec, state.model)
    assert jax.tree.map(lambda leaf: leaf.sharding.spec, adam) == specs
    assert "fsdp" in str(specs["head"]["weight"])
    held = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(adam))
    assert held < sum(leaf.nbytes for leaf in jax.tree.leaves(adam)) / 6


@pytest.mark.parametrize("first_on_one", [True, False])
@pytest.mark.slow
def test_a_checkpoint_of_one_mesh_goes_on_upon_another(
    small_trainer, eight, whole, tmp_path, first_on_one
):
    first, second = (small_trainer, eight) if first_on_one else (eight, small_trainer)
    first.run(tmp_path / "run", [stop_at(2)], returns_when_stopped=True)
    with pytest.warns(UserWarning, match="other software or hardware.*mesh was") as caught:
        result = second.run(tmp_path / "run")
    assert len(caught) == 1
    assert_close(whole.state, result.state)


RULES = (
    MeshRule(match="cpu-1", mesh={"fsdp": 1}, modifiers=(Int8Training(),)),
    MeshRule(match="cpu-2", mesh={"fsdp": 2}),
    MeshRule(match="cpu-4", mesh={"fsdp": 2, "model": 2}, modifiers=(Accumulate(factor=2),)),
    MeshRule(match="cpu-8", mesh={"data": 2, "fsdp": 4}, modifiers=(RematModifier(policy="full"),)),
)


def losses_of(run):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {one["step"]: one["loss"] for one in lines if one["split"] == "train"}


@pytest.mark.slow
def test_a_run_goes_on_on_other_hardware_with_its_own_rule_and_the_same_losses(
    small_config, tmp_path
):
    cfg = evolve(
        small_config,
        mesh=None,
        mesh_rules=RULES,
        logging=evolve(small_config.logging, every_steps=1),
    )
    trainer_on(cfg, 2).run(tmp_path / "whole")
    trainer_on(cfg, 2).run(tmp_path / "run", [stop_at(1)], returns_when_stopped=True)
    with pytest.warns(UserWarning, match="mesh was"):
        trainer_on(cfg, 4).run(tmp_path / "run", [stop_at(2)], returns_when_stopped=True)
    with pytest.warns(UserWarning, match="mesh was"):
        trainer_on(cfg, 8).run(tmp_path / "run")
    assert losses_of(tmp_path / "run") == pytest.approx(losses_of(tmp_path / "whole"), rel=1e-5)


@pytest.mark.slow
def test_hardware_whose_rule_changes_numbers_is_refused_by_name(small_config, tmp_path):
    cfg = evolve(small_config, mesh=None, mesh_rules=RULES)
    trainer_on(cfg, 2).run(tmp_path / "run", [stop_at(1)], returns_when_stopped=True)
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    with pytest.raises(CheckpointError, match="the run of another config") as found:
        trainer_on(cfg, 1).run(tmp_path / "run")
    assert "Int8" in found.value.what
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before


def test_the_state_is_described_as_it_is_made(eight):
    described, made = eight.compiler.abstract_state(), eight.compiler.jitted_init()
    same = jax.tree.map(
        lambda a, b: (
            (a.shape, a.dtype) == (b.shape, b.dtype)
            and a.sharding.is_equivalent_to(b.sharding, b.ndim)
        ),
        described,
        made,
    )
    assert all(jax.tree.leaves(same))


def test_a_batch_is_described_as_it_is_put(eight):
    batch = eight.batch_sharding.device_put(next(eight.data.train()))
    described = eight.batch_sharding.abstract()
    assert set(described) == set(batch)
    for name, array in batch.items():
        wanted = described[name]
        assert (array.shape, array.dtype) == (wanted.shape, wanted.dtype)
        assert array.sharding == wanted.sharding
    assert len({str(shard.index) for shard in batch["tokens"].addressable_shards}) == 4


def test_a_batch_that_does_not_divide_over_the_mesh_is_an_error(toy_config):
    cfg = evolve(toy_config, data=evolve(toy_config.data, batch_size=6))
    with pytest.raises(
        ShardingError, match=r"batch_size is 6, .* over 4 devices \(data 2 x fsdp 2"
    ) as error:
        trainer_on(evolve(cfg, mesh={"data": 2, "fsdp": 2}), 4)
    assert (error.value.where, error.value.hint) == (
        "data.batch_size",
        "--set data.batch_size=8, or use another mesh",
    )


def test_a_parameter_that_does_not_divide_stops_before_the_directory_is_made(
    toy, toy_config, tmp_path
):
    cfg = evolve(toy_config, model=toy.Config(dim=6), mesh={"fsdp": 4})
    with pytest.raises(ShardingError, match="table: embed is 6, fsdp is 4"):
        trainer_on(cfg, 4).run(tmp_path / "run")
    assert not (tmp_path / "run").exists()
