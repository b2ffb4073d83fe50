"""The features of learning from rewards that the meter measures, as `axcore.complexity.features`.

Each function is all that somebody writes to train any model so: the data included, which an
experiment like `grpo` has already.
"""

from typing import Any

from axcore.complexity.trace import Trace
from axcore.config import evolve
from axcore.rewards import ExactMatch, RegexMatch
from axcore.rollouts.rollouts import Rollouts
from axcore.tasks import GRPO, GSPO


def with_gspo(cfg: Any) -> Any:
    """Group sequence policy optimization by exact answers."""
    rewards = {"exact": ExactMatch.Config()}
    data = Rollouts.Config(rewards=rewards, batch_size=8, max_new_tokens=8, seq_len=16)
    return evolve(cfg, task=GSPO.Config(), data=data)


def with_reward(cfg: Any) -> Any:
    """GRPO by a reward for a format."""
    rewards = {"date": RegexMatch.Config(pattern=r"\d{4}-\d\d")}
    data = Rollouts.Config(rewards=rewards, batch_size=8, max_new_tokens=8, seq_len=16)
    return evolve(cfg, task=GRPO.Config(), data=data)


def has_gspo(trace: Trace) -> str | None:
    """Return None where the loss is by rewards, with a ratio of each completion."""
    if not isinstance(trace.task, GSPO):
        return f"the task is {type(trace.task).__qualname__}"
    if trace.task.config.clip.level != "sequence":
        return "each token has a ratio of its own"
    return _why_not_by_rewards(trace)


def has_reward(trace: Trace) -> str | None:
    """Return None where the loss is by rewards, and one of the format is measured."""
    return _why_not_by_rewards(trace) or (
        None if "reward.date" in trace.batch else "no batch has the reward `date`"
    )


def _why_not_by_rewards(trace: Trace) -> str | None:
    """Return None where the loss depends on what completions are worth, and on the model."""
    wanted = {"tokens", "targets", "loss_weights", "rewards", "group_mean"}
    if missing := sorted(wanted - trace.inputs):
        return f"the loss does not depend on {', '.join(missing)} of a batch"
    return None
