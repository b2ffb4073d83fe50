"""`RolloutBatches`: which completions each step trains on, and where that is after a resume.

A rollout is sampled by the weights of one step. Its batches are trained on one after the other,
maybe several times, and maybe some steps later. What is sampled and not yet trained on is in the
saved position: another state of the weights would sample something else.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from axcore.data import Policy, TrainBatches
from axcore.data.packing.packing import Batch
from axcore.rollouts.rollout import Rollout, groups_of, has_equal_rewards

if TYPE_CHECKING:
    from axcore.rollouts.rollouts import Rollouts


class RolloutBatches(TrainBatches):
    """Batches that the policy of each step samples."""

    follows_policy = True

    def __init__(self, data: "Rollouts", identity: dict[str, Any]) -> None:
        self._position = _Position(data)
        super().__init__(self._position, identity)

    def on_policy(self, policy: Policy) -> None:
        """Hear which weights sample from now on."""
        self._position.policy = policy


class _Position:
    """Batches one after the other.

    Attributes:
        policy: The policy, once there is one.
    """

    def __init__(self, data: "Rollouts") -> None:
        self.policy: Policy | None = None
        self._data = data
        self._num_batches = 0  # taken, of all rollouts
        self._num_prompts = 0  # of the endless order, asked so far
        self._num_taken = 0  # batches of the present rollout
        self._present: list[Rollout] = []
        # Sampled, and maybe not yet finished: each is called for its rollouts.
        self._coming: deque[Callable[[], list[Rollout]]] = deque()

    def __iter__(self) -> "_Position":
        return self

    def __next__(self) -> Batch:
        cfg = self._data.config
        if not self._present or self._num_taken == self._data.batches_of_rollout:
            self._present, self._num_taken = self._next_rollout(), 0
        number = self._num_taken % cfg.batches_per_rollout
        self._num_taken, self._num_batches = self._num_taken + 1, self._num_batches + 1
        begin = number * cfg.batch_size
        return self._data.batch(self._present[begin : begin + cfg.batch_size])

    def get_state(self) -> dict[str, Any]:
        # Waits for what is being sampled: its weights are gone after the next step.
        coming = [_saved(one()) for one in self._coming]
        is_used = self._num_taken == self._data.batches_of_rollout
        return {
            "next_index": self._num_batches,
            "num_prompts": self._num_prompts,
            "num_taken": 0 if is_used else self._num_taken,
            "present": [] if is_used else _saved(self._present),
            "coming": coming,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        present, coming = _read(state["present"]), [_read(one) for one in state["coming"]]
        self._num_batches, self._num_prompts = int(state["next_index"]), int(state["num_prompts"])
        self._num_taken, self._present = int(state["num_taken"]), present
        self._coming = deque(_finished(one) for one in coming)

    def _next_rollout(self) -> list[Rollout]:
        """Return what is trained on now, and begin to sample what is trained on `lag` later."""
        while len(self._coming) <= self._data.config.max_lag:
            self._coming.append(self._begin())
        return self._coming.popleft()()

    def _begin(self) -> Callable[[], list[Rollout]]:
        cfg = self._data.config
        num_groups = cfg.batches_per_rollout * cfg.batch_size // cfg.group_size
        if cfg.max_sampling_rounds == 1:
            return self._data.begin_rollout(self.policy, self._prompts(num_groups))
        return _finished(self._with_unequal_rewards(num_groups))

    def _with_unequal_rewards(self, num_groups: int) -> list[Rollout]:
        """Return groups whose rewards differ, as far as `max_sampling_rounds` find so many.

        Source: Yu et al. 2025, arXiv:2503.14476, section 3.2.
        """
        useful: list[Sequence[Rollout]] = []
        equal: list[Sequence[Rollout]] = []
        for _ in range(self._data.config.max_sampling_rounds):
            numbers = self._prompts(num_groups - len(useful))
            for group in groups_of(self._data.begin_rollout(self.policy, numbers)()):
                (equal if has_equal_rewards(group) else useful).append(group)
            if len(useful) == num_groups:
                break
        # The first equal ones fill the batch, whose shape is fixed; they have no advantage.
        chosen = [*useful, *equal][:num_groups]
        return [one for group in chosen for one in group]

    def _prompts(self, count: int) -> range:
        self._num_prompts += count
        return range(self._num_prompts - count, self._num_prompts)


def _finished(rollouts: list[Rollout]) -> Callable[[], list[Rollout]]:
    return lambda: rollouts


def _saved(rollouts: Sequence[Rollout]) -> list[dict[str, Any]]:
    return [one.to_json() for one in rollouts]


def _read(saved: Sequence[Any]) -> list[Rollout]:
    return [Rollout.from_json(one) for one in saved]
