"""The trainer knows no array by name: it trains a classifier of images as it does a transformer."""

import json
import signal

import jax
import numpy as np
import pytest
from digits import Digits, digits_experiment

import axcore as ax
from axcore.config import evolve
from axcore.errors import ConfigError, DataError, ShardingError
from axcore.models import transformer
from axcore.parallel import ACTIVATION_RULES
from axcore.testing import trainer_on
from axcore.trainer import StepsDone


@pytest.fixture(scope="module")
def trainer():
    return trainer_on(digits_experiment(), 1)


@pytest.fixture(scope="module")
def trained(trainer, tmp_path_factory):
    """The directory and the result of a run that was never stopped."""
    directory = tmp_path_factory.mktemp("digits") / "run"
    return directory, trainer.run(directory, quiet=True)


def lines_of(directory):
    text = (directory / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def losses_of(directory):
    return [(line["step"], line["split"], line["loss"]) for line in lines_of(directory)]


def stop_at(step):
    def stop(event):
        if isinstance(event, StepsDone) and event.step == step:
            signal.raise_signal(signal.SIGTERM)

    return stop


@pytest.mark.slow
def test_it_learns_to_tell_digits_that_it_never_saw_apart(trainer, trained):
    _, held_out = trainer.data.splits()
    images = held_out.batch(range(len(held_out)))["input"]["image"]
    logits, _ = ax.functional(trainer.model, trained[1].state.model, images, method="logits")
    assert np.mean(np.argmax(logits, axis=1) == held_out.labels) > 0.8


@pytest.mark.slow
def test_throughput_counts_what_the_data_says_that_a_batch_has(trained):
    train = [line for line in lines_of(trained[0]) if line["split"] == "train"]
    assert [line["step"] for line in train] == [11, 22, 33, 44, 55, 66]
    for line in train:
        assert line["images_per_s"] == pytest.approx(64 / line["step_time_s"])
        assert "tokens_per_s" not in line


@pytest.mark.slow
def test_validation_weighs_every_image_once(trainer, trained):
    _, held_out = trainer.data.splits()
    images = held_out.batch(range(len(held_out)))
    _, outputs = ax.functional(trainer.model, trained[1].state.model, images)
    assert trained[1].validation["loss"] == pytest.approx(float(outputs.total_loss()), rel=1e-5)
    steps = [line["step"] for line in lines_of(trained[0]) if line["split"] == "validation"]
    assert steps == [22, 44, 66]


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_the_same_bits(trainer, trained, same_bits, tmp_path):
    stopping = {"observers": [stop_at(33)], "quiet": True, "returns_when_stopped": True}
    assert trainer.run(tmp_path / "run", **stopping).step == 33
    resumed = trainer.run(tmp_path / "run", quiet=True)
    assert same_bits(resumed.state, trained[1].state)
    assert losses_of(tmp_path / "run") == losses_of(trained[0])


@pytest.mark.slow
def test_a_run_is_opened_with_the_data_and_the_model_that_it_was_trained_with(trained):
    run = ax.load_run(trained[0])
    assert run.step == 66
    assert type(run.trainer.data) is Digits
    with pytest.raises(ConfigError, match="no text can be generated: Digits has no tokenizer"):
        run.generate("1")


@pytest.mark.slow
def test_images_split_over_rows_and_height_in_micro_batches_train_as_on_one_device(
    trained, tmp_path
):
    cfg = digits_experiment(mesh={"data": 2, "seq": 2}, num_micro_batches=2)
    four = trainer_on(cfg, 4)
    batch = four.batch_sharding.device_put(next(four.data.train()))
    assert batch["input"]["image"].addressable_shards[0].data.shape == (32, 4, 8)
    assert batch["label"].addressable_shards[0].data.shape == (32,)
    four.run(tmp_path / "run", [stop_at(22)], quiet=True, returns_when_stopped=True)
    wanted = [line for line in losses_of(trained[0]) if line[0] <= 22]
    for line, one in zip(losses_of(tmp_path / "run"), wanted, strict=True):
        assert line[:2] == one[:2]
        assert line[2] == pytest.approx(one[2], rel=1e-4)


def test_an_axis_of_the_data_needs_a_rule_and_has_to_divide():
    with pytest.raises(ShardingError, match="no rule for the logical axis 'height'"):
        trainer_on(digits_experiment(**{"sharding.activation_rules": ACTIVATION_RULES}), 1)
    with pytest.raises(ShardingError, match=r"batch_size is 63, .* over 2 devices") as error:
        trainer_on(digits_experiment(data=Digits.Config(batch_size=63), mesh={"data": 2}), 2)
    assert error.value.hint == "--set data.batch_size=64, or use another mesh"


def test_a_language_model_is_not_trained_on_images():
    model = transformer(vocab_size=16, dim=8, num_layers=1, num_heads=1, hidden_dim=8)
    with pytest.raises(ConfigError, match=r"a batch has no tokens, .* it has input, label, weight"):
        trainer_on(digits_experiment(model=model), 1)


def test_a_batch_that_is_not_what_its_data_says_is_an_error(trainer):
    batch = next(trainer.data.train())
    wide = jax.tree.map(lambda array: array.astype(np.float16), batch)
    with pytest.raises(DataError, match=r"float16.* but batch_spec\(\) says .*float32"):
        trainer.batch_sharding.device_put(wide)
    with pytest.raises(DataError, match="but batch_spec"):
        trainer.batch_sharding.device_put({**batch, "extra": batch["label"]})


def test_micro_batches_have_to_divide_the_rows(trainer):
    with pytest.raises(ConfigError, match="64 rows does not divide into 3 micro-batches"):
        trainer_on(evolve(trainer.config, num_micro_batches=3), 1)
