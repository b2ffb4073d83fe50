"""`EngineThread`: the thread in which an engine's commands and steps run, one after the other.

Only this thread touches the device, the scheduler and the KV cache, so none of them has a lock.
Other threads leave commands, which run between two steps.
"""

import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable

from axcore.errors import AxcoreError, EngineError

_IDLE_S = 1.0
"""Seconds after which a thread without work ends; the next command starts another. A thread holds
its engine, so one that waited for ever would keep weights on the device that nobody can reach."""


class EngineThread:
    """Runs commands between steps, and steps while there is work.

    Args:
        step: Runs a step.
        has_work: Whether a step has something to do, or waits for a command.
        end: Ends all requests, with the reason; it is called once, in the thread, and nothing
            runs after it.

    Attributes:
        changed: Held while anything is read or changed that other threads see.
        error: Why nothing runs any more; None while no step has failed.
        is_closed: Whether commands are refused.
    """

    def __init__(
        self,
        step: Callable[[], None],
        *,
        has_work: Callable[[], bool],
        end: Callable[[EngineError], None],
    ) -> None:
        self.changed = threading.Condition()
        self.error: EngineError | None = None
        self.is_closed = False
        self._step, self._has_work, self._end = step, has_work, end
        self._inbox: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._has_ended = False

    def check_open(self) -> None:
        """Raise EngineError where commands are refused."""
        if self.error is not None:
            raise self.error
        if self.is_closed:
            raise EngineError("the engine is closed")

    def send(self, command: Callable[[], None]) -> None:
        """Have the thread run a command between two steps; hold `changed` when you call it."""
        # A condition's lock is needed to append and start
        # as one: two callers would start two threads.
        self._inbox.append(command)
        if self._thread is None:
            # A daemon: a program that forgets `close` must still end.
            self._thread = threading.Thread(target=self._run, name="axcore-engine", daemon=True)
            self._thread.start()
        self.changed.notify_all()

    def do(self, command: Callable[[], None]) -> None:
        """Run a command in the thread, wait until it is done, and raise what it raises.

        An EngineError ends the engine, as that of a step does: its state may be half changed.

        Raises:
            EngineError: The engine is closed, or a step failed.
        """
        future: concurrent.futures.Future[None] = concurrent.futures.Future()

        def run() -> None:
            try:
                command()
            # Whatever it is, the caller gets it; else it would wait for ever.
            except Exception as error:
                future.set_exception(error)
                if isinstance(error, EngineError):
                    # Raised once more in the thread, which ends the
                    # engine; any other error is the caller's alone.
                    raise
            else:
                future.set_result(None)
            with self.changed:
                self.changed.notify_all()

        with self.changed:
            self.check_open()
            self.send(run)
            # Woken by closing as well, as a command that is still in the inbox then will never run.
            self.changed.wait_for(lambda: future.done() or self.is_closed)
            # With the reason for which the engine ended,
            # rather than by a wait for the future without end.
            if not future.done():
                self.check_open()
        # Outside of the lock, for what it raises may be handled slowly.
        future.result()

    def fail(self, error: AxcoreError) -> None:
        """End all requests for a reason that came from outside of a step."""

        def stop() -> None:
            raise EngineError(error.what, hint=error.hint) from error

        with self.changed:
            if not self.is_closed:
                self.send(stop)

    def wait_until_idle(self) -> None:
        """Return when there is no work left, or all of it has been ended."""
        with self.changed:
            self.changed.notify_all()
            self.changed.wait_for(
                # `_has_ended`, not `is_closed`: requests are ended after the
                # latter, and who drains wants to see all of them answered.
                lambda: self._has_ended or (self.error is None and self._is_idle())
            )

    def close(self) -> None:
        """End the thread, and with it all requests."""
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()
            thread = self._thread
        # `close` may be called by the thread itself: in `end`, or when it frees the last reference.
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _is_idle(self) -> bool:
        return not (self._inbox or self._has_work())

    def _run(self) -> None:
        try:
            while self._turn():
                pass
            if self.is_closed:
                self._finish(EngineError("the engine was closed"))
        except EngineError as error:
            self._finish(error)
        except Exception as error:  # whatever it is, nobody may wait for ever
            failed = EngineError(f"a step of the engine failed: {error!r}")
            failed.__cause__ = error
            self._finish(failed)

    def _turn(self) -> bool:
        """Run waiting commands and a step; return whether the thread is needed longer."""
        with self.changed:
            if self._is_idle():
                self.changed.notify_all()
            self.changed.wait_for(lambda: self.is_closed or not self._is_idle(), _IDLE_S)
            if self._is_idle() and not self.is_closed:
                # Under the lock and before leaving: a `send`
                # right after this sees no thread, and starts one.
                self._thread = None
                return False
            # All at once: commands that arrive while these run wait
            # for the next turn, so that steps are not starved by them.
            commands, self._inbox = self._inbox, deque()
        # Without the lock from here on: a step may take seconds, and `submit` must not wait for it.
        if self.is_closed:
            return False
        for command in commands:
            command()
        self._step()
        return True

    def _finish(self, error: EngineError) -> None:
        with self.changed:
            if not self.is_closed:
                # The first reason stays: closing an engine that
                # failed does not turn the failure into a wish.
                self.error = error
            self.is_closed = True
            self.changed.notify_all()
        # Without the lock: `end` may have other engines take requests over, which need their own
        # locks, and two engines that fail together must not wait for each other.
        try:
            # Even where `end` itself fails, whoever waits must wake up.
            self._end(error)
        finally:
            with self.changed:
                self._has_ended = True
                self.changed.notify_all()
