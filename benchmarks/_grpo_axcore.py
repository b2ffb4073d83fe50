"""`grpo.py`: steps of axcore's GRPO, and what their time goes to."""

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import jax
from _grpo_load import SIZES, arguments, prompts, rewards

from axcore.checkpoint import Checkpointer
from axcore.cli.main import collect_seldom
from axcore.config import config, evolve, replace_config, update_config
from axcore.inference import Engine, EngineConfig
from axcore.layers import ScannedLayers, Stack
from axcore.learner import AdamW, ConstantSchedule, Learner
from axcore.models import transformer
from axcore.rewards import Reward
from axcore.rollouts import PromptFiles, Rollouts
from axcore.rollouts.experiments import grpo_reverse
from axcore.testing.tiny import trainer_on

collect_seldom()  # as `axcore train` does
asked = arguments()
spent: dict[str, float] = defaultdict(float)


def timed(owner: Any, name: str, part: str) -> None:
    """Add the time of a method's calls to a part, once their arguments are computed."""
    method: Callable[..., Any] = getattr(owner, name)

    @wraps(method)
    def measured(*args: Any, **kwargs: Any) -> Any:
        # A train step returns before it is done: the rest of it is not the method's time.
        jax.block_until_ready(args[1:])
        since = time.perf_counter()
        try:
            return method(*args, **kwargs)
        finally:
            spent[part] += time.perf_counter() - since

    setattr(owner, name, measured)


class Letters(Reward):
    """The share of a letter."""

    @config
    class Config(Reward.Config):
        """Describes it."""

    def score(self, prompt: str, completion: str, fields: Mapping[str, Any]) -> float:
        return rewards([completion])[0]


model = update_config(transformer(**SIZES), {"decoder.stack.unroll": SIZES["num_layers"]})
if asked["is_shared"]:
    # The engine reads the arrays of each layer: those of a scan it has to copy.
    model = replace_config(model, ScannedLayers, Stack.Config())
num_steps = asked["warm_up"] + asked["steps"]
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "prompts.jsonl"
    texts = prompts(asked["rows"] // asked["group"] * num_steps, asked["prompt"])
    path.write_text("".join(json.dumps({"prompt": one}) + "\n" for one in texts))
    data = Rollouts.Config(
        prompts=PromptFiles.Config(path=str(path)),
        rewards={"letters": Letters.Config()},
        batch_size=asked["rows"],
        group_size=asked["group"],
        max_new_tokens=asked["completion"],
        seq_len=asked["prompt"] + asked["completion"],
        engine=EngineConfig(
            max_num_seqs=asked["rows"], num_decode_steps=16, sampler_kinds=("plain",)
        ),
        validation_fraction=0.0,
    )
    base = grpo_reverse()
    cfg = evolve(
        base,
        model=model,
        task=update_config(base.task, {"entropy_bonus": 0.0}),
        data=data,
        learner=Learner.Config(
            optimizer=AdamW.Config(), schedule=ConstantSchedule.Config(peak=1e-4)
        ),
        max_steps=num_steps,
        logging=evolve(base.logging, every_steps=1),
        eval_every_steps=num_steps,
        checkpoint=Checkpointer.Config(every_steps=num_steps),
    )
    timed(Engine, "replace_weights", "sync_s")
    trainer = trainer_on(cfg, 1)
    trainer.run(Path(folder) / "run")
    lines = [json.loads(one) for one in (Path(folder) / "run/metrics.jsonl").open()]
    steps = [one for one in lines if one["split"] == "train"][asked["warm_up"] :]
print(
    "RESULT "
    + json.dumps(
        {
            "step_s": [one["step_time_s"] for one in steps],
            "rollout_s": [one["data_wait_s"] for one in steps],
            "sync_s": spent["sync_s"] / (num_steps - 1),
            "completion_tokens": steps[-1]["completion_tokens"],
        }
    )
)
