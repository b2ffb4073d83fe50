"""`ServerConfig.mesh`: answers of several devices are those of one, newer weights' too."""

import jax
import pytest
from parity_pairs import MODELS

import axcore as ax
from axcore.errors import ShardingError
from axcore.inference import EngineConfig, Request, Sampling
from axcore.inference.placement import Placement
from axcore.modifiers import LoRA
from axcore.plugins import Hardware
from axcore.runs import FromRun, load_run, open_model
from axcore.serving import ServerConfig, WeightsWatch, named_folders, open_adapters, start_engine
from axcore.testing import small_experiment, trainer_on

CPU = Hardware.parse("cpu-1")
SMALL = EngineConfig(
    max_num_seqs=2, max_length=32, max_num_batched_tokens=20, num_decode_steps=1, adapter_rank=4
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run with two checkpoints of which the weights differ much, and one of adapters of it."""
    folder = tmp_path_factory.mktemp("mesh")
    cfg = small_experiment(folder / "texts")
    cfg = ax.update_config(cfg, {"mesh": {"fsdp": 1}, "checkpoint.every_steps": 1, "**.peak": 0.1})
    base, lora = folder / "base", folder / "lora"
    trainer_on(cfg, 1).run(base, quiet=True)
    cfg = FromRun(path=str(base)).apply(cfg, CPU)
    cfg = LoRA(rank=4, alpha=64.0, targets=("**.attention",)).apply(cfg, CPU)
    trainer_on(cfg, 1).run(lora, quiet=True)
    return base, lora


def greedy(engine, adapter=None):
    asked = {"max_tokens": 12, "sampling": Sampling(temperature=0), "adapter": adapter}
    request = Request(prompt=tuple(b"The "), **asked)
    return [token.id for token in engine.submit(request).result(60).tokens]


def answers(runs, mesh):
    """Returns answers at step 1, with the adapter, and at step 2, and where the weights were."""
    opened = open_model(runs[0], step=1)
    adapters = open_adapters(named_folders([f"poems={runs[1]}"]), opened.model.config)
    served = start_engine(opened, ServerConfig(engine=SMALL, mesh=mesh), adapters=adapters)
    with served.engine as engine:
        parts = getattr(engine, "_engines", (engine,))

        def drawn(adapter=None):
            return greedy(engine, adapter)

        first = drawn(), drawn("poems")
        assert WeightsWatch(load_run(runs[0]), served, every_s=1.0).look() == served.step == 2
        found = (*first, drawn(), drawn("poems"))
        assert engine.stats().compilations_after_warm_up == 0
        leaves = jax.tree.leaves([one._programs.weights.value for one in parts])
        return found, set(map(len, (one.sharding.device_set for one in leaves))), len(parts)


@pytest.mark.slow
def test_answers_of_two_devices_and_of_two_replicas_are_those_of_one(runs):
    assert len(jax.local_devices()) > 2
    alone, *used = answers(runs, None)
    assert used == [{1}, 1]
    assert len(set(map(tuple, alone))) == 4
    assert answers(runs, {"model": 2}) == (alone, {2}, 1)
    assert answers(runs, {"data": 2}) == (alone, {1}, 2)


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ({"model": 64}, r"needs 64 devices; there are 16(.|\n)*choose smaller sizes"),
        (
            {"model": 16},
            r"do not divide over the mesh(.|\n)*vocab is 264, model is 16(.|\n)*divides the dim",
        ),
        ({"fsdp": 2}, r"axis 'fsdp', over which an engine splits nothing(.|\n)*'model': N"),
        ({"modle": 2}, r"no mesh axis is named 'modle'(.|\n)*'model'"),
        ({"model": 0}, r"mesh axis model has size 0"),
    ],
)
def test_a_mesh_that_does_not_fit_is_an_error(mesh, message):
    with pytest.raises(ShardingError, match=message):
        Placement.of(MODELS["mistral"]().build(), mesh)


def test_devices_that_are_not_used_are_said():
    model = MODELS["mistral"]().build()
    assert "on 1 of 16 devices; to split them over two: --set" in Placement.of(model, {}).describe()
    found = Placement.of(model, {"model": 2}).describe()
    assert found == "weights are split over 2 of 16 devices"
    found = Placement.of(model, {"data": 2, "model": 2}).describe()
    assert found == "2 replicas, their weights on 4 of 16 devices"
    assert Placement.of(model, {}, jax.devices()[:1]).describe() is None
