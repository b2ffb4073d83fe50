"""`Workers`: the processes of rewards and environments, and what they are asked."""

import queue
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from os import cpu_count
from typing import Any

from axcore.rewards.worker import (
    NotAnswered,
    Worker,
    WorkerConfig,
    WorkerRequest,
    worker_setup,
)

_MAX_WORKERS = 8
_MAX_AT_A_TIME, _TURNS = 32, 8
"""Requests that a worker is handed at once, and how often it is handed some in a step."""

_LONGEST_END_S = 10.0


class Workers:
    """Processes by the name of what they compute. They start when they are first asked."""

    def __init__(self) -> None:
        self._groups: dict[str, _WorkerGroup] = {}
        # Also where nobody closes it: at the latest when the interpreter ends.
        self._end = weakref.finalize(self, _end_all, self._groups)

    def submit(
        self, name: str, cfg: WorkerConfig, requests: Sequence[WorkerRequest]
    ) -> "list[Future[Any]]":
        """Return what will be the answers to requests.

        A future raises `NotAnswered` where the call failed, and `WorkerNotStarted` where what is
        called could not be made.

        Args:
            name: Of the reward or environment.
            cfg: It.
            requests: The calls.

        Raises:
            ConfigError: It is defined where no other process finds it.
        """
        if name not in self._groups:
            self._groups[name] = _WorkerGroup(name, cfg)
        return self._groups[name].submit(requests)

    def close(self) -> None:
        """End the processes, and wait until they have; they start again where more is asked."""
        groups = [*self._groups.values()]
        _end_all(self._groups)
        for group in groups:
            group.join()


Job = tuple[WorkerRequest, "Future[Any]"]


class _WorkerGroup:
    """The workers of one reward or environment, each with a thread that waits for it."""

    def __init__(self, name: str, cfg: WorkerConfig) -> None:
        self._name, self._cfg = name, cfg
        self._setup = worker_setup(cfg)
        self._jobs: queue.SimpleQueue[list[Job] | None] = queue.SimpleQueue()
        self._is_ended = threading.Event()
        self._workers: list[Worker] = []
        self._threads: list[threading.Thread] = []

    def submit(self, requests: Sequence[WorkerRequest]) -> "list[Future[Any]]":
        """Return what will be the answers."""
        answers: list[Future[Any]] = [Future() for _ in requests]
        jobs = list(zip(requests, answers, strict=True))
        most = self._cfg.num_workers or min(cpu_count() or 1, _MAX_WORKERS)
        # Several at a time, as handing one over takes longer than a quick reward; and few enough
        # that no worker is left with much while the others have ended.
        size = max(1, min(_MAX_AT_A_TIME, len(jobs) // (_TURNS * most)))
        for begin in range(0, len(jobs), size):
            self._jobs.put(jobs[begin : begin + size])
        for _ in range(min(most, len(jobs)) - len(self._workers)):
            worker = Worker(self._setup, self._cfg.time_limit_s)
            self._workers.append(worker)
            # A daemon: nothing waits for a reward that hangs when the interpreter ends.
            thread = threading.Thread(
                target=partial(_serve, worker, self._jobs, self._is_ended),
                name=self._name,
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()
        return answers

    def end(self) -> None:
        """End all processes, whatever they do; what waits for them fails."""
        self._is_ended.set()
        for worker in self._workers:
            worker.kill()
            self._jobs.put(None)

    def join(self) -> None:
        """Wait until the processes have ended; not for one that the system cannot end."""
        for thread in self._threads:
            thread.join(_LONGEST_END_S)


def _serve(
    worker: Worker,
    queued: "queue.SimpleQueue[list[Job] | None]",
    is_ended: threading.Event,
) -> None:
    """Let a worker do jobs until the group ends."""
    while (jobs := queued.get()) is not None and not is_ended.is_set():
        try:
            found = worker.answers([request for request, _ in jobs])
            for (_, answer), result in zip(jobs, found, strict=True):
                if isinstance(result, NotAnswered):
                    answer.set_exception(result)
                else:
                    answer.set_result(result)
                # Or a worker that was killed would start again for what is left.
                if is_ended.is_set():
                    break
        # Any error: whoever waits for the answers would wait for ever.
        except BaseException as error:
            for _, answer in jobs:
                if not answer.done():
                    answer.set_exception(error)
    worker.close()


def _end_all(groups: dict[str, _WorkerGroup]) -> None:
    for group in groups.values():
        group.end()
    groups.clear()
