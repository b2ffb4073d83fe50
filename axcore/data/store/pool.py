"""The processes of a build: a part at a time each; one that dies is replaced, once a part."""

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from axcore.config.json_files import parse_json
from axcore.data.store.plan import Plan
from axcore.errors import DataError

# Once more, since the kernel may have killed a worker for memory that is free again; not more
# often, since a record may crash its decoder each time.
# A worker that dies may have met a kernel short of
# memory; one that dies twice on a part has met the part.
_TRIES = 2
_WORKER = "axcore.data.store.worker"

# There is a worker for each core, so more threads in each only get in each other's way. No worker
# may take an accelerator from a run on this machine.
_ONE_THREAD_EACH = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
}


class _WorkerDiedError(Exception):
    """A worker ended before it answered."""


class Worker:
    """A process that builds parts."""

    def __init__(self, folder: Path, packages: str) -> None:
        # A worker gets our process id, so that it notices when we are killed; and our `sys.path`,
        # since a source may be defined next to the script that was started.
        self._process = subprocess.Popen(
            [sys.executable, "-m", _WORKER, str(folder), packages, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **_ONE_THREAD_EACH, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def build(self, index: int) -> dict[str, Any]:
        """Return the worker's answer on a part: empty, or what was wrong.

        Raises:
            _WorkerDiedError: There was none.
        """
        try:
            self._process.stdin.write(f"{index}\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
            answer = self._process.stdout.readline()  # type: ignore[union-attr]
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise _WorkerDiedError(f"exit code {self._process.wait()}")
        answered: dict[str, Any] = parse_json(answer)
        return answered

    def kill(self) -> None:
        """End the process, whatever it does."""
        with contextlib.suppress(BrokenPipeError), self._process:  # closes the pipes, and waits
            self._process.kill()


def built_in_processes(folder: Path, plan: Plan, todo: Sequence[int], count: int) -> Iterator[int]:
    """Yield parts as processes finish them, in any order.

    After a failure no part is begun; those that others are at are finished first.

    Raises:
        DataError: A part cannot be built, or its worker died twice.
    """
    pool = _Pool(folder, plan, todo, count)
    try:
        yield from pool.finished()
    finally:
        pool.kill()


class _Pool:
    """Threads that each talk to one process."""

    def __init__(self, folder: Path, plan: Plan, todo: Sequence[int], count: int) -> None:
        self._folder, self._plan = folder, plan
        self._todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in todo:
            self._todo.put(index)
        self._left = len(todo)
        # Unbounded, so that no thread waits to hand over an answer while the build is being killed.
        self._answers: queue.SimpleQueue[int | Exception | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._workers: set[Worker] = set()
        self._threads = [threading.Thread(target=self._serve) for _ in range(count)]

    def finished(self) -> Iterator[int]:
        for thread in self._threads:
            thread.start()
        errors: list[Exception] = []
        running = len(self._threads)
        while running:
            # Every thread puts None when it ends, also after an error, so this cannot wait for
            # ever.
            answer = self._answers.get()
            if answer is None:
                running -= 1
            elif isinstance(answer, Exception):
                errors.append(answer)
            else:
                yield answer
        if errors:
            raise errors[0]

    def kill(self) -> None:
        self._stop.set()
        # Threads wait in `readline`; they wake when the pipes of their workers close.
        # A copy: threads take workers out of the set meanwhile.
        for worker in tuple(self._workers):
            worker.kill()
        # A thread that was never started cannot be joined.
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _serve(self) -> None:
        worker: Worker | None = None
        try:
            while not self._stop.is_set():
                index = self._todo.get_nowait()
                worker = self._build(index, worker)
        except queue.Empty:
            pass
        except Exception as error:
            self._stop.set()
            self._answers.put(error)
        finally:
            if worker is not None:
                self._workers.discard(worker)
                worker.kill()
            self._answers.put(None)

    def _build(self, index: int, worker: Worker | None) -> Worker:
        """Build a part, by another worker where one dies; returns the one that lives."""
        for attempt in range(_TRIES):
            worker = worker or self._started()
            try:
                answer = worker.build(index)
            except _WorkerDiedError as error:
                self._workers.discard(worker)
                worker.kill()
                worker = None
                # After a stop it was us who killed the worker: no reason to try again.
                if self._stop.is_set() or attempt == _TRIES - 1:
                    raise _died(self._name(index), error) from error
                continue
            if answer:
                raise _failed(self._name(index), answer)
            self._answers.put(index)
            return worker
        raise AssertionError("a try ends in an answer or an error")

    def _started(self) -> Worker:
        source, tokenizer = self._plan.build_source(), self._plan.build_tokenizer()
        configs = (source.config, *source.config.transforms, tokenizer.config)
        packages = {type(cfg).__module__.partition(".")[0] for cfg in configs}
        worker = Worker(self._folder, ",".join(sorted(packages)))
        self._workers.add(worker)
        return worker

    def _name(self, index: int) -> str:
        first, *others = self._plan.parts[index]
        return f"{first} and {len(others)} files more" if others else str(first)


def _died(part: str, error: _WorkerDiedError) -> DataError:
    return DataError(
        f"A worker died {_TRIES} times while it read {part}: {error}.",
        hint="Run it again: finished parts are kept. With --processes 1 it needs less memory.",
    )


def _failed(part: str, answer: dict[str, Any]) -> DataError:
    return DataError(
        answer["what"], where=answer["where"] or part, hint=answer["hint"] or "Run it again."
    )
