"""Processes wait for one another, and exchange values on the host.

Messages are text in the key-value store of jax's coordination service, never an array: no device
takes part, so a thread may wait here while the devices compute. Every wait has a name and a limit.

A call costs each process a number of messages that does not grow with the run: process 0 alone
reads what all sent, and the others read its answer. Only the answer of a gathering call has the
size of the run.

All processes call these functions in the same order for each name. In a run of one process they
return at once.
"""

import collections
import contextlib
import functools
import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import jax

from axcore.config.json_files import parse_json
from axcore.distributed.processes import (
    coordination_client,
    is_process_zero,
    on_leaving,
    process_count,
    process_index,
    time_limits,
)
from axcore.distributed.rendezvous import missing_error
from axcore.errors import AxcoreError, ProcessError

T = TypeVar("T")
V = TypeVar("V")

_ROOT = "axcore"
_ANSWER = "answer"
_MISSING = "missing"

_MAX_PAUSE_S = 2.0
"""How long to wait between looks at who was at a barrier, before those there are all."""


class _Passed(threading.local):
    """Keys that this thread set since its last barrier: all have read them after the next."""

    def __init__(self) -> None:
        self.keys: list[str] = []


@attrs.frozen
class Members:
    """The processes of a run as one of them reaches the others.

    Args:
        client: Its client of jax's coordination service.
        index: Which process this is.
        count: How many there are.
    """

    client: Any
    index: int
    count: int
    # Shared by all threads, unlike `_passed`: a name is used by
    # one thread at a time, but not always by the same one.
    _counts: collections.Counter[str] = attrs.field(factory=collections.Counter, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _passed: _Passed = attrs.field(factory=_Passed, init=False)

    def barrier(self, name: str, limit_s: float) -> None:
        """Wait until every process is here."""
        self._meet(name, self._next_folder(name), limit_s)

    def decide(
        self, name: str, text: str, decision: Callable[[list[str]], str], limit_s: float
    ) -> str:
        """Return in every process what process 0 decides when it has the texts of all."""
        folder = self._next_folder(name)
        # Before the barrier: process 0 comes out of it and finds everybody's text.
        _checked(name, lambda: self.client.key_value_set(f"{folder}/{self.index}", text))
        self._meet(name, folder, limit_s)
        key = f"{folder}/{_ANSWER}"
        if self.index:
            return self._read(name, key, limit_s)
        # One request for all keys, in one process: a request of
        # each process for all grows with the square of a run's size.
        pairs = _checked(name, lambda: self.client.key_value_dir_get(f"{folder}/"))
        texts = {key.rpartition("/")[2]: text for key, text in pairs}
        answer = decision([texts[str(process)] for process in range(self.count)])
        _checked(name, lambda: self.client.key_value_set(key, answer))
        # A key with others below it is deleted with them.
        self._passed.keys.append(folder)
        return answer

    def broadcast(self, name: str, make: Callable[[], str], limit_s: float) -> str:
        """Return in every process the text that process 0 makes, which waits for nobody."""
        key = self._next_folder(name)
        if self.index:
            return self._read(name, key, limit_s)
        text = make()
        _checked(name, lambda: self.client.key_value_set(key, text))
        self._passed.keys.append(key)
        return text

    def _next_folder(self, name: str) -> str:
        """Return how keys begin that are used under a name this time."""
        # Numbered by name, so that the thread that saves and the one that trains may both be here:
        # only within a name is the order the same in all processes.
        with self._lock:
            count = self._counts[name]
            self._counts[name] += 1
        return f"{_ROOT}/{name}/{count}"

    def _meet(self, name: str, folder: str, limit_s: float) -> None:
        """Wait for every process."""
        try:
            # The folder's number makes the barrier's name new: the service keeps the outcome of a
            # name that all have passed.
            self.client.wait_at_barrier(folder, _milliseconds(limit_s))
        except jax.errors.JaxRuntimeError as error:
            # jax distinguishes a time limit from a lost process by the text
            # of the status only; there is one Python class for both.
            if "DEADLINE_EXCEEDED" not in str(error):
                raise _lost_process(name, error) from error
            missing = self._missing(name, folder, str(error))
            if missing and self.index not in missing:
                raise missing_error(name, missing, self.count, limit_s) from error
            raise ProcessError(
                f"this process came to {name!r} when the others had waited {limit_s:g} s and "
                "given up",
                where=name,
                hint="see why it was slow, or raise the limit (--barrier-timeout)",
            ) from error
        # The store never forgets by itself. What this thread used
        # before was read by all before they came to this barrier.
        for key in self._passed.keys:
            _checked(name, functools.partial(self.client.key_value_delete, key))
        self._passed.keys = []

    def _missing(self, name: str, folder: str, text: str) -> list[int]:
        """Return the processes that never came, where jax says how many did, and names two."""
        # Only now, for a key of each at every barrier would be one more message. All who waited get
        # this error at the same time, so their keys are there a moment later.
        _checked(name, lambda: self.client.key_value_set(f"{folder}/{self.index}", "", True))
        reached = re.search(r"reached the barrier: (\d+)/", text)
        num_here, pause_s = int(reached[1]) if reached else self.count, 0.05
        while True:
            pairs = _checked(name, lambda: self.client.key_value_dir_get(f"{folder}/"))
            keys = {key.rpartition("/")[2]: text for key, text in pairs}
            # The first that knows writes it for all: whoever comes later counts itself among those
            # here, and not the others that are late.
            if _MISSING in keys:
                missing: list[int] = parse_json(keys[_MISSING])
                return missing
            if len(keys) >= num_here or pause_s > _MAX_PAUSE_S:
                missing = [one for one in range(self.count) if str(one) not in keys]
                with contextlib.suppress(jax.errors.JaxRuntimeError):  # another was first
                    self.client.key_value_set(f"{folder}/{_MISSING}", json.dumps(missing))
                    return missing
            time.sleep(pause_s)
            pause_s *= 2

    def _read(self, name: str, key: str, limit_s: float) -> str:
        try:
            return str(self.client.blocking_key_value_get(key, _milliseconds(limit_s)))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise _lost_process(name, error) from error
            raise missing_error(name, [0], self.count, limit_s) from error


# -- The run that this process joined ----------------------------------------------------------


_making = threading.Lock()


def _members() -> Members:
    with _making:  # or two threads that come first would each count for itself
        return _made_members()


@functools.cache
def _made_members() -> Members:
    return Members(coordination_client(), process_index(), process_count())


# To count again from 0, as processes that join for the first time do.
on_leaving(_made_members.cache_clear)


def _limit(limit_s: float | None) -> float:
    return time_limits().barrier_s if limit_s is None else limit_s


def barrier(name: str, *, limit_s: float | None = None) -> None:
    """Wait until every process is here.

    Raises:
        ProcessError: Some did not come in time: naming the barrier, them, and the limit.
    """
    if process_count() > 1:
        _members().barrier(name, _limit(limit_s))


def all_gather_str(name: str, text: str, *, limit_s: float | None = None) -> list[str]:
    """Return the texts of all processes, in their order, in every process.

    Raises:
        ProcessError: As `barrier`.
    """
    if process_count() == 1:
        return [text]
    answer = _members().decide(name, text, json.dumps, _limit(limit_s))
    return [str(one) for one in parse_json(answer)]


def all_gather_object(name: str, make: Callable[[], T], *, limit_s: float | None = None) -> list[T]:
    """Return what every process makes, in their order, in every process.

    Args:
        name: What it is, for errors.
        make: Returns something that JSON gives back.
        limit_s: How long each waits for the others.

    Raises:
        AxcoreError: What `make` raised in the first process where it did; that process gets its own
            error as it is.
        ProcessError: As `barrier`.
    """
    return decide_together(name, make, list, limit_s=limit_s)


def gather_object(
    name: str, make: Callable[[], T], *, limit_s: float | None = None
) -> list[T] | None:
    """Return what every process makes, in process 0; None in the others.

    Args:
        name: What it is, for errors.
        make: Returns something that JSON gives back.
        limit_s: How long each waits for the others.

    Raises:
        AxcoreError: As `all_gather_object`, in every process.
        ProcessError: As `barrier`.
    """
    found: list[T] = []
    decide_together(name, make, found.extend, limit_s=limit_s)
    return found if is_process_zero() else None


def decide_together(
    name: str,
    make: Callable[[], T],
    decision: Callable[[list[T]], V],
    *,
    limit_s: float | None = None,
) -> V:
    """Return in every process what process 0 decides from what every process makes.

    Args:
        name: What it is, for errors.
        make: Returns something that JSON gives back.
        decision: Called in process 0 alone, with what each process made, in their order. Returns
            something that JSON gives back.
        limit_s: How long each waits for the others.

    Raises:
        AxcoreError: What `make` raised in the first process where it did, or `decision`; the
            process where it was raised gets its own error as it is.
        ProcessError: As `barrier`.
    """
    if process_count() == 1:
        return decision([make()])
    raised: BaseException | None = None

    def decided(texts: list[str]) -> str:
        nonlocal raised
        messages = [parse_json(one) for one in texts]
        # An error of the first process that had one is the answer, for all to raise.
        failed = next((one for one in messages if "error" in one), None)
        if failed is not None:
            return json.dumps(failed)
        error, text = _encoded_result(name, lambda: decision([one["value"] for one in messages]))
        raised = error
        return text

    # An error travels as a message: a process that raised before the barrier would leave the others
    # waiting there until their limit.
    # JSON, never pickle: the store is reachable by whoever reaches
    # the coordinator's port, and pickle runs what it reads.
    own, text = _encoded_result(name, make)
    answer = _members().decide(name, text, decided, _limit(limit_s))
    # A process raises its own error as it is, with its
    # traceback; only the others get the copy that was sent.
    if own is not None:
        raise own
    if raised is not None:
        raise raised
    made: V = _value(parse_json(answer))
    return made


def broadcast_object(name: str, make: Callable[[], T], *, limit_s: float | None = None) -> T:
    """Return what process 0 makes, in every process; only process 0 calls `make`.

    Args:
        name: What it is, for errors.
        make: Returns something that JSON gives back.
        limit_s: How long the others wait.

    Raises:
        AxcoreError: What `make` raised, in every process. What else it raised comes out of
            process 0 as it is, and is a ProcessError in the others.
        ProcessError: Process 0 did not come in time.
    """
    if process_count() == 1:
        return make()
    raised: BaseException | None = None

    def encoded() -> str:
        nonlocal raised
        raised, text = _encoded_result(name, make)
        return text

    text = _members().broadcast(name, encoded, _limit(limit_s))
    if raised is not None:
        raise raised
    made: T = _value(parse_json(text))
    return made


# -- Errors and limits -------------------------------------------------------------------------


def _checked(name: str, speak: Callable[[], T]) -> T:
    try:
        return speak()
    except jax.errors.JaxRuntimeError as error:
        raise _lost_process(name, error) from error


def _lost_process(name: str, error: Exception) -> ProcessError:
    return ProcessError(
        f"a process of the run was lost at {name!r}: {str(error).splitlines()[0]}",
        where=name,
        hint="see what the other processes say, and start the run again",
    )


def _milliseconds(seconds: float) -> int:
    # A limit below half a millisecond would round to no time at all.
    return max(1, round(seconds * 1000))


# -- What a process made, as text --------------------------------------------------------------


def _encoded_result(name: str, make: Callable[[], Any]) -> tuple[BaseException | None, str]:
    """Return what `make` raised, if it did, and the message for the others."""
    try:
        return None, json.dumps({"value": make()})
    except AxcoreError as error:
        # AxcoreErrors are known in every process and carry their hint; what
        # else was raised may be of a class that the others cannot import.
        fields = (error.what, error.where, error.set_in, error.hint)
        return error, json.dumps({"error": [type(error).__qualname__, *fields]})
    except Exception as error:
        # Exception, not BaseException: a KeyboardInterrupt is this
        # process's own, and the others learn of it when it leaves.
        what = f"process {process_index()} failed at {name!r}: {type(error).__name__}: {error}"
        hint = f"see what process {process_index()} says"
        return error, json.dumps({"error": [ProcessError.__qualname__, what, name, None, hint]})


def _value(message: dict[str, Any]) -> Any:
    if "error" not in message:
        return message["value"]
    kind, what, where, set_in, hint = message["error"]
    # An error class of a plugin that is not installed here still raises, as the base.
    raise _error_classes(AxcoreError).get(kind, AxcoreError)(
        what, where=where, set_in=set_in, hint=hint
    )


# Looked up at each error, not kept: classes are defined as modules are imported.
def _error_classes(base: type[AxcoreError]) -> dict[str, type[AxcoreError]]:
    found = {base.__qualname__: base}
    for derived in base.__subclasses__():
        found.update(_error_classes(derived))
    return found
