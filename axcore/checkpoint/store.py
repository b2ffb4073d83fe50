"""Arrays to disk and back, through Orbax.

Arrays are stored flat, by name, uncompressed (loads are 2-3x faster), in a few large files (OCDBT).
Orbax is imported on first use: it costs 0.3 s, and looking at a config needs none of it.
"""

import contextlib
import itertools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from axcore.distributed import on_leaving

_OPERATIONS = (
    "orbax.checkpoint._src.futures.synchronization",
    "orbax.checkpoint.experimental.v1._src.synchronization.synchronization",
)
_log = logging.getLogger("axcore.checkpoint")


def start_saving(path: Path, arrays: Mapping[str, jax.Array]) -> Callable[[], None]:
    """Start to write arrays and return once they may be donated or deleted.

    Returns:
        A function that waits until everything is written, and raises what went wrong.
    """
    # Orbax refuses arrays without elements; the manifest has their shapes.
    stored = {name: array for name, array in arrays.items() if array.size}
    if not stored:
        return lambda: None
    from orbax.checkpoint import v1 as ocp

    with contextlib.ExitStack() as stack:
        # The filter must stay until the write ends, since Orbax logs from its own threads;
        # `pop_all` hands it to `finish`. If `save_async` raises, the stack removes it here.
        stack.enter_context(_own_log_lines())
        with _context():
            response = ocp.save_async(path, stored)
        quiet = stack.pop_all()

    def finish() -> None:
        with quiet:
            response.result()

    return finish


def load(path: Path, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Read arrays by name, each into the sharding that its description names."""
    stored = {name: leaf for name, leaf in wanted.items() if leaf.size}
    arrays: dict[str, jax.Array] = {}
    if stored:
        from orbax.checkpoint import v1 as ocp

        with _own_log_lines(), _context():
            arrays = ocp.load(path, stored)
    return {name: arrays[name] if name in arrays else _empty(leaf) for name, leaf in wanted.items()}


def _forget_processes() -> None:
    """Make Orbax number its operations and find its client as in a new process.

    Processes meet at these numbers. They and the client are private names of Orbax.
    """
    for name in _OPERATIONS:
        module = sys.modules.get(name)
        if module is not None:
            generator = module.OperationIdGenerator
            # Orbax puts this number into the names of its barriers. A
            # process that was restarted begins at zero, one that stayed
            # keeps counting: they would wait for each other for ever.
            generator._operation_id_counter = itertools.count()
            generator.next_operation_id()
    clients = sys.modules.get("orbax.checkpoint._src.futures.signaling_client")
    if clients is not None:
        # It caches the client of the coordination service, which is gone after leaving.
        clients.get_signaling_client.cache_clear()


on_leaving(_forget_processes)


def _empty(leaf: jax.ShapeDtypeStruct) -> jax.Array:
    # Made, not loaded: arrays without elements are not in the checkpoint (see `start_saving`).
    return jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding)


def _context() -> Any:
    from orbax.checkpoint import v1 as ocp

    context = ocp.Context()
    context.array.saving.use_compression = False  # loads are 2-3x faster
    # The file describes shardings for a restore without
    # a template; our templates always have theirs.
    context.array.saving.enable_write_sharding_file = False
    context.asynchronous.create_directories_asynchronously = False
    # The reader has compared the names with the manifest already, which says
    # more than Orbax's error does; `Checkpointer.load` reads single leaves.
    context.pytree.loading.partial_load = True
    return context


class _ToOwnLog(logging.Filter):
    """A filter that sends Orbax's lines to axcore's log at debug level; what matters is raised."""

    def filter(self, record: logging.LogRecord) -> bool:
        if "orbax" not in record.pathname:
            return True
        _log.debug("%s", record.getMessage())
        return False


@contextlib.contextmanager
def _own_log_lines() -> Iterator[None]:
    quiet = _ToOwnLog()
    # Orbax logs through absl's logger, with absl's own
    # handler: a level set on "orbax" has no effect.
    logger = logging.getLogger("absl")
    logger.addFilter(quiet)
    try:
        yield
    finally:
        logger.removeFilter(quiet)
