"""The loss of each source of a mixture is that of its own rows, however a batch is computed."""

import json
import signal

import jax
import numpy as np
import pytest

from axcore.checkpoint import Checkpointer
from axcore.config import evolve
from axcore.data import FileStream, Mixture, NewWeights, StreamData, TextFiles
from axcore.errors import CheckpointError, DataError
from axcore.learner import DiLoCo, Learner, WarmupCosine
from axcore.models import transformer
from axcore.module import Loss, LossGroups
from axcore.testing import trainer_on
from axcore.trainer import StepsDone
from axcore.trainer.callbacks.metrics import group_metrics
from axcore.trainer.step import TrainStep

GROUPS = LossGroups(array="source_ids", names=("a", "b", "c", "none"))
LEARNER = Learner.Config()


def batch_of_groups():
    """Eight rows of three sources with very different weights, and a fourth without rows."""
    draw = np.random.default_rng(0)
    tokens, targets = draw.integers(3, 260, (2, 8, 16)).astype(np.int32)
    weights = draw.uniform(0.5, 2, (8, 16)) * (draw.random((8, 16)) < 0.6)
    return {
        "tokens": tokens,
        "targets": targets,
        "positions": np.tile(np.arange(16, dtype=np.int32), (8, 1)),
        "segment_ids": np.ones((8, 16), np.int32),
        "loss_weights": weights.astype(np.float32),
        "source_ids": np.array([0, 2, 2, 1, 0, 2, 2, 2], np.int32),
    }


def step_of(model, count, groups, learner=LEARNER):
    learner = evolve(learner, schedule=WarmupCosine.Config(warmup_steps=1)).build(total_steps=9)
    return TrainStep(model.build(), learner, num_micro_batches=count, loss_groups=groups)


@pytest.fixture(scope="module")
def small_model():
    return transformer(
        vocab_size=264, dim=32, num_layers=1, num_heads=2, num_kv_heads=2, hidden_dim=64
    )


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("toy", 1),
        ("toy", 8),
        pytest.param("transformer", 2, marks=pytest.mark.slow),
    ],
)
def test_a_group_has_the_loss_of_its_rows_alone(toy, small_model, name, count):
    model = toy.Config(dropout=0.0) if name == "toy" else small_model
    batch = batch_of_groups()
    step = step_of(model, count, GROUPS)
    state = jax.jit(step.init)()
    _, metrics = jax.jit(step)(state, batch)
    found = metrics.group_losses
    evaluate = jax.jit(step.evaluate)
    for group in range(3):
        is_own = (batch["source_ids"] == group)[:, None]
        own = {**batch, "loss_weights": batch["loss_weights"] * is_own}
        alone = evaluate(state.model, own)[0]["cross_entropy"]
        np.testing.assert_allclose(found.sum[group], alone.sum, rtol=1e-5)
        np.testing.assert_allclose(found.weight[group], alone.weight, rtol=1e-6)
    assert found.sum[3] == found.weight[3] == 0
    whole = metrics.losses["cross_entropy"]
    np.testing.assert_allclose(found.sum.sum(), whole.sum, rtol=1e-5)
    assert "none" not in str(group_metrics(GROUPS, [jax.device_get(found)] * 2))


def test_a_step_with_groups_changes_no_bit_of_the_state(toy, same_bits):
    batch = batch_of_groups()
    states = []
    for groups in (None, GROUPS):
        step = step_of(toy.Config(dropout=0.0), 2, groups)
        given = batch if groups else {k: v for k, v in batch.items() if k != "source_ids"}
        states.append(jax.jit(step)(jax.jit(step.init)(), given)[0])
    assert same_bits(*states)


def test_slices_that_train_on_their_own_have_the_same_losses_by_group(toy):
    batch, model = batch_of_groups(), toy.Config(dropout=0.0)
    wanted, found = (
        jax.jit(step)(jax.jit(step.init)(), batch)[1].group_losses
        for step in (
            step_of(model, 1, GROUPS),
            step_of(model, 1, GROUPS, DiLoCo.Config(num_groups=2)),
        )
    )
    np.testing.assert_allclose(found.sum, wanted.sum, rtol=1e-5)
    np.testing.assert_allclose(found.weight, wanted.weight, rtol=1e-6)


