"""A student that samples for itself comes near to its teacher."""

import pytest

from axcore.config import update_config
from axcore.errors import ConfigError
from axcore.modifiers import with_changes
from axcore.plugins import Hardware
from axcore.rollouts.experiments import grpo_reverse
from axcore.runs import load_run
from axcore.tasks import OnPolicyDistill
from axcore.testing import small_experiment, trainer_on

CPU = Hardware.parse("cpu-1")


def distilled(cfg, teacher):
    return with_changes(cfg, [f"on_policy_distill(teacher={teacher})"], CPU)


@pytest.mark.slow
def test_the_divergence_from_the_teacher_falls(tmp_path):
    texts = small_experiment(tmp_path / "texts")
    changes = {"max_steps": 80, "eval_every_steps": 80, "learner.schedule.peak": 1e-2}
    trainer_on(update_config(texts, changes), 1).run(tmp_path / "teacher", quiet=True)
    cfg = update_config(
        grpo_reverse(),
        {
            "model": update_config(texts.model, {"dim": 16}),
            "data.batch_size": 64,
            "data.group_size": 1,
            "data.epochs_per_rollout": 1,
            "data.max_new_tokens": 8,
            "data.seq_len": 12,
            "data.engine.max_num_seqs": 64,
            "data.engine.num_decode_steps": 8,
            "data.rewards": {},
            "learner.schedule.peak": 1e-2,
            "max_steps": 60,
            "logging.every_steps": 1,
            "eval_every_steps": 60,
            "checkpoint.every_steps": 60,
        },
    )
    cfg = distilled(cfg, tmp_path / "teacher")
    assert isinstance(cfg.task, OnPolicyDistill.Config)
    trainer_on(cfg, 1).run(tmp_path / "student", quiet=True)
    found = load_run(tmp_path / "student").metrics["train"]["reverse_kl"]
    assert sum(found[-5:]) < 0.6 * sum(found[:5])


def test_a_run_without_rollouts_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="only rollouts have tokens that the model sampled") as e:
        distilled(small_experiment(tmp_path), "runs/teacher")
    assert "distill(teacher=DIR)" in e.value.hint
