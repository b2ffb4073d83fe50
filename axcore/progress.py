"""Long work says how far it is, and whoever shows that to a person listens.

What reads or writes much does so within `working`, and knows nothing of terminals. Where nobody
listens, nothing happens. It loads no jax.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import attrs


@attrs.define(eq=False)
class Work:
    """Something that takes its time.

    Attributes:
        name: What is done, as "reading weights".
        total: Its bytes.
        done: How many of these are done; 0 until the end where it goes in one piece.
        is_over: Whether it ended, well or not.
        has_failed: Whether something was raised.
    """

    name: str
    total: int
    done: int = 0
    is_over: bool = False
    has_failed: bool = False

    def add(self, num_bytes: int) -> None:
        """Count bytes as done, and notifies the listener."""
        self.done += num_bytes
        _tell(self)


Listener = Callable[[Work], None]
"""Called when work begins, whenever some of it is done, and when it is over."""

_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def working(name: str, total: int) -> Iterator[Work]:
    """Notifies the listener of work for as long as the context lasts."""
    work = Work(name, total)
    _tell(work)
    try:
        yield work
    except BaseException:
        work.has_failed = True
        raise
    finally:
        work.is_over = True
        _tell(work)


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Let a listener hear of work for as long as the context lasts, in place of another."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def _tell(work: Work) -> None:
    listener = _LISTENER.get()
    if listener is not None:
        listener(work)
