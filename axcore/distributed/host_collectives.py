"""Processes wait for one another, and exchange values on the host.

Messages are text in the key-value store of jax's coordination service, never an array: no device
takes part, so a thread may wait here while the devices compute. Every wait has a name and a limit.

All processes call these functions in the same order for each name. In a run of one process they
return at once.
"""

import collections
import functools
import json
import threading
from collections.abc import Callable
from typing import Any, TypeVar

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

_ROOT = "axcore"

# Shared by all threads, unlike `_own`: a name is used by
# one thread at a time, but not always by the same one.
_counts: collections.Counter[str] = collections.Counter()
_lock = threading.Lock()


class _OfThread(threading.local):
    """Keys that this thread published since its last barrier: all have read them after the next."""

    def __init__(self) -> None:
        self.published: list[str] = []


_own = _OfThread()


def _forget() -> None:
    """Begin to count again, as processes that join for the first time do."""
    _counts.clear()
    _own.published = []


on_leaving(_forget)


def barrier(name: str, *, limit_s: float | None = None) -> None:
    """Wait until every process is here.

    Raises:
        ProcessError: Some did not come in time: naming the barrier, them, and the limit.
    """
    all_gather_str(name, "", limit_s=limit_s)


def all_gather_str(name: str, text: str, *, limit_s: float | None = None) -> list[str]:
    """Return the texts of all processes, in their order, in every process.

    Raises:
        ProcessError: As `barrier`.
    """
    if process_count() == 1:
        return [text]
    client, index = coordination_client(), process_index()
    folder = _next_folder(name)
    # Set before the barrier: who comes out of the barrier finds everybody's key.
    _checked(name, lambda: client.key_value_set(f"{folder}/{index}", text))
    # The folder's number makes the barrier's name new: the service keeps the outcome of a name that
    # all have passed.
    _wait(client, name, folder, time_limits().barrier_s if limit_s is None else limit_s)
    # One request for all keys: to ask for each would take a round trip per process, which grows
    # with the square of a run's size.
    texts = _checked(name, lambda: _by_process(client, folder))
    # The store never forgets by itself. What this thread published before was read by all before
    # they came to this barrier; what it published for this one may still be read.
    for key in _own.published:
        _checked(name, functools.partial(client.key_value_delete, key))
    # After the barrier only: a process that fails here
    # still has its text where the others can read it.
    _own.published = [f"{folder}/{index}"]  # some may be about to read it
    return [texts[process] for process in range(process_count())]


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
    if process_count() == 1:
        return [make()]
    # An error travels as a message: a process that raised before the barrier would leave the others
    # waiting there until their limit.
    # JSON, never pickle: the store is reachable by whoever reaches
    # the coordinator's port, and pickle runs what it reads.
    own, text = _encoded_result(name, make)
    messages = [parse_json(one) for one in all_gather_str(name, text, limit_s=limit_s)]
    if own is not None:
        # A process raises its own error as it is, with its
        # traceback; only the others get the copy that was sent.
        raise own
    return [_value(one) for one in messages]


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
    key = _next_folder(name)
    limit = time_limits().barrier_s if limit_s is None else limit_s
    # No barrier: process 0 continues at once. Its key is deleted by a later
    # `all_gather_str` of this thread, after which all have read it.
    text = _publish(name, key, make) if is_process_zero() else _read(name, key, limit)
    made: T = _value(parse_json(text))
    return made


# -- jax's key-value store ---------------------------------------------------------------------


def _next_folder(name: str) -> str:
    """Return how keys begin that are used under a name this time."""
    # Numbered by name, so that the thread that saves and the one that trains may both be here: only
    # within a name is the order the same in all processes.
    with _lock:
        count = _counts[name]
        _counts[name] += 1
    return f"{_ROOT}/{name}/{count}"


def _by_process(client: Any, folder: str) -> dict[int, str]:
    pairs = client.key_value_dir_get(f"{folder}/")
    return {int(key.rpartition("/")[2]): text for key, text in pairs}


def _wait(client: Any, name: str, folder: str, limit_s: float) -> None:
    try:
        client.wait_at_barrier(folder, _milliseconds(limit_s))
    except jax.errors.JaxRuntimeError as error:
        # jax distinguishes a time limit from a lost process by the text
        # of the status only; there is one Python class for both.
        if "DEADLINE_EXCEEDED" not in str(error):
            raise _lost_process(name, error) from error
        # Everybody set a key before waiting, so a missing key is a missing
        # process: jax's own error would name the barrier's task ids, or none.
        here = _checked(name, lambda: _by_process(client, folder))
        missing = [process for process in range(process_count()) if process not in here]
        if missing:
            raise missing_error(name, missing, process_count(), limit_s) from error
        raise ProcessError(
            f"this process came to {name!r} when the others had waited {limit_s:g} s and given up",
            where=name,
            hint="see why it was slow, or raise the limit (--barrier-timeout)",
        ) from error


def _publish(name: str, key: str, make: Callable[[], Any]) -> str:
    own, text = _encoded_result(name, make)
    _checked(name, lambda: coordination_client().key_value_set(key, text))
    _own.published.append(key)
    if own is not None:
        raise own
    return text


def _read(name: str, key: str, limit_s: float) -> str:
    try:
        return str(coordination_client().blocking_key_value_get(key, _milliseconds(limit_s)))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise _lost_process(name, error) from error
        raise missing_error(name, [0], process_count(), limit_s) from error


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
