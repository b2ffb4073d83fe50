"""What a trainer reads: data loaders, batches with a position, and a thread that reads ahead.

`DataLoader` describes a batch and gives `TrainBatches`, without end, and `ValidationBatches`.
"""

import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import attrs

from axcore.config import REQUIRED, Configurable, PositiveInt, config
from axcore.data.packing.batches import Batches, DataShard, Order, Rows, batches, validation_order
from axcore.data.packing.packing import Batch
from axcore.errors import DataError
from axcore.module import BatchSpec

if TYPE_CHECKING:
    from axcore.module import Module
    from axcore.ops import KernelPolicy


State = dict[str, Any]

_ORDER = 3
# Part of every saved position: a run that resumes must
# not silently read other rows than it would have.
"""Which way of shuffling; another one would bring other rows at the same position."""


# A read of a slow object store; longer ones are left behind, as the thread is a daemon.
_LONGEST_STOP_S = 10.0


def _jit(fn: Callable[..., Any]) -> Callable[..., Any]:
    import jax

    found: Callable[..., Any] = jax.jit(fn)
    return found


@attrs.define(eq=False)
class Policy:
    """A handle on the model in training, for batches that are sampled from it.

    Attributes:
        module: The model, for `functional(policy.module, policy.state, ...)`.
        step: How many steps made its present weights: their version.
        state: Its present state, on the devices; None while another one is restored. The next step
            takes the memory of these arrays: keep the handle, and none of them.
        kept: What the task keeps in the state in addition, such as a critic or a reference.
        jit: Jits a function of arrays; a trainer's traces it for its mesh, rules and kernels.
        kernels: Which kernels the model's trainer takes; None for those of the hardware.
        specs: Specs of the state; arrays that they mark as frozen have the same numbers as long as
            the handle is used. None says nothing of any.
    """

    module: "Module"
    step: int = 0
    state: Any = attrs.field(default=None, repr=False)
    kept: Any = attrs.field(factory=dict, repr=False)
    jit: Callable[[Callable[..., Any]], Callable[..., Any]] = attrs.field(
        factory=lambda: _jit, repr=False
    )
    kernels: "KernelPolicy | None" = attrs.field(default=None, repr=False)
    specs: Any = attrs.field(default=None, repr=False)


class TrainBatches(Iterator[Batch]):
    """Batches without end, with a position that can be saved and restored exactly.

    Attributes:
        follows_policy: Whether batches depend on the weights. A trainer then calls `on_policy`,
            and prepares no batch ahead of its step.
    """

    follows_policy: bool = False

    def __init__(
        self,
        batches: Batches,
        identity: dict[str, Any],
        *,
        read_so_far: Callable[[Mapping[str, Any], int], Mapping[str, Any]] | None = None,
    ) -> None:
        """Wrap batches.

        Args:
            batches: What to read.
            identity: All that a batch depends on in addition to its step; JSON-able.
            read_so_far: Returns what so many first batches depend on, given an identity. A position
                of another identity is accepted where that is equal; by default that is all of it.
        """
        self._iterator = iter(batches)
        self._identity = identity
        self._read_so_far = read_so_far or (lambda identity, num_batches: identity)

    @property
    def identity(self) -> dict[str, Any]:
        """All that a batch depends on in addition to its step; equal in all processes of a run."""
        return dict(self._identity)

    def __next__(self) -> Batch:
        batch: Batch = next(self._iterator)
        return batch

    def on_policy(self, policy: Policy) -> None:
        """Hear that the policy has other weights, where batches follow them.

        That is before the first batch of a run, before the first one after a resume or a rollback,
        and after each step. The handle is the same each time.
        """

    def get_state(self) -> State:
        """Return the position: small, JSON-able, the same in every process."""
        return {
            # The key is part of every checkpoint: grain's iterators were once the only ones.
            "grain": self._iterator.get_state(),
            "order": _ORDER,
            "data": dict(self._identity),
        }

    def set_state(self, state: State) -> None:
        """Go to a saved position: what follows is what followed when it was saved.

        Raises:
            DataError: The position was saved over other data or settings, so that what followed
                cannot follow again; or it is not a saved position. The iterator stays where it was.
        """
        if not isinstance(state, dict) or not isinstance(state.get("data"), dict):
            raise _no_position(state)
        if state.get("order", _ORDER - 1) != _ORDER:
            raise DataError(
                "The saved position is of a version of axcore that shuffled rows in another way.",
                hint="Resume with that version, or start a new run.",
            )
        # A damaged position may fail half way, and the iterator has to stay where it was.
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
        """Return how what the first batches depended on differs from what they depend on now."""
        old, new = (_values(self._read_so_far(one, num_batches)) for one in (saved, self._identity))
        return [
            f"{name} was {old.get(name)!r}, is {new.get(name)!r}"
            for name in {**new, **old}
            if old.get(name) != new.get(name)
        ]


