"""`Rollout`: a completion with what was known when it was sampled; and batches of them.

Letters: B rows, T tokens of a row.
"""

import base64
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from axcore.data.packing.packing import Batch
from axcore.tasks.policy_gradient import FAILED_PREFIX, REWARD_PREFIX, TokenArray
from axcore.tasks.policy_losses import group_statistics


def _same_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return what is equal where arrays are."""
    return {name: (one.dtype.str, one.shape, one.tobytes()) for name, one in arrays.items()}


ENVIRONMENT = "environment"
"""What failures of the environment go by, next to those of rewards."""


@attrs.frozen(kw_only=True)
class Rollout:
    """A sampled completion.

    Args:
        prompt: The prompt's tokens.
        tokens: The tokens behind it: what was sampled, end tokens included, and what an environment
            replied.
        log_probs: Theirs, by the sampler; 0 for replies.
        is_ended: Whether the policy ended its last turn.
        rewards: What it is worth by each reward; nan where a reward failed.
        reward: Their weighted sum; nan where one is that weighs something.
        group: Which prompt of the run it answers, from 0.
        sample: Which of the answers to it, from 0.
        weight_version: Steps that made the weights which sampled it.
        recorded: What the task recorded with these weights at each token but the last, of prompt
            and completion, `[tokens, ...]` by name; empty where nothing needs it.
        replies: Where replies of the environment begin and end in `tokens`.
        environment_failed: Whether the environment failed, so that it has no reward.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    is_ended: bool
    rewards: Mapping[str, float]
    reward: float
    group: int
    sample: int
    weight_version: int
    recorded: Mapping[str, np.ndarray] = attrs.field(factory=dict, eq=_same_arrays)
    replies: tuple[tuple[int, int], ...] = ()
    environment_failed: bool = False

    @property
    def is_sampled(self) -> np.ndarray:
        """Which of the tokens the policy sampled, `[tokens]`."""
        found = np.ones(len(self.tokens), bool)
        for begin, end in self.replies:
            found[begin:end] = False
        return found

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        packed = {name: _packed(getattr(self, name), kind) for name, kind in _PACKED.items()}
        # JSON has no nan: a reward that failed is null.
        rewards = {name: _finite(value) for name, value in self.rewards.items()}
        rest: dict[str, Any] = {"rewards": rewards, "reward": _finite(self.reward)}
        rest |= {"replies": [list(one) for one in self.replies]}
        recorded = {name: _packed_array(array) for name, array in self.recorded.items()}
        return {**attrs.asdict(self, recurse=False), **packed, **rest, "recorded": recorded}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Rollout":
        """Return the rollout that was written.

        Raises:
            TypeError: It is not one.
            KeyError: It is not one.
        """
        arrays = {name: _unpacked(data[name], kind) for name, kind in _PACKED.items()}
        rewards = {name: _number(value) for name, value in data["rewards"].items()}
        recorded = {name: _unpacked_array(one) for name, one in data["recorded"].items()}
        # A run that was saved before there were environments has no replies.
        replies = tuple((int(begin), int(end)) for begin, end in data.get("replies", ()))
        rest = {"rewards": rewards, "reward": _number(data["reward"])}
        rest |= {"replies": replies, "recorded": recorded}
        return cls(**{**data, **arrays, **rest})


_PACKED = {"prompt": "<i4", "tokens": "<i4", "log_probs": "<f4"}
"""Fields that are written as bytes, which is shorter than digits."""


def _packed(values: Sequence[float], kind: str) -> str:
    return base64.b64encode(np.asarray(values, kind).tobytes()).decode()


def _unpacked(text: str, kind: str) -> tuple[Any, ...]:
    return tuple(np.frombuffer(base64.b64decode(text), kind).tolist())


def _packed_array(array: np.ndarray) -> dict[str, Any]:
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    data = base64.b64encode(little.tobytes()).decode()
    return {"dtype": little.dtype.str, "shape": list(array.shape), "data": data}


def _unpacked_array(saved: Mapping[str, Any]) -> np.ndarray:
    flat = np.frombuffer(base64.b64decode(saved["data"]), saved["dtype"])
    return flat.reshape(saved["shape"])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def groups_of(rollouts: Sequence[Rollout]) -> list[list[Rollout]]:
    """Return rollouts by the prompt that they answer, in their order."""
    return [list(group) for _, group in itertools.groupby(rollouts, lambda one: one.group)]


def has_equal_rewards(group: Sequence[Rollout]) -> bool:
    """Return whether no completion of a group is worth more than another."""
    found = {one.reward for one in group if math.isfinite(one.reward)}
    return len(found) < 2


def batch_of(
    rollouts: Sequence[Rollout | None],
    seq_len: int,
    pad_id: int,
    reward_names: Sequence[str],
    *,
    recorded: Mapping[str, TokenArray] = {},
    has_environment: bool = False,
) -> Batch:
    """Return rollouts as arrays, in their order; None is a row of padding.

    Those of one group follow each other. A rollout whose reward or environment failed weighs
    nothing, and its group is compared without it.

    Args:
        rollouts: The rows.
        seq_len: Tokens of a row.
        pad_id: The token of padding.
        reward_names: Rewards that the batch shows.
        recorded: What each rollout has recorded.
        has_environment: Whether the batch shows which environments failed.
    """
    num_rows = len(rollouts)
    batch: Batch = {
        "tokens": np.full((num_rows, seq_len), pad_id, np.int32),
        "targets": np.full((num_rows, seq_len), pad_id, np.int32),
        "token_mask": np.zeros((num_rows, seq_len), bool),
        "loss_weights": np.zeros((num_rows, seq_len), np.float32),
        "sampler_log_probs": np.zeros((num_rows, seq_len), np.float32),
        "rewards": np.zeros(num_rows, np.float32),
        "row_weights": np.zeros(num_rows, np.float32),
        "group": np.full(num_rows, -1, np.int32),
        **{
            prefix + name: np.zeros(num_rows, np.float32)
            for prefix in (REWARD_PREFIX, FAILED_PREFIX)
            for name in reward_names
        },
    }
    for name, spec in recorded.items():
        batch[name] = np.zeros((num_rows, seq_len, *spec.shape), spec.dtype)
    for row, one in enumerate(rollouts):
        if one is not None:
            _write_row(batch, row, one)
            for name in recorded:
                batch[name][row, : len(one.recorded[name])] = one.recorded[name]
    if has_environment:
        failed = [one is not None and one.environment_failed for one in rollouts]
        batch[FAILED_PREFIX + ENVIRONMENT] = np.asarray(failed, np.float32)
    batch |= group_statistics(batch["rewards"], batch["row_weights"], batch["group"])
    return batch


def _write_row(batch: Batch, row: int, one: Rollout) -> None:
    text = np.asarray((*one.prompt, *one.tokens), np.int32)
    length, begin = len(text) - 1, len(one.prompt) - 1
    batch["tokens"][row, :length], batch["targets"][row, :length] = text[:-1], text[1:]
    batch["token_mask"][row, :length] = True
    batch["group"][row] = one.group
    batch["loss_weights"][row, begin:length] = one.is_sampled
    batch["sampler_log_probs"][row, begin:length] = one.log_probs
    for name, value in one.rewards.items():
        is_failed = not np.isfinite(value)
        batch[FAILED_PREFIX + name][row] = is_failed
        batch[REWARD_PREFIX + name][row] = 0 if is_failed else value
    if np.isfinite(one.reward):
        batch["rewards"][row], batch["row_weights"][row] = one.reward, 1
