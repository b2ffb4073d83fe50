"""`grpo` trains a base further by rewards; `grpo-reverse` needs no base, and takes minutes.

axcore train grpo --set init_from.path=DIR --set data.prompts.path=prompts.jsonl
"""

from axcore.checkpoint import Checkpointer
from axcore.config import evolve, update_config
from axcore.experiments.tiny import tiny
from axcore.inference import EngineConfig
from axcore.learner import AdamW, Learner, WarmupCosine
from axcore.rewards import ExactMatch, MatchingCharacters
from axcore.rollouts.prompts import PromptFiles, ReversedStrings
from axcore.rollouts.rollouts import Rollouts
from axcore.rollouts.samples import RolloutSamples
from axcore.runs.base_model import further_training
from axcore.tasks import GRPO
from axcore.trainer import Trainer


def grpo() -> Trainer.Config:
    """Return the config of training on rewards; the base brings model and tokenizer.

    A completion is worth 1 where it is the field `answer` of its prompt. `--modify dapo` names
    another objective.
    """
    data = Rollouts.Config(
        prompts=PromptFiles.Config(),
        rewards={"exact": ExactMatch.Config()},
        batch_size=64,
        group_size=8,
        max_new_tokens=64,
        seq_len=128,
    )
    cfg = further_training(data, peak=1e-6)
    return evolve(cfg, task=GRPO.Config(), guards=(RolloutSamples.Config(),))


def grpo_reverse() -> Trainer.Config:
    """Return the config of a small transformer that learns to reverse strings from rewards alone.

    It begins with random weights, to which a right answer never happens: so right characters are
    rewarded, too.
    """
    base = tiny()
    data = Rollouts.Config(
        prompts=ReversedStrings.Config(
            min_length=3, max_length=3, alphabet="abcdefghij", num_prompts=1000
        ),
        rewards={
            "characters": MatchingCharacters.Config(),
            "exact": ExactMatch.Config(),
        },
        batch_size=512,
        # Many prompts rather than many completions: rewards of a few characters differ soon.
        group_size=8,
        # Sampling takes ten times as long as a step here.
        epochs_per_rollout=4,
        max_new_tokens=4,
        seq_len=8,
        engine=EngineConfig(
            max_num_seqs=512, num_decode_steps=4, sampler_kinds=("greedy", "plain")
        ),
        validation_fraction=0.2,
    )
    learner = Learner.Config(
        optimizer=AdamW.Config(),
        schedule=WarmupCosine.Config(peak=1.5e-3, warmup_steps=0.05),
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
        max_steps=1400,
        eval_every_steps=200,
        checkpoint=Checkpointer.Config(every_steps=200),
        guards=(RolloutSamples.Config(),),
        prompt="",
    )
