"""What a worker process runs: the calls of a reward or an environment, one after the other.

`axcore.rewards.worker` starts it. It loads no jax, and ends by itself where the trainer is gone:
a thread waits for the end of a pipe that only the trainer holds.
"""

import contextlib
import faulthandler
import hashlib
import importlib.util
import json
import math
import os
import pickle
import random
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SHOWN = 4000
"""Characters of a traceback or of stacks that are kept."""

MAX_ANSWER = 1 << 20
"""Bytes that a call may return, as JSON."""

SLACK = 0.25
"""A call ends between its time limit and this share of it later."""


def main() -> None:
    """Serve by the file descriptors that the command line names."""
    lifeline, calls, stacks = map(int, sys.argv[1:])
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    # What the reward itself starts by `exec` must hold neither the pipe nor the stacks.
    os.set_inheritable(stacks, False)
    # No core dumps, of gigabytes each, where a reward crashes.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A crash in C shows where it was.
    faulthandler.enable(file=stacks)
    with contextlib.suppress(EOFError, OSError), Connection(calls) as connection:
        _serve(connection, stacks)


def _end_with(lifeline: int) -> None:
    """End this process, and all that the reward started, where the trainer is gone."""
    with contextlib.suppress(OSError):
        os.read(lifeline, 1)
    # It leads a group of its own. A reward that holds the GIL keeps this thread waiting: then the
    # timer of its call ends the process.
    os.killpg(os.getpid(), signal.SIGKILL)


def _serve(connection: Connection, stacks: int) -> None:
    """Answer until the trainer hangs up."""
    setup = pickle.loads(connection.recv_bytes())
    try:
        load_own_code(setup["modules"], setup["script"])
        callee = pickle.loads(setup["config"]).build()
        # After the imports: libraries reserve a lot of address space when they are loaded.
        if sys.platform == "linux":  # others refuse it, or do not enforce it
            _limit_memory(setup["memory_bytes"])
    except BaseException as error:
        _send(connection, {"error": _named(error), "details": _shown(error)})
        return
    _send(connection, {"ready": True})
    while True:
        requests: list[Any] = pickle.loads(connection.recv_bytes())
        for reply in _replies(callee, requests, setup["time_limit_s"], stacks):
            _send(connection, reply)


def _replies(
    callee: Any, requests: Sequence[Any], limit_s: float, stacks: int
) -> Iterator[dict[str, Any]]:
    """Yield what becomes of each request; the process ends where one takes too long."""
    armed_at = -math.inf
    for request in requests:
        # A timer costs a thread, and most rewards take microseconds: it is set again only where
        # this request would have less than its time.
        if time.monotonic() - armed_at > SLACK * limit_s:
            armed_at = time.monotonic()
            # In C, and in a thread of its own: it writes the stacks and ends the process also where
            # the reward holds the GIL, or the trainer that waits for it was killed.
            faulthandler.dump_traceback_later((1 + SLACK) * limit_s, exit=True, file=stacks)
        yield _answer(callee, request)
    faulthandler.cancel_dump_traceback_later()


def _answer(callee: Any, request: Any) -> dict[str, Any]:
    # One that draws numbers draws the same ones whichever process it runs in.
    seed = request.seed_text.encode("utf-8", "surrogatepass")
    random.seed(hashlib.blake2b(seed).digest())
    # `BaseException`: also `sys.exit` is an error of this one completion.
    try:
        value = request.ask(callee)
    except BaseException as error:
        return {"error": f"it raised {_named(error)}", "details": _shown(error)}
    try:
        found = {"value": request.checked(callee, value)}
        size = len(json.dumps(found))
    except Exception as error:
        return {"error": str(error), "details": ""}
    if size > MAX_ANSWER:
        return {"error": f"it returned {size:,} bytes; at most {MAX_ANSWER:,}", "details": ""}
    return found


def load_own_code(modules: Sequence[tuple[str, str]], script: str | None) -> None:
    """Import the user's modules from where the trainer has them, and define what its script does.

    Args:
        modules: Names and files.
        script: Python of the trainer's script, without what trains.
    """
    for name, file in modules:
        if name not in sys.modules and _origin(name) != file:
            _import_file(name, file)
    if script is not None:
        # Pickled classes and functions of a script are looked up by this name.
        exec(compile(script, "<script>", "exec"), vars(sys.modules["__main__"]))


def _origin(name: str) -> str | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return str(Path(spec.origin).resolve()) if spec is not None and spec.origin else None


def _import_file(name: str, file: str) -> None:
    sys.path.append(str(Path(file).parents[name.count(".")]))
    spec: Any = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _limit_memory(num_bytes: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        num_bytes = min(num_bytes, most)
    resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))


def _send(connection: Connection, reply: Mapping[str, Any]) -> None:
    connection.send_bytes(json.dumps(reply).encode())


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500].rstrip(": ")


def _shown(error: BaseException) -> str:
    """Return the traceback without the lines of axcore that make the call."""
    frames = error.__traceback__ and error.__traceback__.tb_next
    frames = frames and (frames.tb_next or frames)
    return "".join(traceback.format_exception(type(error), error, frames))[-SHOWN:]
