"""Runs that train a model further: the base decides what the config leaves open."""

import json
import math
import re

import jax
import numpy as np
import pytest
from click.testing import CliRunner

import axcore as ax
from axcore.cli.evaluate import evaluate
from axcore.cli.watch import watch
from axcore.config import find_config
from axcore.errors import CheckpointError, ConfigError
from axcore.experiments.named import load_experiment, load_resolved
from axcore.inference import Engine, EngineConfig
from axcore.interop import HuggingFace
from axcore.layers import LoRALinear
from axcore.plugins import Hardware
from axcore.runs import BaseModel, RunWeights, export_run, load_run
from axcore.runs.base_model import sft
from axcore.serving import Limits, ServedModel, WeightsWatch
from axcore.testing import trainer_on
from axcore.trainer import with_base_model

CPU = Hardware.parse("cpu-1")


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    talks = (
        [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": "x" * n}]
        for n in range(1, 40)
    )
    path.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    return path


def overrides(base, chats):
    return [f"init_from.path={base}", f"data.source.path={chats}", "learner.schedule.peak=0.003"]


@pytest.mark.slow
def test_the_base_brings_model_tokenizer_and_length(trained, chats, tmp_path):
    run = load_run(trained[0])
    cfg = load_experiment("sft", overrides(trained[0], chats))
    assert cfg.model == run.config.model
    assert cfg.data.tokenizer == run.config.data.tokenizer
    assert cfg.data.seq_len == run.config.data.seq_len
    assert isinstance(cfg.init_from, RunWeights.Config)
    assert with_base_model(cfg) == cfg, "a config that is resolved does not change again"


def test_a_change_of_the_model_is_one_of_the_base(trained, chats):
    resolved = load_resolved(
        "sft", overrides(trained[0], chats), changes=("lora(rank=2)",), hardware=CPU
    )
    assert find_config(resolved.config, LoRALinear)
    origins = {one.origin for one in resolved.changes if one.change.path.startswith("init_from")}
    assert "init_from" in origins


@pytest.mark.slow
def test_a_run_on_conversations_begins_with_the_weights_of_its_base(trained, chats, tmp_path):
    cfg = load_experiment("sft", [*overrides(trained[0], chats), "max_steps=21", "data.seq_len=64"])
    cfg = ax.evolve(cfg, mesh={"fsdp": 1})
    trainer = trainer_on(cfg, 1)
    first = trainer.first_state().model
    jax.tree.map(np.testing.assert_array_equal, first, load_run(trained[0]).state)
    result = trainer.run(tmp_path / "run", quiet=True)
    losses = load_run(tmp_path / "run").metrics["train"]["loss"]
    assert losses[-1] < losses[0] - 0.5
    assert result.validation["loss"] < losses[0]


def test_a_published_model_is_a_base_too(trained, chats, tmp_path):
    export_run(load_run(trained[0]), tmp_path / "published")
    cfg = with_base_model(
        ax.evolve(sft(), init_from=BaseModel.Config(path=str(tmp_path / "published")))
    )
    assert isinstance(cfg.init_from, HuggingFace.Config)
    assert cfg.model.dtypes.param == "float32"
    assert cfg.data.seq_len == load_run(trained[0]).config.data.seq_len
    wanted = jax.eval_shape(lambda: cfg.model.build().init(0))
    found = cfg.init_from.build().plan(cfg.model).read(wanted)
    theirs = load_run(trained[0]).state
    of_head = [one["head"]["weight"] for one in (found, theirs)]
    np.testing.assert_array_equal(*of_head)


def test_a_model_that_was_changed_too_early_is_not_lost_in_silence(trained):
    cfg = ax.update_config(sft(), {"model.dim": 64})
    cfg = ax.evolve(cfg, init_from=BaseModel.Config(path=str(trained[0])))
    with pytest.raises(ConfigError, match="was changed before its base was known"):
        with_base_model(cfg)


def test_a_base_that_is_none_is_named(tmp_path, chats):
    with pytest.raises(CheckpointError, match="neither a run nor a pretrained checkpoint"):
        load_experiment("sft", overrides(tmp_path, chats))


def test_a_base_that_nobody_named_is_asked_for_before_anything_is_written(chats, tmp_path):
    cfg = ax.update_config(sft(), {"data.source.path": str(chats), "mesh": {"fsdp": 1}})
    with pytest.raises(ConfigError, match=r"BaseModel.Config lacks 1 required field:\n  path"):
        trainer_on(cfg, 1).run(tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    lines = ({"prompt": f"{n}?", "chosen": "xx", "rejected": "yy"} for n in range(40))
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


@pytest.mark.slow
def test_dpo_raises_the_margin_resumes_and_leaves_an_ordinary_model(trained, pairs, tmp_path):
    settings = [*overrides(trained[0], pairs), "data.seq_len=32", "data.batch_size=16"]
    cfg = ax.evolve(
        load_experiment("dpo", [*settings, "**.warmup_steps=1", "logging.every_steps=1"]),
        mesh={"fsdp": 1},
    )
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    trainer_on(ax.evolve(cfg, max_steps=4), 1).run(whole, quiet=True)
    stopping = ax.update_config(cfg, {"max_steps": 4, "checkpoint.every_steps": 2})
    trainer_on(stopping, 1).run(halves, quiet=True)
    trainer_on(stopping, 1).run(halves, quiet=True, from_step=2)
    first, second = load_run(whole), load_run(halves)
    margins = first.metrics["train"]["reward_margin"]
    assert margins[0] == 0.0 < margins[-1]
    accuracy = first.evaluate()["reward_accuracy"]
    assert accuracy > 0.5
    printed = CliRunner().invoke(evaluate, [str(whole)], catch_exceptions=False).output
    assert re.fullmatch(
        rf"step 4: validation loss 0\.\d{{4}} a pair\n"
        rf"  reward_accuracy {accuracy:.4f} of pairs\n  reward_margin \d\.\d{{4}}\n",
        printed,
    )
    starts = [json.loads(one) for one in (whole / "run_history.jsonl").read_text().splitlines()]
    assert starts[0]["units"] == {"loss": "a pair", "reward_accuracy": "of pairs"}
    watched = CliRunner().invoke(watch, [str(whole)], catch_exceptions=False).output
    assert f"reward_accuracy {accuracy:.4f} of pairs" in watched
    jax.tree.map(np.testing.assert_array_equal, first.state, second.state)
    assert first.state.keys() == load_run(trained[0]).state.keys()
    assert first.generate("<user>\n1?\n", max_tokens=2).num_tokens <= 2
    tokenizer = first.trainer.data.tokenizer
    few = EngineConfig(max_num_seqs=1, max_length=32, max_num_batched_tokens=16)
    with Engine(first.trainer.model, first.state, tokenizer, few) as engine:
        served = ServedModel(
            name="a", engine=engine, tokenizer=tokenizer, max_length=32, limits=Limits(), step=2
        )
        assert WeightsWatch(first, served, every_s=1.0).look() == served.step == 4
    export_run(first, tmp_path / "published")
    further = load_experiment("sft", overrides(whole, pairs))
    assert further.task is None
    found = (
        further.init_from.build()
        .plan(further.model)
        .read(jax.eval_shape(lambda: further.model.build().init(0)))
    )
    jax.tree.map(np.testing.assert_array_equal, found, first.state)


@pytest.mark.slow
def test_adapters_learn_preferences_alike_on_one_device_and_on_four(trained, pairs, tmp_path):
    settings = [
        *overrides(trained[0], pairs),
        *("data.seq_len=32", "data.batch_size=8", "max_steps=3", "logging.every_steps=1"),
        *("**.warmup_steps=1", "data.validation_batches=1"),
    ]
    losses = []
    for mesh in ({"data": 1}, {"data": 2, "model": 2}):
        cfg = load_resolved(
            "dpo", [*settings, f"mesh={mesh}"], changes=["lora(rank=2)"], hardware=CPU
        ).config
        count = math.prod(mesh.values())
        run = tmp_path / f"on_{count}"
        trainer_on(cfg, count).run(run, quiet=True)
        losses.append(load_run(run).metrics["train"]["loss"])
        kept = trainer_on(cfg, count).compiler.abstract_state().model["reference"]
        assert all(
            "lora_" in jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(kept)
        )
    assert losses[0][0] == pytest.approx(np.log(2), rel=1e-5)
    assert losses[0][-1] < losses[0][0]
    np.testing.assert_allclose(*losses, rtol=1e-4)
