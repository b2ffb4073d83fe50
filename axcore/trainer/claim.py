"""Claiming a run directory: process 0 does it, for all processes of the run."""

import hashlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from axcore.checkpoint import RunDirectory
from axcore.checkpoint.run_directory import TEXT_NAME
from axcore.config import render_config, to_json
from axcore.errors import CheckpointError
from axcore.parallel import from_first, gather, is_first, process_count

_NAME = "claiming the run directory"


@contextmanager
def claimed(directory: Path | str, cfg: Any, may_change: tuple[str, ...]) -> Iterator[Path]:
    """Claims a run directory for a config while the context lasts.

    Args:
        directory: Of the run, the same one in every process.
        cfg: The resolved config.
        may_change: Globs of the paths that may differ from an earlier start.

    Yields:
        The directory, absolute.

    Raises:
        CheckpointError: In every process: it cannot be claimed, or not all processes see it.
    """
    path = Path(directory).absolute()
    claims: list[RunDirectory] = []

    def claim() -> str:
        texts = {"config_text": render_config(cfg), "config_json": to_json(cfg)}
        claims.append(RunDirectory(path, **texts, may_change=may_change))
        return _digest(path)

    try:
        _check_is_shared(path, from_first(_NAME, claim))
        yield path
    finally:
        for one in claims:
            one.close()


def _check_is_shared(path: Path, digest: str) -> None:
    """Checks that every process sees what process 0 has just written."""
    if process_count() == 1:
        return
    is_seen = is_first() or _digest(path) == digest
    hosts = gather(_NAME, "" if is_seen else socket.gethostname())
    blind = [f"process {index} on {host}" for index, host in enumerate(hosts) if host]
    if blind:
        raise CheckpointError(
            f"{', '.join(blind[:8])} cannot see the {TEXT_NAME} that process 0 wrote",
            where=str(path),
            mend="use a --dir on a file system that all processes share",
        )


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256((path / TEXT_NAME).read_bytes()).hexdigest()
    except OSError:
        return ""
