"""`grpo`: a transformer that learns to reverse strings from rewards alone."""

from axcore.checkpoint import Checkpointer
from axcore.config import evolve, update_config
from axcore.experiments.tiny import tiny
from axcore.inference import EngineConfig
from axcore.learner import AdamW, Learner, WarmupCosine
from axcore.rollouts.prompts import ReversedStrings
from axcore.rollouts.rewards import ExactMatch, MatchingCharacters, WeightedReward
from axcore.rollouts.rollouts import Rollouts
from axcore.tasks import GRPO
from axcore.trainer import Trainer


def grpo() -> Trainer.Config:
    """Return the config.

    It begins with random weights, to which a right answer never happens: so right characters are
    rewarded, too. For a model that knows more, set `init_from`, `data.prompts` and `data.rewards`.
    """
    base = tiny()
    data = Rollouts.Config(
        prompts=ReversedStrings.Config(
            min_length=3, max_length=3, alphabet="abcdefghij", num_prompts=1000
        ),
        rewards={
            "characters": WeightedReward(reward=MatchingCharacters.Config()),
            "exact": WeightedReward(reward=ExactMatch.Config()),
        },
        batch_size=512,
        group_size=16,
        max_new_tokens=4,
        seq_len=8,
        engine=EngineConfig(
            max_num_seqs=512, num_decode_steps=4, sampler_kinds=("greedy", "plain")
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
        task=GRPO.Config(entropy_bonus=0.1),
        data=data,
        learner=learner,
        max_steps=400,
        eval_every_steps=100,
        checkpoint=Checkpointer.Config(every_steps=100),
        prompt="",
    )
