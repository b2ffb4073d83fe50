"""What training and evaluation read: an endless iterator that can be saved, a finite iterable."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from axcore.data.packing import Batch
from axcore.errors import DataError

if TYPE_CHECKING:
    import grain

    from axcore.module import Module

State = dict[str, Any]

_ORDER = 3
"""Which way of shuffling; another one would bring other rows at the same position."""


@attrs.define(eq=False)
class Policy:
    """A handle on the model in training, for batches that are drawn from it.

    Attributes:
        module: The model, for `functional(policy.module, policy.state, ...)`.
        step: How many steps made its present weights: their version.
        state: Its present state, on the devices; None while another one is restored. The next step
            takes the memory of these arrays: keep the handle, and none of them.
    """

    module: "Module"
    step: int = 0
    state: Any = attrs.field(default=None, repr=False)


class TrainBatches(Iterator[Batch]):
    """Batches without end, with a position that can be saved and restored exactly.

    Attributes:
        follows_policy: Whether batches depend on the weights. A trainer then calls `on_policy`,
            and prepares no batch ahead of its step.
    """

    follows_policy: bool = False

    def __init__(
        self,
        batches: "grain.IterDataset[Batch]",
        identity: dict[str, Any],
        *,
        read_so_far: Callable[[Mapping[str, Any], int], Mapping[str, Any]] | None = None,
    ) -> None:
        """Wraps batches.

        Args:
            batches: A grain dataset.
            identity: All that a batch depends on besides its step; JSON-able.
            read_so_far: Returns what so many first batches depend on, given an identity. A position
                of another identity is taken up where that is equal; by default that is all of it.
        """
        self._iterator = iter(batches)
        self._identity = identity
        self._read_so_far = read_so_far or (lambda identity, num_batches: identity)

    @property
    def identity(self) -> dict[str, Any]:
        """All that a batch depends on besides its step; equal in all processes of a run."""
        return dict(self._identity)

    def __next__(self) -> Batch:
        batch: Batch = next(self._iterator)
        return batch

    def on_policy(self, policy: Policy) -> None:
        """Hears that the policy has other weights, where batches follow them.

        That is before the first batch of a run, before the first one after a resume or a rollback,
        and after each step. The handle is the same each time.
        """

    def get_state(self) -> State:
        """Returns the position: small, JSON-able, the same in every process."""
        return {
            "grain": self._iterator.get_state(),
            "order": _ORDER,
            "data": dict(self._identity),
        }

    def set_state(self, state: State) -> None:
        """Goes to a saved position: what follows is what followed when it was saved.

        Raises:
            DataError: The position was saved over other data or settings, so that what followed
                cannot follow again; or it is no saved position. The iterator stays where it was.
        """
        if not isinstance(state, dict) or not isinstance(state.get("data"), dict):
            raise _no_position(state)
        if state.get("order", _ORDER - 1) != _ORDER:
            raise DataError(
                "The saved position is of a version of axcore that shuffled rows in another way.",
                hint="Resume with that version, or start a new run.",
            )
        before = self._iterator.get_state()
        try:
            num_batches = int(state["grain"]["next_index"])
            changed = self._changes(state["data"], num_batches)
            if not changed:
                self._iterator.set_state(state["grain"])
        except (KeyError, TypeError, IndexError, ValueError) as error:
            self._iterator.set_state(before)
            raise _no_position(state) from error
        if changed:
            raise DataError(
                "The saved position belongs to other training data: " + "; ".join(changed) + ".",
                hint="Use the same files and data settings, or start a new run. What a mixture "
                f"reads may change from step {num_batches} of the data on: data.source.changes.",
            )

    def _changes(self, saved: dict[str, Any], num_batches: int) -> list[str]:
        """Returns how what the first batches depended on differs from what they depend on now."""
        old, new = (_values(self._read_so_far(one, num_batches)) for one in (saved, self._identity))
        return [
            f"{name} was {old.get(name)!r}, is {new.get(name)!r}"
            for name in {**new, **old}
            if old.get(name) != new.get(name)
        ]


def _values(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an identity with the values of each mapping in it by names of their own."""
    found: dict[str, Any] = {}
    for name, value in identity.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{key}": one for key, one in value.items()}
        else:
            found[name] = value
    return found


def _no_position(state: object) -> DataError:
    return DataError(f"This is no saved position in the training data: {state!r}.")


class ValidationBatches:
    """A finite iterable of batches: every pass over it is the same."""

    def __init__(self, batches: "grain.IterDataset[Batch]", num_batches: int) -> None:
        self._batches = batches
        self._num_batches = num_batches

    def __len__(self) -> int:
        return self._num_batches

    def __iter__(self) -> Iterator[Batch]:
        yield from iter(self._batches)
