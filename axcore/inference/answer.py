"""`Answer`: the handle of a request, which any thread or event loop may read."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from axcore.inference.request import Completion, Piece, Request


class Answer:
    """The answer to a request while it is drawn.

    Every iteration yields all pieces from the first one on; the last one has a finish reason.

    Attributes:
        request: What was asked.
        error: Why the answer ended with finish reason "error"; None otherwise.
        prompt_logprobs: See `Completion`.
        num_cached_prompt_tokens: See `Completion`.
    """

    def __init__(self, request: Request, cancel: Callable[["Answer"], None]) -> None:
        self.request = request
        self.error: Exception | None = None
        self.prompt_logprobs: tuple[float | None, ...] | None = None
        self.num_cached_prompt_tokens = 0
        self._cancel = cancel
        self._pieces: list[Piece] = []
        self._changed = threading.Condition()
        self._wakers: list[Callable[[], None]] = []

    def __iter__(self) -> Iterator[Piece]:
        """Yields pieces as they come."""
        for index in self._indices():
            with self._changed:
                while len(self._pieces) <= index:
                    self._changed.wait()
            yield self._pieces[index]

    async def __aiter__(self) -> AsyncIterator[Piece]:
        """Yields pieces as they come."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(changed.set)

        with self._changed:
            self._wakers.append(wake)
        try:
            for index in self._indices():
                while len(self._pieces) <= index:
                    await changed.wait()
                    changed.clear()
                yield self._pieces[index]
        finally:
            with self._changed:
                self._wakers.remove(wake)

    @property
    def is_finished(self) -> bool:
        """Whether the last piece is there."""
        return bool(self._pieces) and self._pieces[-1].finish_reason is not None

    def cancel(self) -> None:
        """Ends the answer within a step; what it had is free again for others."""
        self._cancel(self)

    def result(self, timeout: float | None = None) -> Completion:
        """Returns the whole answer when it is finished.

        Args:
            timeout: Seconds to wait at most; None waits for as long as it takes.

        Raises:
            TimeoutError: It was not finished in time.
            Exception: The engine could not finish it; see `error`.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.is_finished, timeout):
                raise TimeoutError(f"the answer is not finished after {timeout} s")
        if self.error is not None:
            raise self.error
        return Completion(
            "".join(piece.text for piece in self._pieces),
            tuple(token for piece in self._pieces for token in piece.tokens),
            self._pieces[-1].finish_reason or "",
            self.prompt_logprobs,
            self.num_cached_prompt_tokens,
        )

    def add(self, piece: Piece) -> None:
        """Adds a piece, which the engine alone does; what comes after the last one is dropped."""
        with self._changed:
            if self.is_finished:
                return
            self._pieces.append(piece)
            self._changed.notify_all()
            wakers = tuple(self._wakers)
        for wake in wakers:
            wake()

    def fail(self, error: Exception) -> None:
        """Ends the answer with an error, which the engine alone does."""
        if not self.is_finished:
            self.error = error
            self.add(Piece("", (), "error"))

    def _indices(self) -> Iterator[int]:
        index = 0
        while True:
            yield index
            if self._pieces[index].finish_reason is not None:
                return
            index += 1
