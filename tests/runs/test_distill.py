"""A run that learns from another run: with its tokens, without it later, and as itself alone."""

import shutil

import jax
import numpy as np
import pytest

import axcore as ax
from axcore.data import ByteTokenizer
from axcore.errors import CheckpointError, ConfigError
from axcore.interop import HuggingFace, to_hugging_face
from axcore.plugins import Hardware
from axcore.runs import DistillFrom, load_run
from axcore.runs.distill import check_same_tokens
from axcore.testing import small_experiment, trainer_on

CPU = Hardware.parse("cpu-1")


@pytest.fixture
def cfg(tmp_path):
    cfg = small_experiment(tmp_path / "texts")
    return ax.update_config(cfg, {"mesh": {"fsdp": 1}, "model.dim": 16, "**.num_layers": 1})


def test_a_run_is_a_teacher(cfg, trained):
    task = DistillFrom(teacher=str(trained[0]), beta=0.5).apply(cfg, CPU).task
    assert task.teacher.model == load_run(trained[0]).config.model
    first = trainer_on(ax.evolve(cfg, task=task), 1).first_state().model
    jax.tree.map(np.testing.assert_array_equal, first["teacher"], load_run(trained[0]).state)


def test_a_pretrained_checkpoint_is_a_teacher_in_the_dtype_that_it_is_stored_in(
    cfg, trained, tmp_path
):
    run = load_run(trained[0])
    to_hugging_face(tmp_path / "hf", run.config.model, run.state, dtype="bfloat16")
    teacher = DistillFrom(teacher=str(tmp_path / "hf")).apply(cfg, CPU).task.teacher
    assert isinstance(teacher.init_from, HuggingFace.Config)
    assert teacher.model.dtypes.param == "bfloat16"


@pytest.mark.slow
def test_a_run_that_resumes_needs_no_teacher_and_is_served_alone(cfg, trained, tmp_path):
    shutil.copytree(trained[0], tmp_path / "teacher")
    cfg = DistillFrom(teacher=str(tmp_path / "teacher")).apply(cfg, CPU)
    cfg = ax.update_config(cfg, {"max_steps": 4, "checkpoint.every_steps": 2})
    trainer_on(cfg, 1).run(tmp_path / "whole", quiet=True)
    trainer_on(cfg, 1).run(tmp_path / "halves", quiet=True)
    shutil.rmtree(tmp_path / "teacher")
    trainer_on(cfg, 1).run(tmp_path / "halves", quiet=True, from_step=2)
    whole, halves = (load_run(tmp_path / name) for name in ("whole", "halves"))
    jax.tree.map(np.testing.assert_array_equal, whole.state, halves.state)
    assert "teacher" not in whole.state
    assert whole.generate("a", max_tokens=2).num_tokens <= 2
    losses = whole.metrics["train"]
    assert losses["loss"][-1] < losses["loss"][0]


def test_a_teacher_with_other_tokens_is_refused():
    class Shifted(ByteTokenizer):
        @ax.config
        class Config(ByteTokenizer.Config):
            pass

        def token_bytes(self, token):
            return super().token_bytes(token + 1)

    with pytest.raises(ConfigError, match=r"as token \d+; expected the same tokens"):
        check_same_tokens(ByteTokenizer.Config(), Shifted.Config(), where="teacher")


def test_a_teacher_that_is_none_is_named(cfg, tmp_path):
    with pytest.raises(CheckpointError, match="neither a run nor a pretrained checkpoint"):
        DistillFrom(teacher=str(tmp_path)).apply(cfg, CPU)


def test_a_task_that_is_there_is_not_lost(cfg, trained):
    modifier = DistillFrom(teacher=str(trained[0]))
    with pytest.raises(ConfigError, match=r"has the task Distill.Config already"):
        modifier.apply(modifier.apply(cfg, CPU), CPU)
