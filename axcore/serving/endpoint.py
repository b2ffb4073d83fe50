"""`Endpoint`: what a server answers at one path by one call of a model, such as a transcript.

Completions and chats are none, as the engine samples them token by token. A plugin's model has what
its `ModelApi` returns; a language model has `/v1/embeddings`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, ClassVar, Generic, TypeVar

import attrs

from axcore.ops import KernelPolicy, use_policy
from axcore.serving.request_parser import RequestParser

Job = TypeVar("Job")
Result = TypeVar("Result")


class Endpoint(ABC, Generic[Job, Result]):
    """Answers `POST` at a path: `read`, then `compute` on the device, then `response`.

    The server does the rest: keys, limits, errors, metrics, one queue for the device, and the end.

    Attributes:
        path: Such as `/v1/audio/transcriptions`.
        takes_form: Whether a body is a form with files (`multipart/form-data`) and not JSON.
        max_batch: Requests that one call of `compute` is given at most.
    """

    path: ClassVar[str]
    takes_form: ClassVar[bool] = False
    max_batch: int = 1

    @abstractmethod
    def read(self, fields: RequestParser) -> Job:
        """Return what is computed for a request; runs in a thread of a host.

        The field `model` was read already, and fields that nothing reads are refused afterwards.

        Raises:
            ApiError: The request cannot be answered; `invalid` makes one that names the field.
        """

    @abstractmethod
    def compute(self, state: Any, jobs: Sequence[Job]) -> Sequence[Result]:
        """Return the result of each job; runs in the one thread that calls the device.

        Args:
            state: Of the model.
            jobs: Of one request or of several, up to `max_batch`.
        """

    @abstractmethod
    def response(self, job: Job, result: Result, *, model: str) -> Any:
        """Return the content of a response: a text is sent as it is, all else as JSON."""

    def num_tokens(self, job: Job) -> int:
        """Return the tokens that a job reads, for the metrics."""
        return 0

    def warm_up(self, state: Any) -> None:
        """Compile programs, before the server says that it is ready."""


AnyEndpoint = Endpoint[Any, Any]


@attrs.frozen(eq=False)
class _Waiting:
    """A job that waits for the device.

    Args:
        endpoint: What computes it.
        job: The job.
        result: Who waits for it; cancelled where the client left.
    """

    endpoint: AnyEndpoint
    job: Any
    result: "asyncio.Future[Any]"


class DeviceQueue:
    """Calls endpoints in one thread, one call after the other, in the order of requests.

    Used on the event loop alone. It has no limit of its own: `Limits.max_requests` bounds how many
    requests there are, before their bodies are parsed.

    Args:
        state: Returns the weights, in the thread.
        policy: By which ops choose their kernels; None chooses by the hardware.

    Attributes:
        num_calls: Calls so far.
    """

    def __init__(self, state: Callable[[], Any], policy: KernelPolicy | None = None) -> None:
        self._state, self._policy = state, policy
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="axcore-endpoint")
        self._waiting: deque[_Waiting] = deque()
        self._runner: asyncio.Task[None] | None = None
        self.num_calls = 0

    @property
    def num_waiting(self) -> int:
        """Number of jobs that no call has begun."""
        return len(self._waiting)

    async def compute(self, endpoint: Endpoint[Job, Result], job: Job) -> Result:
        """Return the result of a job, together with others that wait for the same endpoint."""
        found: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(endpoint, job, found))
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        return await found

    def close(self) -> None:
        """Begin no call any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := self._next_batch():
            endpoint, jobs = batch[0].endpoint, [one.job for one in batch]

            self.num_calls += 1
            try:
                results = await loop.run_in_executor(self._thread, self._call, endpoint, jobs)
            # Whatever it is, those who wait get it, and the log has it: a call keeps nothing
            # that the next one reads, so others are answered as before.
            except Exception as error:
                for one in batch:
                    if not one.result.done():
                        one.result.set_exception(error)
                continue
            for one, result in zip(batch, results, strict=True):
                if not one.result.done():
                    one.result.set_result(result)

    def _call(self, endpoint: AnyEndpoint, jobs: Sequence[Any]) -> Sequence[Any]:
        # Set here: a thread does not have the context of the one that started it.
        with nullcontext() if self._policy is None else use_policy(self._policy):
            return endpoint.compute(self._state(), jobs)

    def _next_batch(self) -> list[_Waiting]:
        """Take the jobs of the next call: the first, and those behind it of the same endpoint."""
        batch: list[_Waiting] = []
        while self._waiting:
            first = self._waiting[0]
            if first.result.done():  # its client left
                self._waiting.popleft()
                continue
            is_full = bool(batch) and len(batch) >= first.endpoint.max_batch
            if is_full or (batch and first.endpoint is not batch[0].endpoint):
                break
            batch.append(self._waiting.popleft())
        return batch
