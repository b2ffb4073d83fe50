"""Engines whose threads wait while requests come, so that no test depends on their pace."""

import contextlib
import threading

import jax


@contextlib.contextmanager
def held(engines):
    """Lets no engine, or replica, begin a step within the block: what is submitted there waits."""
    with contextlib.ExitStack() as locks:
        for engine in getattr(engines, "_engines", (engines,)):
            locks.enter_context(engine._changed)
        yield


def broken(engine):
    """Takes an engine's weights off its device, so that its next step fails, and not `submit`."""
    engine._programs.weights.check_present = lambda: None
    for leaf in jax.tree.leaves(engine._programs.weights.value):
        leaf.delete()


@contextlib.contextmanager
def busy(engine):
    """Lets an engine run no step within the block; what is submitted there waits in its queue."""
    go, begun = threading.Event(), threading.Event()

    def work():
        begun.set()
        go.wait(60)

    with engine._changed:
        engine._thread.send(work)
    assert begun.wait(60)
    try:
        yield
    finally:
        go.set()
