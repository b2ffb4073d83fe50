"""`grpo`: a transformer that learns to reverse strings from rewards alone."""

from axcore.checkpoint import Checkpointer
from axcore.config import evolve, update_config
from axcore.experiments.tiny import tiny
from axcore.inference import EngineConfig
from axcore.learner import AdamW, Learner, WarmupCosine
from axcore.rewards import ExactMatch, MatchingCharacters
from axcore.rollouts.prompts import ReversedStrings
from axcore.rollouts.rollouts import Rollouts
from axcore.tasks import GRPO
from axcore.trainer import Trainer


def grpo() -> Trainer.Config:
    """Return the config.

    It begins with random weights, so the share of right characters is the reward; that the whole
    answer is right is measured. For a model that knows more, `init_from`, `data.prompts` and
    `data.rewards` are what to set.
    """
    base = tiny()
    data = Rollouts.Config(
        prompts=ReversedStrings.Config(
            min_length=1, max_length=3, alphabet="abcdef", num_prompts=200
        ),
        rewards={
            "characters": MatchingCharacters.Config(),
            "exact": ExactMatch.Config(weight=0.0),
        },
        batch_size=256,
        group_size=16,
        max_new_tokens=4,
        seq_len=16,
        engine=EngineConfig(
            max_num_seqs=256, num_decode_steps=4, sampler_kinds=("greedy", "plain")
        ),
        validation_fraction=0.2,
    )
    learner = Learner.Config(
        optimizer=AdamW.Config(),
        schedule=WarmupCosine.Config(peak=1e-3, warmup_steps=0.05),
    )
    model = update_config(
        base.model, {"dim": 64, "**.num_layers": 2, "**.hidden_dim": 192, "decoder.stack.unroll": 2}
    )
    return evolve(
        base,
        model=model,
        task=GRPO.Config(entropy_bonus=0.03),
        data=data,
        learner=learner,
        max_steps=500,
        eval_every_steps=100,
        checkpoint=Checkpointer.Config(every_steps=100),
        prompt="",
    )
