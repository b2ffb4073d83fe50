"""What training and evaluation read: an endless iterator that can be saved, a finite iterable."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from axcore.data.packing import Batch
from axcore.errors import DataError

if TYPE_CHECKING:
    import grain

State = dict[str, Any]

_ORDER = 2
"""Which way of shuffling; another one would bring other rows at the same position."""


class TrainBatches(Iterator[Batch]):
    """Batches without end, with a position that can be saved and restored exactly."""

    def __init__(self, batches: "grain.IterDataset[Batch]", identity: dict[str, Any]) -> None:
        self._iterator = iter(batches)
        self._identity = identity

    @property
    def identity(self) -> dict[str, Any]:
        """All that a batch depends on besides its step; equal in all processes of a run."""
        return dict(self._identity)

    def __next__(self) -> Batch:
        batch: Batch = next(self._iterator)
        return batch

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
        self._check_identity(state["data"])
        if state.get("order") != _ORDER:
            raise DataError(
                "The saved position is of a version of axcore that shuffled rows in another way.",
                hint="Resume with that version, or start a new run.",
            )
        before = self._iterator.get_state()
        try:
            self._iterator.set_state(state["grain"])
        except (KeyError, TypeError, IndexError) as error:
            self._iterator.set_state(before)
            raise _no_position(state) from error

    def _check_identity(self, saved: dict[str, Any]) -> None:
        changed = [
            f"{name} was {saved.get(name)!r}, is {self._identity.get(name)!r}"
            for name in {**self._identity, **saved}
            if saved.get(name) != self._identity.get(name)
        ]
        if changed:
            raise DataError(
                "The saved position belongs to other training data: " + "; ".join(changed) + ".",
                hint="Use the same files and data settings, or start a new run.",
            )


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