def test_steps_of_unequal_weight_average_by_weight():
    losses = [
        Loss(np.float32([6, 1]), np.float32([2, 1])),
        Loss(np.float32([2, 0]), np.float32([2, 0])),
    ]
    groups = LossGroups(array="source_ids", names=("a", "b"))
    found = group_metrics(groups, losses)
    assert found == {"loss_by_source/a": 2.0, "loss_by_source/b": 1.0}
    assert group_metrics(None, [None, None]) == {}


@pytest.fixture(scope="module")
def mixed_config(toy_config, text_folder, tmp_path_factory):
    """The toy, on two folders, one of them with a single letter."""
    folder = tmp_path_factory.mktemp("letters")
    for i in range(8):
        (folder / f"{i}.txt").write_text("z" * (200 + i))
    source = Mixture.Config(
        sources={
            "texts": TextFiles.Config(folder=str(text_folder)),
            "letters": TextFiles.Config(folder=str(folder)),
        },
        weights={"texts": 0.75, "letters": 0.25},
    )
    return evolve(
        toy_config,
        data=evolve(toy_config.data, source=source, validation_fraction=0.2),
        learner=Learner.Config(schedule=WarmupCosine.Config(peak=0.05, warmup_steps=1)),
        max_steps=6,
        eval_every_steps=6,
        checkpoint=Checkpointer.Config(every_steps=3, keep=None),
    )


def losses_in(directory):
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["split"] == "train"]


@pytest.mark.slow
def test_a_run_reports_the_loss_of_each_source_alike_on_any_mesh(mixed_config, tmp_path):
    for devices in (1, 4):
        trainer_on(mixed_config, devices).run(tmp_path / str(devices))
    one, four = losses_in(tmp_path / "1"), losses_in(tmp_path / "4")
    for ours, theirs in zip(one, four, strict=True):
        for name in ("loss_by_source/texts", "loss_by_source/letters"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4)
    assert one[-1]["loss_by_source/letters"] < one[-1]["loss_by_source/texts"]


@pytest.mark.slow
def test_a_run_resumes_under_a_declared_change_and_refuses_another(mixed_config, tmp_path):
    def run(steps, **changes):
        source = evolve(mixed_config.data.source, **changes)
        data = evolve(mixed_config.data, source=source)
        cfg = evolve(mixed_config, data=data, max_steps=steps)
        return trainer_on(cfg, 1).run(tmp_path / "run")

    assert run(3).is_complete
    with pytest.raises(CheckpointError, match=r"\+ data\.source\.weights: {'letters': 1.0"):
        run(6, weights={"texts": 0.75, "letters": 1})
    with pytest.raises(DataError, match=r"belongs to other training data: mixture was .* is \[\[0"):
        run(6, changes=(NewWeights(from_step=2, weights={"letters": 1}),))
    assert run(6, changes=(NewWeights(from_step=3, weights={"letters": 1}),)).is_complete
    assert "loss_by_source/texts" not in losses_in(tmp_path / "run")[-1]


@pytest.mark.slow
def test_a_run_over_a_stream_resumes_to_the_same_bits(toy_config, one_device, same_bits, tmp_path):
    stream = FileStream.Config(source=toy_config.data.source)
    data = StreamData.Config(stream=stream, seq_len=16, batch_size=8, validation_fraction=0.1)
    trainer = one_device(evolve(toy_config, data=evolve(data, validation_batches=2)))

    def stop(event):
        if isinstance(event, StepsDone) and event.step == 7:
            signal.raise_signal(signal.SIGINT)

    whole = trainer.run(tmp_path / "whole")
    assert trainer.run(tmp_path / "run", [stop], returns_when_stopped=True).step == 7
    resumed = trainer.run(tmp_path / "run")
    assert (resumed.step, resumed.is_complete) == (12, True)
    assert same_bits(resumed.state, whole.state)
    assert resumed.validation == whole.validation
