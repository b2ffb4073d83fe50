"""Which steps a run keeps: the newest ones, and the newest that is known to be good."""

from collections.abc import Iterable, Sequence

import attrs


@attrs.define
class StepFacts:
    """What this process has learnt about steps; its reader and its writer share it.

    Attributes:
        whole: Steps whose files were compared with their manifest.
        damaged: Steps that differ from what was saved.
    """

    whole: set[int] = attrs.field(factory=set)
    damaged: set[int] = attrs.field(factory=set)

    def found_whole(self, step: int) -> None:
        """Notes that a step is as it was saved."""
        self.whole.add(step)
        self.damaged.discard(step)

    def found_damaged(self, step: int) -> None:
        """Notes that a step is not as it was saved."""
        self.damaged.add(step)
        self.whole.discard(step)


def expired_steps(steps: Sequence[int], *, keep: int | None, good: Iterable[int]) -> list[int]:
    """Returns the steps to delete, oldest first.

    Args:
        steps: The committed steps, oldest first.
        keep: How many of the newest stay; None: all.
        good: The steps that are known good; the newest of them always stays.
    """
    if keep is None:
        return []
    kept = {*steps[-keep:], max(good, default=None)}
    return [step for step in steps if step not in kept]