def _values(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return an identity with the values of each mapping in it by names of their own."""
    found: dict[str, Any] = {}
    for name, value in identity.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{key}": one for key, one in value.items()}
        else:
            found[name] = value
    return found


def _no_position(state: object) -> DataError:
    return DataError(f"This is not a saved position in the training data: {state!r}.")


class ValidationBatches:
    """A finite iterable of batches: every pass over it is the same."""

    def __init__(self, batches: Batches, num_batches: int) -> None:
        self._batches = batches
        self._num_batches = num_batches

    @classmethod
    def of(
        cls,
        rows: Rows,
        shard: DataShard,
        *,
        max_batches: int | None = None,
        reorder: Callable[[Order], Order] | None = None,
    ) -> "ValidationBatches":
        """Return the batches of some rows, the last one filled up with rows of padding.

        Args:
            rows: All rows to evaluate on.
            shard: Which rows of each batch this process has.
            max_batches: How many batches are read at most; None reads them all.
            reorder: Returns the order in which to read, given the one of `validation_order`.
        """
        order = validation_order(len(rows), batch_size=shard.batch_size, max_batches=max_batches)
        order = order if reorder is None else reorder(order)
        return cls(batches(rows, order, shard), len(order) // shard.batch_size)

    def __len__(self) -> int:
        return self._num_batches

    def __iter__(self) -> Iterator[Batch]:
        yield from self._batches


class DataLoader(Configurable, ABC):
    """Batches of any kind: a tree of numpy arrays, as `batch_spec` says.

    Nothing is read before the first batch or the summary is asked for.
    """

    @config
    class Config(Configurable.Config["DataLoader"]):
        """Describes a data loader.

        Args:
            batch_size: Rows of the global batch, over all processes.
        """

        batch_size: PositiveInt = REQUIRED

        def for_shapes(self) -> Self:
            """Return a config with the same batch shapes that needs no file to be built."""
            return self

    @abstractmethod
    def batch_spec(self) -> BatchSpec:
        """Return what every batch is, without reading data."""

    @abstractmethod
    def train(self, *, process_index: int = 0, process_count: int = 1) -> TrainBatches:
        """Return an iterator without end over one process's part of each global batch.

        Args:
            process_index: Which process this is, from 0.
            process_count: How many processes share each batch, in contiguous blocks of rows.
        """

    @abstractmethod
    def validation(self, *, process_index: int = 0, process_count: int = 1) -> Iterable[Any]:
        """Return the batches to evaluate on, with as many for every process; maybe none."""

    def on_task(self, task: Any) -> None:
        """Hear of the task, or the model, that is trained on the batches.

        That is before `batch_spec` is asked for: what it reads may be a part of each batch.
        """

    def check_task(self, task: Any) -> None:
        """Check that batches fit the task, or the model, that is trained on them.

        A trainer asks once, before anything is compiled.
        """

    def on_run(self, directory: Path) -> None:
        """Hear of the run that is about to train: where it keeps its files."""

    def on_run_end(self) -> None:
        """Hear that the run has ended, also by an error: end what works for it."""

    def on_policy(self, policy: Policy) -> None:
        """Hear which weights are evaluated, where the batches of `validation` follow them.

        That is before each evaluation. Those of `train` hear of theirs by `TrainBatches.on_policy`.
        """

    @abstractmethod
    def summary(self) -> Any:
        """Read the data, and returns what there is; as text, one line for people.

        Raises:
            DataError: It cannot be read, or there is nothing to train on.
        """


class PrefetchedBatches(Iterator[Batch]):
    """Training batches with as exact a position as without a thread.

    The position is that after the batches that were taken; those that wait are prepared again
    after a resume. What goes wrong in the thread is raised where its batch would be taken.

    Attributes:
        waited_s: Seconds that takers have waited for batches.
    """

    def __init__(self, batches: TrainBatches, *, ahead: int) -> None:
        """Start nothing yet.

        Args:
            batches: What to read.
            ahead: How many batches wait at most; 0 prepares each when it is taken, and so are those
                that follow the weights.
        """
        self.waited_s = 0.0
        self._batches = batches
        # Batches that are sampled from the weights of a step cannot be made before that step.
        self._ahead = 0 if batches.follows_policy else ahead
        # Taken once here: after the thread has begun, the
        # iterator's own position is ahead of what was taken.
        self._state = batches.get_state()
        self._reader: _Reader | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """All that a batch depends on in addition to its step."""
        return self._batches.identity

    @property
    def follows_policy(self) -> bool:
        """Whether batches depend on the weights."""
        return self._batches.follows_policy

    def on_policy(self, policy: Policy) -> None:
        """Say so to what is read; see `TrainBatches.on_policy`."""
        self._batches.on_policy(policy)

    def start(self) -> None:
        """Start to prepare batches, which taking the first one does otherwise."""
        if self._reader is None and self._ahead:
            self._reader = _Reader(self._batches, self._ahead)

    def __next__(self) -> Batch:
        self.start()
        since = time.perf_counter()
        try:
            if self._reader is None:
                batch = next(self._batches)
                if not self.follows_policy:
                    self._state = self._batches.get_state()
            else:
                batch, self._state = self._reader.take()
        finally:
            self.waited_s += time.perf_counter() - since
        return batch

    def get_state(self) -> State:
        """Return the position after the batches that were taken."""
        # Asked for when it is saved: that of sampled batches is costly, and no thread is ahead.
        return self._batches.get_state() if self.follows_policy else self._state

    def set_state(self, state: State) -> None:
        """Go to a saved position; see `TrainBatches.set_state`."""
        # The thread reads ahead of what was taken, so it has to end before the position changes.
        self._stop()
        self._batches.set_state(state)
        self._state = self._batches.get_state()

    def close(self) -> None:
        """End the thread; one that storage holds up for long is left behind with a warning."""
        if self._reader is not None and not self._reader.stop(_LONGEST_STOP_S):
            warnings.warn(
                f"a thread still reads training data {_LONGEST_STOP_S:.0f} s after it was to stop",
                stacklevel=2,
            )
            return
        self._stop()

    def _stop(self) -> None:
        """End the thread and drops the batches that wait; the next batch is still the next."""
        if self._reader is not None:
            # Without a limit: to go to another position while
            # the thread still reads would corrupt both.
            self._reader.stop(None)
            self._reader = None
            self._batches.set_state(self._state)


class _Reader:
    """One thread that reads batches, and the few that wait."""

    def __init__(self, batches: TrainBatches, ahead: int) -> None:
        self._batches = batches
        self._ahead = ahead
        self._waiting: deque[tuple[Batch, State] | BaseException] = deque()
        self._changed = threading.Condition()
        self._is_stopped = False
        # A daemon: storage that hangs must not keep a finished process alive.
        self._thread = threading.Thread(target=self._read, name="prefetch batches", daemon=True)
        self._thread.start()

    def take(self) -> tuple[Batch, State]:
        """Return the next batch and the position after it, or raises what its reading raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting)
            # Not taken out before it is looked at: an error
            # has to be there for every later call, too.
            found = self._waiting[0]
            if isinstance(found, BaseException):
                raise found  # stays the first: there is nothing after it
            self._waiting.popleft()
            self._changed.notify_all()
        return found

    def stop(self, limit_s: float | None) -> bool:
        """End the thread after the batch that it is at; returns whether it ended in time."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        # Outside of the lock, which the thread needs to see that it is to stop.
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _read(self) -> None:
        while self._has_room():
            found: tuple[Batch, State] | BaseException
            try:
                batch = next(self._batches)
                # The position belongs to this batch: when it is taken, the iterator will have moved
                # on.
                found = batch, self._batches.get_state()
            except BaseException as error:  # or whoever takes the batch would wait for ever
                error.add_note("while a batch was prepared ahead of its step")
                found = error
            with self._changed:
                self._waiting.append(found)
                self._changed.notify_all()
            if isinstance(found, BaseException):
                return

    def _has_room(self) -> bool:
        """Wait until a batch may be prepared; returns False when none is wanted any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or len(self._waiting) < self._ahead)
            return not self._is_stopped
